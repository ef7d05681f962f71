#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks wheels: their tags and version, what is in them, and what their programs and libraries need of a system.

    tools/wheels/check.py WHEEL ...

Prints a line for each wheel. Ends with 1 and says what is wrong if one has a fault. Needs pyelftools.
"""

import io
import pathlib
import re
import sys
import zipfile

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = pathlib.Path(__file__).parents[2]
MOST_BYTES = 15_000_000
GLIBC = (2, 28)
TAGS = re.compile(r"reshard-(?P<version>[^-]+)-(cp310-cp310|cp311-cp311|cp312-abi3)-manylinux_2_28_(?P<arch>x86_64|aarch64)\.whl")
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
#: The parts of others that are compiled in, whose licences come with the wheel.
PARTS = {"libsodium", "zlib", "xxhash", "fmtlib", "nlohmann-json3-dev", "libcli11-dev", "libexpected-dev", "libcxx"}
#: Of glibc, which every system has.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
#: What the transports load of a system that has it: the module and its library.
TRANSPORTS = {
  "mpi_openmpi": {"libmpi.so.40"},
  "mpi_mpich": {"libmpich.so.12"},
  "ucx": {"libucp.so.0", "libucs.so.0"},
  "nccl": set(),
  "nvshmem": set(),
}


def project_version() -> str:
  return re.search(r"project\(reshard VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def expected_files() -> set[str]:
  """The data files and Python modules of the sources, as names in the wheel."""
  found = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python/reshard").rglob("*.py")}
  for folder in ("configs", "clusters", "cards"):
    base = ROOT / "examples"
    found |= {f"reshard/{path.relative_to(base)}" for path in (base / folder).rglob("*") if path.is_file()}
  return found | {"reshard/py.typed", "reshard/_core.pyi", "reshard/reshard"} | {f"reshard/reshard_transport_{t}.so" for t in TRANSPORTS}


def elf_faults(name: str, content: bytes, arch: str) -> list[str]:
  """What is wrong with a program or library: its processor, what it needs of glibc, and other libraries."""
  elf = ELFFile(io.BytesIO(content))
  faults = []
  if elf["e_machine"] != MACHINES[arch]:
    faults.append(f"{name} is for {elf['e_machine']}")
  loads = TRANSPORTS.get(pathlib.PurePath(name).stem.removeprefix("reshard_transport_"), set())
  for section in elf.iter_sections():
    if isinstance(section, DynamicSection):
      needed = {tag.needed for tag in section.iter_tags("DT_NEEDED")}
      faults += [f"{name} needs {library}" for library in sorted(needed - SYSTEM - loads)]
      faults += [f"{name} does not load {library}" for library in sorted(loads - needed)]
    elif isinstance(section, GNUVerNeedSection):
      for _, versions in section.iter_versions():
        for version in versions:
          number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name)
          if not number or (int(number[1]), int(number[2])) > GLIBC:
            faults.append(f"{name} needs {version.name}")
  return faults


def faults_of(path: pathlib.Path) -> list[str]:
  name = TAGS.fullmatch(path.name)
  if not name:
    return ["its name has not the version and tags of a release"]
  faults = []
  if name["version"] != project_version():
    faults.append(f"its version is {name['version']}, that of CMakeLists.txt {project_version()}")
  if path.stat().st_size > MOST_BYTES:
    faults.append(f"it has {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
  with zipfile.ZipFile(path) as wheel:
    members = {info.filename: info for info in wheel.infolist()}
    faults += [f"{missing} is not in it" for missing in sorted(expected_files() - set(members))]
    if sum(re.fullmatch(r"reshard/_core\.(abi3|cpython-\d+-\w+-linux-gnu)\.so", member) is not None for member in members) != 1:
      faults.append("it has not one extension")
    licences = (pathlib.PurePath(member).name for member in members if member.startswith("reshard/licenses/"))
    licensed = {re.sub(r"(-zig)?-\d.*", "", name) for name in licences}
    faults += [f"the licence of {part} is not in it" for part in sorted(PARTS - licensed)]
    program = members.get("reshard/reshard")
    if program and not program.external_attr >> 16 & 0o111:
      faults.append("its program cannot be executed")
    entries = wheel.read(f"reshard-{name['version']}.dist-info/entry_points.txt").decode()
    if "reshard=reshard.__main__:main" not in entries.replace(" ", ""):
      faults.append("its program is not on PATH")
    for member in members:
      with wheel.open(member) as file:
        if file.read(4) == b"\x7fELF":
          faults += elf_faults(member, wheel.read(member), name["arch"])
  return faults


def main() -> int:
  wheels = [pathlib.Path(argument) for argument in sys.argv[1:]]
  if not wheels:
    sys.exit(__doc__)
  failed = False
  for wheel in wheels:
    faults = faults_of(wheel)
    failed |= bool(faults)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {'; '.join(faults) or 'whole'}")
  return int(failed)


if __name__ == "__main__":
  sys.exit(main())
