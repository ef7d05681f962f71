#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ccache.sh <ccache> <compiler> <argument>...: compiles through ccache.
#
# ccache takes a precompiled header that is there for one that the compilation uses, also where it is the result of an
# earlier compilation of the same header; it would then answer with what replaced that one, once. So it is removed first.
ccache=$1
shift
for argument in "$@"; do
  case $argument in
    *.gch) rm -f "$argument" ;;
  esac
done
# ccache caches users of a precompiled header only with these settings. They are safe: no source uses __TIME__.
CCACHE_SLOPPINESS=pch_defines,time_macros exec "$ccache" "$@"
