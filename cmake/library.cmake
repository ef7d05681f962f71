# SPDX-License-Identifier: Apache-2.0
# The library that other projects embed, static and shared: the objects of all rooms. `reshard::reshard` names it in this
# build, in a project that adds this one as a subdirectory, and after find_package(reshard). It is the static library,
# or the shared one with BUILD_SHARED_LIBS.
include(GNUInstallDirs)

get_property(room_objects GLOBAL PROPERTY RESHARD_ROOMS)
list(TRANSFORM room_objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")

# reshard_library(<target> <kind> <EXCLUDE_FROM_ALL or nothing>)
function(reshard_library target kind)
  add_library(${target} ${kind} ${ARGN} ${room_objects})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME reshard EXPORT_NAME ${kind}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # Our public headers include tl::expected; only our objects call the other libraries.
  target_link_libraries(${target} PUBLIC tl::expected
    PRIVATE fmt::fmt ZLIB::ZLIB Threads::Threads ${CMAKE_DL_LIBS}
    $<BUILD_INTERFACE:${XXHASH_LIBRARY}> $<BUILD_INTERFACE:${SODIUM_LIBRARY}>
    $<INSTALL_INTERFACE:xxhash> $<INSTALL_INTERFACE:sodium>)
endfunction()

set(shared_unless_asked EXCLUDE_FROM_ALL)
set(static_unless_asked EXCLUDE_FROM_ALL)
if(RESHARD_INSTALL OR BUILD_SHARED_LIBS)
  set(shared_unless_asked "")
endif()
if(RESHARD_INSTALL OR NOT BUILD_SHARED_LIBS)
  set(static_unless_asked "")
endif()
reshard_library(reshard_static STATIC ${static_unless_asked})
reshard_library(reshard_shared SHARED ${shared_unless_asked})
if(RESHARD_SANITIZE)
  target_link_options(reshard_shared PRIVATE -fsanitize=${RESHARD_SANITIZE})
endif()
if(BUILD_SHARED_LIBS)
  add_library(reshard::reshard ALIAS reshard_shared)
else()
  add_library(reshard::reshard ALIAS reshard_static)
endif()

if(NOT RESHARD_INSTALL)
  return()
endif()

# The public headers: the front doors and what they include, directly or not.
function(reshard_public_headers header found)
  list(APPEND ${found} ${header})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} lines REGEX "^#include \"reshard/")
  foreach(line ${lines})
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" next "${line}")
    if(NOT next IN_LIST ${found})
      reshard_public_headers(${next} ${found})
    endif()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
  set(${found} "${${found}}" PARENT_SCOPE)
endfunction()
set(headers "")
reshard_public_headers(reshard/reshard.h headers)
reshard_public_headers(reshard/megatron.h headers)
reshard_public_headers(reshard/dtensor.h headers)
list(REMOVE_DUPLICATES headers)
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()

include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/reshard)
install(TARGETS reshard_static reshard_shared EXPORT reshard
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT reshard NAMESPACE reshard:: FILE reshardTargets.cmake DESTINATION ${package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/reshardConfig.cmake.in
  ${PROJECT_BINARY_DIR}/generated/reshardConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/reshardConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH up_from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/reshard.pc.in ${PROJECT_BINARY_DIR}/generated/reshard.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/reshardConfig.cmake
  ${PROJECT_BINARY_DIR}/generated/reshardConfigVersion.cmake DESTINATION ${package_folder})
install(FILES ${PROJECT_BINARY_DIR}/generated/reshard.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/configs ${PROJECT_SOURCE_DIR}/examples/clusters
  ${PROJECT_SOURCE_DIR}/examples/cards DESTINATION share/reshard)
