# SPDX-License-Identifier: Apache-2.0
# The kernels for GPUs, compiled by nvcc into one image that the library contains. RESHARD_WITH_CUDA is AUTO (use nvcc if
# it is found), ON (it must be) or OFF. Nothing of CUDA is linked: the driver is loaded when it is needed, so the same
# build runs on machines without one.
set(RESHARD_WITH_CUDA AUTO CACHE STRING "Compile the kernels for GPUs: AUTO, ON or OFF")
set(RESHARD_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING
  "Compute capabilities, times ten, to compile kernels for; those that nvcc does not know are left out")

# Finds nvcc in a toolkit, on PATH, or in the wheel nvidia-cuda-nvcc below CMAKE_PREFIX_PATH.
set(RESHARD_CUDA_IMAGE_OF "")
if(NOT RESHARD_WITH_CUDA STREQUAL OFF)
  find_program(RESHARD_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT RESHARD_NVCC AND RESHARD_WITH_CUDA STREQUAL ON)
    message(FATAL_ERROR "RESHARD_WITH_CUDA=ON, but nvcc was not found: install the CUDA toolkit, or set RESHARD_NVCC")
  endif()
endif()

set(cuda_image_source ${PROJECT_BINARY_DIR}/generated/kernel_image.cc)
set(cuda_image ${PROJECT_BINARY_DIR}/generated/kernels.fatbin)
if(RESHARD_NVCC AND NOT RESHARD_WITH_CUDA STREQUAL OFF)
  execute_process(COMMAND ${RESHARD_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  set(targets "")
  foreach(architecture ${RESHARD_CUDA_ARCHITECTURES})
    if(known MATCHES "sm_${architecture}\n")
      list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
      set(newest ${architecture})
      string(APPEND RESHARD_CUDA_IMAGE_OF " sm_${architecture}")
    endif()
  endforeach()
  # Kernels of many kinds share most of their code: compressed, an image is a ninth as large.
  execute_process(COMMAND ${RESHARD_NVCC} --help OUTPUT_VARIABLE help ERROR_QUIET)
  if(help MATCHES "--compress-mode")
    list(APPEND targets --compress-mode=size)
  endif()
  # The driver compiles this for GPUs that are newer.
  list(APPEND targets -gencode arch=compute_${newest},code=compute_${newest})
  # Kernels compute as the host does: no contraction of products and sums, no flushing of subnormals.
  add_custom_command(OUTPUT ${cuda_image}
    COMMAND ${RESHARD_NVCC} -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -I${PROJECT_SOURCE_DIR} ${targets} -fatbin
      -ccbin ${CMAKE_CXX_COMPILER} -MD -MF ${cuda_image}.d -o ${cuda_image}
      ${PROJECT_SOURCE_DIR}/reshard/cuda/tiles/run_tiles.cu
    DEPENDS ${PROJECT_SOURCE_DIR}/reshard/cuda/tiles/run_tiles.cu DEPFILE ${cuda_image}.d
    COMMENT "Compiling kernels for${RESHARD_CUDA_IMAGE_OF}" VERBATIM)
  add_custom_command(OUTPUT ${cuda_image_source}
    COMMAND ${CMAKE_COMMAND} -DIMAGE=${cuda_image} -DOUTPUT=${cuda_image_source}
      -P ${PROJECT_SOURCE_DIR}/cmake/embed_image.cmake
    DEPENDS ${cuda_image} ${PROJECT_SOURCE_DIR}/cmake/embed_image.cmake VERBATIM)
  message(STATUS "GPU kernels: compiled for${RESHARD_CUDA_IMAGE_OF}")
else()
  file(CONFIGURE OUTPUT ${cuda_image_source} CONTENT [[
#include "reshard/cuda/kernel_image.h"
namespace reshard::cuda {
std::span<const std::byte> kernel_image() { return {}; }
}  // namespace reshard::cuda
]])
  message(STATUS "GPU kernels: not compiled (nvcc was not found)")
endif()
target_sources(reshard_cuda PRIVATE ${cuda_image_source})
