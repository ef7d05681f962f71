# SPDX-License-Identifier: Apache-2.0
# reshard_printed(<file> <argument>...): what the program prints with these arguments becomes a file of the build folder,
# and of the prefix that `cmake --install` fills. The property RESHARD_PRINTED lists such files.
function(reshard_printed file)
  get_filename_component(folder ${file} DIRECTORY)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/${folder})
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/${file}
    COMMAND reshard_executable ${ARGN} > ${file} DEPENDS reshard_executable
    WORKING_DIRECTORY ${PROJECT_BINARY_DIR} COMMENT "Writing ${file}")
  install(FILES ${PROJECT_BINARY_DIR}/${file} DESTINATION ${folder})
  set_property(GLOBAL APPEND PROPERTY RESHARD_PRINTED ${PROJECT_BINARY_DIR}/${file})
endfunction()
