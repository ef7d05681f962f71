#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the site of docs/, of the public headers of C++, and of the docstrings of Python. Warnings are errors: a link or a picture
# that leads nowhere, a heading that is missing, C++ that cannot be read.
#
#   tools/site/build.sh <folder of the site> <Python environment with Sphinx> <Python environment with reshard>
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$(realpath -m "$1")
sphinx=$(realpath "$2")
package=$(realpath "$3")
work=$out.work
rm -rf "$out" "$work"
mkdir -p "$out" "$work"

python3 "$here/pages.py" "$work/pages"
(cd "$root" && doxygen - >"$work/doxygen.log" 2>&1 <<END
PROJECT_NAME = reshard
INPUT = reshard
FILE_PATTERNS = *.h
RECURSIVE = YES
EXCLUDE_PATTERNS = *_testutil.h
STRIP_FROM_PATH = $root
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
OUTPUT_DIRECTORY = $work
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
MACRO_EXPANSION = YES
FULL_PATH_NAMES = YES
END
)
python3 "$here/doxygen_xml.py" "$work/xml"
RESHARD_SITE_VERSION=$(sed -n 's/^project(reshard VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
RESHARD_SITE_XML=$work/xml
export RESHARD_SITE_VERSION RESHARD_SITE_XML
packages=$("$package/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONPATH=$packages "$sphinx/bin/python" -m sphinx -q -W --keep-going -j 2 -b html -c "$here" -d "$work/doctrees" "$work/pages" "$out"
echo "$out/index.html"
