# SPDX-License-Identifier: Apache-2.0
# The transports that need an external library. Each becomes a loadable module beside the program, if its library is
# found (reshard/transport/module.h explains why). reshard_transport reports the result as built_modules().
#
#   RESHARD_WITH_MPI, _GLOO, _UCX, _NCCL, _NVSHMEM   AUTO: build it if its library is found; ON: fail to
#                                                    configure without it; OFF: leave it out
foreach(transport MPI GLOO UCX NCCL NVSHMEM)
  set(RESHARD_WITH_${transport} AUTO CACHE STRING "Build the transport: AUTO, ON or OFF")
  set_property(CACHE RESHARD_WITH_${transport} PROPERTY STRINGS AUTO ON OFF)
endforeach()
set(RESHARD_MODULE_ROWS "")
add_custom_target(reshard_modules)

# reshard_transport_module(<name> TRANSPORT t LIBRARY "what it is" PACKAGE "what brings it" FOUND <bool>
#                          INCLUDES ... LIBS ...)
#
# The module reshard_transport_<name>.so of reshard/transport/<t>/*.cc, if FOUND and not switched off,
# and its row in built_modules(). With ON_GPU it is reshard/gpu_transport/<t>/module.cc and the room gpu_transport,
# which load their libraries at run time.
function(reshard_transport_module name)
  cmake_parse_arguments(M "ON_GPU" "TRANSPORT;LIBRARY;PACKAGE;FOUND" "INCLUDES;LIBS" ${ARGN})
  string(TOUPPER ${M_TRANSPORT} option)
  set(dir ${PROJECT_SOURCE_DIR}/reshard/transport/${M_TRANSPORT})
  set(room reshard_transport)
  set(pattern *.cc)
  if(M_ON_GPU)
    set(dir ${PROJECT_SOURCE_DIR}/reshard/gpu_transport/${M_TRANSPORT})
    set(room reshard_gpu_transport)
    set(pattern module.cc)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/${pattern})
  file(GLOB not_of_it CONFIGURE_DEPENDS ${dir}/*_test.cc ${dir}/*_bench.cc ${dir}/*_testutil.cc)
  list(REMOVE_ITEM sources ${not_of_it} "")
  set(built false)
  set(missing "")
  if(NOT sources)
    set(missing "not part of this build yet: needs ${M_LIBRARY}")
  elseif(RESHARD_WITH_${option} STREQUAL OFF)
    set(missing "left out of this build by RESHARD_WITH_${option}=OFF")
  elseif(NOT M_FOUND)
    set(missing "not in this build: it was made without ${M_LIBRARY} (${M_PACKAGE})")
  else()
    set(built true)
    set(target reshard_transport_${name})
    add_library(${target} MODULE ${sources})
    target_include_directories(${target} SYSTEM PRIVATE ${M_INCLUDES})
    target_link_libraries(${target} PRIVATE ${room} fmt::fmt ${M_LIBS} reshard_flags)
    # We use MPI's C API; the deprecated C++ bindings would need further libraries.
    if(M_TRANSPORT STREQUAL mpi)
      target_compile_definitions(${target} PRIVATE OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
    endif()
    # For a wheel the library is a placeholder without symbols (tools/wheels/third_party.sh), needed nevertheless.
    if(RESHARD_WHEEL_ARCH)
      target_link_options(${target} PRIVATE -Wl,--no-as-needed)
    elseif(NOT RESHARD_SANITIZE)
      target_link_options(${target} PRIVATE -Wl,-z,defs)
    endif()
    target_link_options(${target} PRIVATE -Wl,--gc-sections
      -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/module_symbols.map)
    set_target_properties(${target} PROPERTIES
      PREFIX "" SUFFIX .so NO_SONAME TRUE
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN TRUE
      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/module_symbols.map
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
    if(RESHARD_INSTALL)
      install(TARGETS ${target} LIBRARY DESTINATION lib/reshard)
    endif()
    add_dependencies(reshard_modules ${target})
    set_property(GLOBAL APPEND PROPERTY RESHARD_BUILT_MODULES ${target})
  endif()
  string(APPEND RESHARD_MODULE_ROWS
    "    {\"${M_TRANSPORT}\", \"${name}\", ${built}, \"${missing}\"},\n")
  set(RESHARD_MODULE_ROWS "${RESHARD_MODULE_ROWS}" PARENT_SCOPE)
  if(RESHARD_WITH_${option} STREQUAL ON AND NOT built)
    set_property(GLOBAL APPEND PROPERTY RESHARD_MISSING_${option} "${name}: ${missing}")
  elseif(built)
    set_property(GLOBAL APPEND PROPERTY RESHARD_FOUND_${option} ${name})
  endif()
endfunction()

# find_package(MPI) finds one MPI library; a machine may have both.
# reshard_find_mpi(<prefix> <compiler wrapper> <library>)
function(reshard_find_mpi prefix wrapper library)
  find_program(${prefix}_WRAPPER ${wrapper})
  set(${prefix}_FOUND FALSE PARENT_SCOPE)
  if(NOT ${prefix}_WRAPPER)
    return()
  endif()
  execute_process(COMMAND ${${prefix}_WRAPPER} -show
    OUTPUT_VARIABLE line ERROR_QUIET RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    return()
  endif()
  separate_arguments(words UNIX_COMMAND "${line}")
  set(includes ${words})
  list(FILTER includes INCLUDE REGEX "^-I")
  list(TRANSFORM includes REPLACE "^-I" "")
  set(folders ${words})
  list(FILTER folders INCLUDE REGEX "^-L")
  list(TRANSFORM folders REPLACE "^-L" "")
  find_library(${prefix}_LIBRARY ${library} HINTS ${folders})
  if(${prefix}_LIBRARY)
    set(${prefix}_FOUND TRUE PARENT_SCOPE)
    set(${prefix}_INCLUDES ${includes} PARENT_SCOPE)
  endif()
endfunction()

# Some systems have only the plain wrapper `mpicxx`: find out which library it belongs to.
find_program(RESHARD_MPICXX mpicxx)
set(plain_openmpi "")
set(plain_mpich "")
if(RESHARD_MPICXX)
  execute_process(COMMAND ${RESHARD_MPICXX} -show OUTPUT_VARIABLE plain ERROR_QUIET)
  if(plain MATCHES "-lmpich")
    set(plain_mpich mpicxx)
  elseif(plain MATCHES "-lmpi")
    set(plain_openmpi mpicxx)
  endif()
endif()
reshard_find_mpi(RESHARD_OPENMPI "mpicxx.openmpi;${plain_openmpi}" mpi)
reshard_find_mpi(RESHARD_MPICH "mpicxx.mpich;${plain_mpich}" mpich)
find_path(RESHARD_GLOO_INCLUDE gloo/context.h)
find_library(RESHARD_GLOO_LIBRARY gloo)
find_path(RESHARD_UCX_INCLUDE ucp/api/ucp.h)
find_library(RESHARD_UCP_LIBRARY ucp)
find_library(RESHARD_UCS_LIBRARY ucs)

set(gloo_found FALSE)
if(RESHARD_GLOO_INCLUDE AND RESHARD_GLOO_LIBRARY)
  set(gloo_found TRUE)
endif()
set(ucx_found FALSE)
if(RESHARD_UCX_INCLUDE AND RESHARD_UCP_LIBRARY AND RESHARD_UCS_LIBRARY)
  set(ucx_found TRUE)
endif()
reshard_transport_module(mpi_openmpi TRANSPORT mpi LIBRARY "Open MPI" PACKAGE "Debian: libopenmpi-dev"
  FOUND ${RESHARD_OPENMPI_FOUND} INCLUDES ${RESHARD_OPENMPI_INCLUDES} LIBS ${RESHARD_OPENMPI_LIBRARY})
reshard_transport_module(mpi_mpich TRANSPORT mpi LIBRARY "MPICH" PACKAGE "Debian: libmpich-dev"
  FOUND ${RESHARD_MPICH_FOUND} INCLUDES ${RESHARD_MPICH_INCLUDES} LIBS ${RESHARD_MPICH_LIBRARY})
reshard_transport_module(gloo TRANSPORT gloo LIBRARY "Gloo" PACKAGE "Debian: libgloo-dev"
  FOUND ${gloo_found} INCLUDES ${RESHARD_GLOO_INCLUDE} LIBS ${RESHARD_GLOO_LIBRARY})
reshard_transport_module(ucx TRANSPORT ucx LIBRARY "UCX" PACKAGE "Debian: libucx-dev"
  FOUND ${ucx_found} INCLUDES ${RESHARD_UCX_INCLUDE} LIBS ${RESHARD_UCP_LIBRARY} ${RESHARD_UCS_LIBRARY})
reshard_transport_module(nccl ON_GPU TRANSPORT nccl LIBRARY "NCCL" PACKAGE "the wheel nvidia-nccl-cu13" FOUND TRUE)
reshard_transport_module(nvshmem ON_GPU TRANSPORT nvshmem LIBRARY "NVSHMEM" PACKAGE "the wheel nvidia-nvshmem-cu13"
  FOUND TRUE)

foreach(transport MPI GLOO UCX NCCL NVSHMEM)
  get_property(missing GLOBAL PROPERTY RESHARD_MISSING_${transport})
  get_property(found GLOBAL PROPERTY RESHARD_FOUND_${transport})
  if(missing AND NOT found)
    message(FATAL_ERROR "RESHARD_WITH_${transport}=ON, but ${missing}")
  endif()
endforeach()

configure_file(${PROJECT_SOURCE_DIR}/cmake/built_modules.cc.in
  ${PROJECT_BINARY_DIR}/generated/built_modules.cc @ONLY)
target_sources(reshard_transport PRIVATE ${PROJECT_BINARY_DIR}/generated/built_modules.cc)
