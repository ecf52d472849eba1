# kvart_layer(NAME FOLDER LINK ...): the static library kvart_NAME of the folder's *.cpp, with every
# file of FOLDER/isa compiled once per instruction set, in a namespace of that set's own, so that no
# inline function compiled for one set can be linked into another's path; and with the files of
# FOLDER/cuda, or of FOLDER/no_cuda where there are no CUDA kernels (cuda.cmake). The global
# property kvart_object_owners lists all targets that hold objects: what the installed library is
# made of.

add_library(kvart_options INTERFACE)
target_compile_features(kvart_options INTERFACE cxx_std_20)
target_include_directories(kvart_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
# Encoded bytes and logits must not depend on what a compiler fuses: an fma is written out where it
# is meant.
target_compile_options(kvart_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -ffp-contract=off>)
# g++ 12 sees overlapping copies in std::string's operator+ where there are none.
target_compile_options(kvart_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(KVART_WERROR)
  target_compile_options(kvart_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(KVART_SANITIZE)
  add_compile_options(
    -fsanitize=${KVART_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KVART_SANITIZE})
endif()

set(kvart_isas scalar avx2 avx512)
set(kvart_isa_flags_scalar "")
set(kvart_isa_flags_avx2 -mavx2 -mfma -mf16c)
set(kvart_isa_flags_avx512 -mavx2 -mfma -mf16c
  -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512)
# g++ 12 warns of the undefined registers in its own AVX-512 header.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND kvart_isa_flags_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

# amx is avx512 with tiles: what it has of its own lies in isa/amx, for the rest there is avx512.
set(kvart_isa_flags_amx ${kvart_isa_flags_avx512} -mamx-tile -mamx-int8)
set(kvart_isa_definitions_amx KVART_ISA_avx512=1)

# kvart_isa_library(TARGET ISA FILES...): an object library of FILES for one instruction set, linked
# into TARGET.
function(kvart_isa_library target isa)
  set(objects ${target}_${isa})
  add_library(${objects} OBJECT ${ARGN})
  target_link_libraries(${objects}
    PRIVATE kvart_options $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
  target_compile_options(${objects} PRIVATE ${kvart_isa_flags_${isa}})
  target_compile_definitions(${objects}
    PRIVATE KVART_ISA=isa_${isa} KVART_ISA_${isa}=1 ${kvart_isa_definitions_${isa}})
  set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  set_property(GLOBAL APPEND PROPERTY kvart_object_owners ${objects})
endfunction()

# kvart_cuda_library(TARGET FOLDER): the object library of the folder's CUDA code, or of what stands
# in for it, linked into TARGET.
function(kvart_cuda_library target folder)
  set(kind no_cuda)
  if(kvart_with_cuda AND (kvart_cublas_lt OR NOT EXISTS ${folder}/cuda/cublas_lt.h))
    set(kind cuda)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/${kind}/*.cu ${folder}/${kind}/*.cpp)
  if(NOT sources)
    return()
  endif()
  set(objects ${target}_cuda)
  add_library(${objects} OBJECT ${sources})
  target_link_libraries(${objects}
    PRIVATE kvart_options $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
  set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(kvart_with_cuda)
    target_link_libraries(${objects} PRIVATE kvart_cuda_options)
    target_compile_definitions(${objects} PRIVATE KVART_ISA=isa_cuda)
    target_link_libraries(${target} PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS})
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  set_property(GLOBAL APPEND PROPERTY kvart_object_owners ${objects})
endfunction()

function(kvart_layer name folder)
  cmake_parse_arguments(layer "" "" "LINK" ${ARGN})
  set(target kvart_${name})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  file(GLOB isa_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/isa/*.cpp)
  file(GLOB amx_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/isa/amx/*.cpp)
  if(NOT sources AND NOT isa_sources)
    file(WRITE ${PROJECT_BINARY_DIR}/empty.cpp "")
    set(sources ${PROJECT_BINARY_DIR}/empty.cpp)
  endif()
  add_library(${target} STATIC ${sources})
  set_property(GLOBAL APPEND PROPERTY kvart_object_owners ${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PUBLIC kvart_options ${layer_LINK})
  if(isa_sources)
    foreach(isa ${kvart_isas})
      kvart_isa_library(${target} ${isa} ${isa_sources})
    endforeach()
  endif()
  if(amx_sources)
    kvart_isa_library(${target} amx ${amx_sources})
  endif()
  kvart_cuda_library(${target} ${PROJECT_SOURCE_DIR}/${folder})
  # What reads files says which of its branches a fuzzer's input takes.
  if(KVART_FUZZ AND name MATCHES "^model|^server")
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()
