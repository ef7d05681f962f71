# SPDX-License-Identifier: Apache-2.0
add_library(fmt::fmt INTERFACE IMPORTED)
target_include_directories(fmt::fmt INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../../../include)
target_link_libraries(fmt::fmt INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../../../lib/libfmt.a)
