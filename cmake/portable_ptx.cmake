# SPDX-License-Identifier: Apache-2.0
# Makes of PTX, which a newer nvcc wrote, PTX of ISA 7.8, which drivers from 525 on know: writes the file PTX
# to the file OUTPUT. What kernels use is in ISA 7.8; a hint on loads, which they are written with since 9.0, is left out.
file(READ ${PTX} text)
string(REGEX REPLACE "\n\\.version [0-9.]+\n" "\n.version 7.8\n" text "${text}")
string(REGEX REPLACE "\t\\.pragma \"used_bytes_mask [0-9a-fx]+\";\n" "" text "${text}")
file(WRITE ${OUTPUT} "${text}")
