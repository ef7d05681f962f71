# SPDX-License-Identifier: Apache-2.0
add_library(tl::expected INTERFACE IMPORTED)
target_include_directories(tl::expected INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../../../include)
