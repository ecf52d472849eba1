# kvart_embed(IN OUT HEADER SPACE FUNCTION): the text of the file IN becomes the C++ function
# SPACE::FUNCTION() in OUT, which HEADER declares.
set(kvart_embed_script ${CMAKE_CURRENT_LIST_DIR}/embed_file.cmake)
function(kvart_embed in out header space function)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DIN=${in} -DOUT=${out} -DHEADER=${header} -DSPACE=${space}
      -DFUNCTION=${function} -P ${kvart_embed_script}
    DEPENDS ${in} ${kvart_embed_script})
endfunction()
