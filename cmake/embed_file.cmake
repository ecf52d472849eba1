# cmake -DIN=FILE -DOUT=FILE.cpp -DHEADER=... -DSPACE=... -DFUNCTION=... -P embed_file.cmake: writes
# the text of IN as the C++ function SPACE::FUNCTION(), which HEADER declares. Literals are cut,
# since compilers need not take long ones.
file(READ ${IN} text)
string(LENGTH "${text}" length)
set(code "// Made from a text file by cmake/embed_file.cmake.\n#include \"${HEADER}\"\n\n")
string(APPEND code "namespace ${SPACE} {\n\nstd::string_view ${FUNCTION}() {\n")
string(APPEND code "  static constexpr std::string_view text =")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${text}" ${at} 4000 part)
  string(APPEND code "\n      R\"kvart(${part})kvart\"")
  math(EXPR at "${at} + 4000")
endwhile()
string(APPEND code ";\n  return text;\n}\n\n}  // namespace ${SPACE}\n")
file(WRITE ${OUT} "${code}")
