# SPDX-License-Identifier: Apache-2.0
# Rewrites PTX of a newer nvcc (the file PTX) as PTX of ISA 7.8 (the file OUTPUT), which drivers from 525 on know. The kernels
# use no newer instructions; the hint `used_bytes_mask` on loads, which nvcc adds since ISA 9.0, is left out.
file(READ ${PTX} text)
string(REGEX REPLACE "\n\\.version [0-9.]+\n" "\n.version 7.8\n" text "${text}")
string(REGEX REPLACE "\t\\.pragma \"used_bytes_mask [0-9a-fx]+\";\n" "" text "${text}")
file(WRITE ${OUTPUT} "${text}")
