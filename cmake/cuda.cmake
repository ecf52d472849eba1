# Kernels for NVIDIA GPUs: KVART_CUDA says whether they are built; kvart_with_cuda is the answer.
# Without them, and with sanitizers, which nvcc doesn't know, FOLDER/no_cuda takes the place of
# FOLDER/cuda.
set(KVART_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO (where nvcc is found), ON, OFF")
set_property(CACHE KVART_CUDA PROPERTY STRINGS AUTO ON OFF)
set(kvart_with_cuda OFF)
if(KVART_CUDA STREQUAL "ON" OR (KVART_CUDA STREQUAL "AUTO" AND NOT KVART_SANITIZE))
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(kvart_with_cuda ON)
  elseif(KVART_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KVART_CUDA is ON, but there is no nvcc")
  endif()
endif()
if(kvart_with_cuda)
  # Hopper's own instructions.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # Formats' rules are constexpr functions, which device code then calls; as on the CPU nothing is
  # fused unless it is written so. CMake 3.25 drops CUDA_STANDARD 20 without a word.
  add_library(kvart_cuda_options INTERFACE)
  target_compile_options(kvart_cuda_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
    -std=c++20 --expt-relaxed-constexpr -fmad=false -Xptxas=-warn-spills
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
  if(KVART_WERROR)
    target_compile_options(kvart_cuda_options INTERFACE
      $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  target_include_directories(kvart_cuda_options SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  # The matrix products of models need its header; the library is loaded when a GPU is used.
  find_path(kvart_cublas_lt cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT kvart_cublas_lt)
    message(STATUS "cublasLt.h isn't there: models won't run on the GPU in this build")
  endif()
endif()
