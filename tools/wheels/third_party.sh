#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The compiler and the libraries of others that a wheel contains, for one architecture:
#
#   tools/wheels/third_party.sh <zig> <folder> x86_64|aarch64
#
# <folder>/bin has cc, c++, ar and ranlib: zig, which brings the headers and stubs of glibc 2.28 and its own libc++. It
# would write debug information, of which a wheel has no use.
# <folder>/prefix has libsodium, zlib, xxHash and fmt as static libraries, compiled from Debian's source packages, and
# what is headers only (nlohmann/json, CLI11, tl::expected) as it is on this machine, with CMake files for all. Nothing
# is done twice.
set -euo pipefail
zig=$1 arch=$3
glibc=2.28
here=$(dirname "$(realpath "$0")")
mkdir -p "$2"
folder=$(realpath "$2")
prefix=$folder/prefix
sources=$(dirname "$folder")/sources
stamp=$prefix/.of-$("$zig" version)-$(sha256sum "$0" | cut -c1-12)

mkdir -p "$folder/bin"
for tool in cc c++; do
  printf '#!/bin/sh\nexec "%s" %s -target %s-linux-gnu.%s -g0 "$@"\n' "$zig" $tool "$arch" $glibc
done | split -l 2 --filter="cat > \$FILE" - "$folder/bin/part."
mv "$folder/bin/part.aa" "$folder/bin/cc"
mv "$folder/bin/part.ab" "$folder/bin/c++"
for tool in ar ranlib; do
  printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" $tool >"$folder/bin/$tool"
done
chmod +x "$folder"/bin/*
[ ! -e "$stamp" ] || exit 0

log=$folder/third_party.log
: >"$log"
trap '[ $? = 0 ] || { tail -n 20 "$log" >&2; echo "third_party: failed; all of it: $log" >&2; }' EXIT

# The sources of a Debian package, checked by apt, without a change of this machine's lists.
fetch() {
  local lists=$sources/lists
  mkdir -p "$lists/partial"
  local options=(-o Dir::Etc::sourcelist="$sources/of.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$lists"
    -o APT::Sandbox::User=root)
  if [ ! -e "$sources/of.sources" ]; then
    local list=/etc/apt/sources.list.d/debian.sources
    [ -e $list ] || { echo "third_party: no $list, which names a server of Debian's sources" >&2; return 1; }
    sed 's/^Types: .*/Types: deb-src/' $list >"$sources/of.sources"
  fi
  local missing=()
  for name in "$@"; do compgen -G "$sources/$name-[0-9]*/debian" >/dev/null || missing+=("$name"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  (cd "$sources" && apt-get "${options[@]}" -qq update && apt-get "${options[@]}" -qq source "${missing[@]}") >>"$log" 2>&1
}

source_of() { (cd "$sources/$1"-[0-9]*/ && pwd); }

static_library() { # <name> <source>... : also with options of the compiler
  local name=$1 objects=$folder/objects/$1
  shift
  rm -rf "$objects" && mkdir -p "$objects"
  (cd "$objects" && "$folder/bin/cc" -O2 -fPIC -ffunction-sections -c "$@") >>"$log" 2>&1
  rm -f "$prefix/lib/lib$name.a"
  "$folder/bin/ar" rcs "$prefix/lib/lib$name.a" "$objects"/*.o
}

mkdir -p "$sources"
fetch libsodium zlib xxhash fmtlib
rm -rf "$prefix" && mkdir -p "$prefix"/{include,lib/cmake}

xxhash=$(source_of xxhash)
static_library xxhash "$xxhash/xxhash.c"
cp "$xxhash"/{xxhash.h,xxh3.h} "$prefix/include/"
zlib=$(source_of zlib)
static_library z -D_LARGEFILE64_SOURCE=1 -DHAVE_HIDDEN -DHAVE_UNISTD_H "$zlib"/{adler32,crc32,zutil}.c
cp "$zlib"/{zlib.h,zconf.h} "$prefix/include/"
fmt=$(source_of fmtlib)
rm -rf "$folder/objects/fmt" && mkdir -p "$folder/objects/fmt"
(cd "$folder/objects/fmt" && "$folder/bin/c++" -std=c++20 -O2 -fPIC -ffunction-sections -I"$fmt/include" -c "$fmt"/src/{format,os}.cc) >>"$log" 2>&1
"$folder/bin/ar" rcs "$prefix/lib/libfmt.a" "$folder"/objects/fmt/*.o
cp -r "$fmt/include/fmt" "$prefix/include/"

# libsodium takes a minute: it is kept until the compiler changes.
sodium=$(source_of libsodium)
built_sodium=$folder/$(basename "$sodium")-zig-$("$zig" version)
if [ ! -e "$built_sodium" ]; then
  rm -rf "$folder/objects/sodium" && mkdir -p "$folder/objects/sodium"
  [ -e "$sodium/.configurable" ] || (cd "$sodium" && autoreconf -fi && touch .configurable) >>"$log" 2>&1
  (cd "$folder/objects/sodium" &&
    CC="$folder/bin/cc" AR="$folder/bin/ar" RANLIB="$folder/bin/ranlib" CFLAGS='-O2 -ffunction-sections' \
      "$sodium/configure" --host="$arch-linux-gnu" --prefix="$built_sodium.part" --disable-shared --with-pic --disable-dependency-tracking &&
    make -j"${JOBS:-$(nproc)}" -C src/libsodium install) >>"$log" 2>&1
  mv "$built_sodium.part" "$built_sodium"
fi
cp -r "$built_sodium/include/." "$prefix/include/"
cp "$built_sodium/lib/libsodium.a" "$prefix/lib/"

# Open MPI, MPICH and UCX are called through C interfaces that stay as they are. A module names their library, and the
# system that loads it has it: here are their headers, and a library without content in place of each.
placeholder() { # <folder> <library> <soname>
  mkdir -p "$1"
  "$folder/bin/cc" -shared -Wl,-soname,"$3" -x c /dev/null -o "$1/lib$2.so"
}
mpi() { # <name> <folder of headers> <library> <soname>
  mkdir -p "$prefix/$1" "$prefix/bin"
  cp -r "$2" "$prefix/$1/include"
  placeholder "$prefix/$1/lib" "$3" "$4"
  printf '#!/bin/sh\necho c++ -I%s -L%s\n' "$prefix/$1/include" "$prefix/$1/lib" >"$prefix/bin/mpicxx.$1"
  chmod +x "$prefix/bin/mpicxx.$1"
}
system=/usr/include/$(gcc -print-multiarch)
mpi openmpi "/usr/lib/$(gcc -print-multiarch)/openmpi/include" mpi libmpi.so.40
mpi mpich "$system/mpich" mpich libmpich.so.12
for header in ucm ucp ucs uct; do cp -r "/usr/include/$header" "$prefix/include/"; done
placeholder "$prefix/lib" ucp libucp.so.0
placeholder "$prefix/lib" ucs libucs.so.0

for header in nlohmann CLI tl; do cp -r "/usr/include/$header" "$prefix/include/"; done
# The licences go into the wheel, and their names into the release's list of components: NAME-VERSION.txt.
license() { install -D -m 644 "$2" "$prefix/licenses/$1.txt"; }
for source in libsodium zlib xxhash fmtlib; do
  debian=$(source_of $source)/debian
  license "$source-$(sed -n '1s/.*(\([0-9]*:\)*\(.*\)).*/\2/p' "$debian/changelog")" "$debian/copyright"
done
for package in nlohmann-json3-dev libcli11-dev libexpected-dev; do
  license "$package-$(dpkg-query -W -f '${Version}' $package)" "/usr/share/doc/$package/copyright"
done
license "libcxx-zig-$("$zig" version)" "$(dirname "$zig")/lib/libcxx/LICENSE.TXT"
for config in "$here"/cmake/*-config.cmake; do
  install -D -m 644 -t "$prefix/lib/cmake/$(basename "$config" -config.cmake)" "$config"
done
rm -rf "$folder/objects"
touch "$stamp"
