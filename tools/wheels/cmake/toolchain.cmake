# SPDX-License-Identifier: Apache-2.0
# Compiles for the wheel of RESHARD_WHEEL_ARCH with what tools/wheels/third_party.sh put into RESHARD_WHEEL_TOOLS.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES RESHARD_WHEEL_ARCH RESHARD_WHEEL_TOOLS)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${RESHARD_WHEEL_ARCH})
set(CMAKE_C_COMPILER ${RESHARD_WHEEL_TOOLS}/bin/cc)
set(CMAKE_CXX_COMPILER ${RESHARD_WHEEL_TOOLS}/bin/c++)
set(CMAKE_AR ${RESHARD_WHEEL_TOOLS}/bin/ar)
set(CMAKE_RANLIB ${RESHARD_WHEEL_TOOLS}/bin/ranlib)
# Smaller by its symbols, which nothing reads.
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
# zig has no precompiled headers.
set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)

# Libraries are those of the wheel, never of this machine.
set(CMAKE_PREFIX_PATH ${RESHARD_WHEEL_TOOLS}/prefix)
set(CMAKE_FIND_ROOT_PATH ${RESHARD_WHEEL_TOOLS}/prefix)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
