# The one list of cache formats. A format NAME is the value type NAME in src/format/NAME.h; the
# registry, the kernels of every instruction set, the tests, the benchmarks, the docs and the
# command line's help are made from this list.
set(kvart_formats
  f16 bf16 fp8_e4m3 int8 int4_g32
  int2_c64 int3_c64 int4_c64 int5_c64 int6_c64 int8_c64
  int4_c32 int2_c32 int4_a32 int2_a32)
# Pairs K:V that have an attention kernel of their own on GPUs; others go through the plain one.
set(kvart_cuda_pairs f16:f16 bf16:bf16 fp8_e4m3:fp8_e4m3 int8:int8 int4_c64:int4_c64
  int8_c64:int8_c64 int8_c64:int4_c64 int6_c64:int4_c64 int5_c64:int4_c64 int5_c64:int3_c64
  int4_c64:int3_c64 int4_c64:int2_c64 int3_c64:int4_c64 int3_c64:int3_c64 int4_g32:int4_g32
  fp8_e4m3:int4_g32 int8:int4_g32
  int4_c32:int4_a32 int2_c32:int2_a32)
# Those that have it for heads of 256 channels too.
set(kvart_cuda_wide_pairs f16:f16 bf16:bf16 fp8_e4m3:fp8_e4m3 int8:int8 int4_c64:int4_c64
  int6_c64:int4_c64)
foreach(list kvart_cuda_pairs kvart_cuda_wide_pairs)
  set(${list}_entries "")
  foreach(pair ${${list}})
    string(REPLACE ":" ", " pair ${pair})
    string(APPEND ${list}_entries "KVART_PAIR(${pair})\n")
  endforeach()
endforeach()
set(kvart_format_entries "")
set(kvart_format_includes "")
foreach(format ${kvart_formats})
  string(APPEND kvart_format_entries "KVART_FORMAT(${format})\n")
  string(APPEND kvart_format_includes "#include \"format/${format}.h\"\n")
endforeach()
set(kvart_generated ${PROJECT_BINARY_DIR}/generated)
file(CONFIGURE OUTPUT ${kvart_generated}/kvart_formats.inc CONTENT "${kvart_format_entries}")
file(CONFIGURE OUTPUT ${kvart_generated}/kvart_cuda_pairs.inc
  CONTENT "${kvart_cuda_pairs_entries}")
file(CONFIGURE OUTPUT ${kvart_generated}/kvart_cuda_wide_pairs.inc
  CONTENT "${kvart_cuda_wide_pairs_entries}")
file(CONFIGURE OUTPUT ${kvart_generated}/kvart_format_headers.inc
  CONTENT "${kvart_format_includes}")
target_include_directories(kvart_options INTERFACE $<BUILD_INTERFACE:${kvart_generated}>)
