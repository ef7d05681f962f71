# SPDX-License-Identifier: Apache-2.0
# The kernels for GPUs, compiled by nvcc into two images that the library contains. RESHARD_WITH_CUDA is AUTO (use nvcc if
# it is found), ON (it must be) or OFF. Nothing of CUDA is linked: the driver is loaded when it is needed, so the same
# build runs on machines without one.
set(RESHARD_WITH_CUDA AUTO CACHE STRING "Compile the kernels for GPUs: AUTO, ON or OFF")
set(RESHARD_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING
  "Compute capabilities, times ten, to compile kernels for; those that nvcc does not know are left out")
set(RESHARD_CUDA_IMAGES "" CACHE PATH "With RESHARD_WITH_CUDA=OFF: a folder with the kernels.fatbin and \
portable_kernels.fatbin of another build, to be installed beside the program")
set(RESHARD_PTXAS "" CACHE FILEPATH
  "A ptxas of CUDA 12: with it, drivers from 525 to 575 get machine code for 8.0 and 9.0, too, and need not compile it")

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
set(cuda_portable_image ${PROJECT_BINARY_DIR}/generated/portable_kernels.fatbin)
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
  set(known_compression "")
  if(help MATCHES "--compress-mode")
    list(APPEND targets --compress-mode=size)
    set(known_compression --compress-mode=speed)
  endif()
  # The driver compiles this for GPUs that are newer.
  list(APPEND targets -gencode arch=compute_${newest},code=compute_${newest})
  # Kernels compute as the host does: no contraction of products and sums, no flushing of subnormals.
  set(cuda_source ${PROJECT_SOURCE_DIR}/reshard/cuda/tiles/run_tiles.cu)
  set(nvcc ${RESHARD_NVCC} -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -I${PROJECT_SOURCE_DIR}
    -ccbin ${CMAKE_CXX_COMPILER})
  add_custom_command(OUTPUT ${cuda_image}
    COMMAND ${nvcc} ${targets} -fatbin -MD -MF ${cuda_image}.d -o ${cuda_image} ${cuda_source}
    DEPENDS ${cuda_source} DEPFILE ${cuda_image}.d
    COMMENT "Compiling kernels for${RESHARD_CUDA_IMAGE_OF}" VERBATIM)

  # Text that drivers from 525 on compile, and machine code that they load, in a compression that they know.
  get_filename_component(nvcc_folder ${RESHARD_NVCC} REALPATH)
  get_filename_component(nvcc_folder ${nvcc_folder} DIRECTORY)
  foreach(tool fatbinary ptxas)
    find_program(RESHARD_NVCC_${tool} ${tool} HINTS ${nvcc_folder})
    if(NOT RESHARD_NVCC_${tool})
      message(FATAL_ERROR "${RESHARD_NVCC} was found, but not the program ${tool} that belongs to it")
    endif()
  endforeach()
  set(generated ${PROJECT_BINARY_DIR}/generated)
  function(reshard_portable_ptx architecture)
    set(ptx ${generated}/portable_${architecture}.ptx)
    add_custom_command(OUTPUT ${ptx}
      COMMAND ${nvcc} -ptx -arch=compute_${architecture} -MD -MF ${ptx}.d -MT ${ptx} -o ${ptx}.newer ${cuda_source}
      COMMAND ${CMAKE_COMMAND} -DPTX=${ptx}.newer -DOUTPUT=${ptx} -P ${PROJECT_SOURCE_DIR}/cmake/portable_ptx.cmake
      # A check that nothing in it is newer than it says.
      COMMAND ${RESHARD_NVCC_ptxas} -O0 -arch=sm_${architecture} ${ptx} -o ${ptx}.checked
      DEPENDS ${cuda_source} ${PROJECT_SOURCE_DIR}/cmake/portable_ptx.cmake DEPFILE ${ptx}.d
      COMMENT "Compiling kernels for older drivers, sm_${architecture}" VERBATIM)
  endfunction()
  reshard_portable_ptx(80)
  set(portable_files ${generated}/portable_80.ptx)
  set(portable_entries --image3=kind=ptx,sm=80,file=${generated}/portable_80.ptx)
  if(RESHARD_PTXAS)
    reshard_portable_ptx(90)
    execute_process(COMMAND ${RESHARD_PTXAS} --version OUTPUT_VARIABLE version)
    if(NOT version MATCHES "release 12\\.")
      message(FATAL_ERROR "RESHARD_PTXAS=${RESHARD_PTXAS} is not of CUDA 12: ${version}")
    endif()
    foreach(architecture 80 90)
      set(cubin ${generated}/portable_${architecture}.cubin)
      add_custom_command(OUTPUT ${cubin}
        COMMAND ${RESHARD_PTXAS} -O3 -arch=sm_${architecture} ${generated}/portable_${architecture}.ptx -o ${cubin}
        DEPENDS ${generated}/portable_${architecture}.ptx VERBATIM)
      list(APPEND portable_files ${cubin})
      list(APPEND portable_entries --image3=kind=elf,sm=${architecture},file=${cubin})
    endforeach()
  endif()
  add_custom_command(OUTPUT ${cuda_portable_image}
    COMMAND ${RESHARD_NVCC_fatbinary} --64 --create=${cuda_portable_image} --compress-all ${known_compression} ${portable_entries}
    DEPENDS ${portable_files} VERBATIM)

  add_custom_command(OUTPUT ${cuda_image_source}
    COMMAND ${CMAKE_COMMAND} -DMAIN=${cuda_image} -DPORTABLE=${cuda_portable_image} -DOUTPUT=${cuda_image_source}
      -P ${PROJECT_SOURCE_DIR}/cmake/embed_image.cmake
    DEPENDS ${cuda_image} ${cuda_portable_image} ${PROJECT_SOURCE_DIR}/cmake/embed_image.cmake VERBATIM)
  message(STATUS "GPU kernels: compiled for${RESHARD_CUDA_IMAGE_OF}")
else()
  file(CONFIGURE OUTPUT ${cuda_image_source} CONTENT [[
#include "reshard/cuda/kernel_image.h"
namespace reshard::cuda {
KernelImages kernel_images() { return {}; }
}  // namespace reshard::cuda
]])
  message(STATUS "GPU kernels: not compiled (nvcc was not found)")
endif()
if(RESHARD_CUDA_IMAGES AND RESHARD_WITH_CUDA STREQUAL OFF)
  # chosen_kernel_images() finds them beside the program, and beside the extension for Python.
  set(images ${RESHARD_CUDA_IMAGES}/kernels.fatbin ${RESHARD_CUDA_IMAGES}/portable_kernels.fatbin)
  message(STATUS "GPU kernels: the files in ${RESHARD_CUDA_IMAGES}")
  if(RESHARD_INSTALL)
    install(FILES ${images} DESTINATION bin)
  endif()
  install(FILES ${images} DESTINATION reshard COMPONENT python EXCLUDE_FROM_ALL)
endif()
target_sources(reshard_cuda PRIVATE ${cuda_image_source})
# Transports start no kernels: their modules are linked without the images.
target_compile_options(reshard_cuda PRIVATE -ffunction-sections -fdata-sections)
