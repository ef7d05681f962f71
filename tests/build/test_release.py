#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A release has all files of one version, or none.

  test_release.py <tools/release.py> <a program>   with stand-ins for wheels and what is installed
"""

import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

TOOL, PROGRAM = sys.argv[1:3]
PARTS = ("zlib-1.2.13.dfsg-1", "libcxx-zig-0.17.1", "nlohmann-json3-dev-3.11.2-2")


def run(root, *arguments, fails=None):
  """What the tool prints; `fails`: a part of the one line that it must end with."""
  command = [sys.executable, "-B", TOOL, "--root", root, *map(str, arguments)]
  done = subprocess.run(command, env=os.environ | {"SOURCE_DATE_EPOCH": "86400"}, capture_output=True, text=True, check=False)
  if fails is None:
    assert done.returncode == 0, done.stderr
  else:
    assert done.returncode == 1 and fails in done.stderr and done.stderr.count("\n") == 1, (fails, done.stderr)
  return done.stdout


def write_wheel(folder, version, said=None, parts=PARTS):
  with zipfile.ZipFile(folder / f"reshard-{version}-cp312-abi3-manylinux_2_28_x86_64.whl", "w") as wheel:
    wheel.writestr(zipfile.ZipInfo(f"reshard-{version}.dist-info/METADATA"), f"Name: reshard\nVersion: {said or version}\n")
    for part in parts:
      wheel.writestr(zipfile.ZipInfo(f"reshard/licenses/{part}.txt"), "a licence")


def write_sources(folder, version):
  text = f"Name: reshard\nVersion: {version}\n".encode()
  with tarfile.open(folder / f"reshard-{version}.tar.gz", "w:gz") as archive:
    member = tarfile.TarInfo(f"reshard-{version}/PKG-INFO")
    member.size = len(text)
    archive.addfile(member, io.BytesIO(text))


def write_prefix(folder, version):
  (folder / "bin").mkdir(parents=True)
  (folder / "lib/cmake/reshard").mkdir(parents=True)
  program = folder / "bin/reshard"
  program.write_text(f"#!/bin/sh\necho reshard {version}\n")
  program.chmod(0o755)
  (folder / "lib/cmake/reshard/reshardConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')


def sources_of(folder):
  """The files of the project that state a version."""
  source = pathlib.Path(TOOL).parents[1]
  for name in ("CMakeLists.txt", "CITATION.cff", "CHANGELOG.md"):
    shutil.copy(source / name, folder)
  return folder


def check_versions(root):
  now = run(root, "check").strip()
  # The program of the build is of that version, too.
  assert subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.split()[1] == now
  citation = root / "CITATION.cff"
  text = citation.read_text()
  citation.write_text(text.replace(now, "9.9.9"))
  run(root, "check", fails=f"CMakeLists.txt has {now}, CITATION.cff has 9.9.9")
  citation.write_text(text)
  return now


def check_prepare(root, now):
  run(root, "prepare", "1.2", fails="'1.2' is no version of three numbers")
  run(root, "prepare", "0.0.1", fails=f"is before {now}")
  run(root, "prepare", "7.8.9")
  assert run(root, "check") == "7.8.9\n"
  assert "## [Unreleased]\n\n## [7.8.9] - 20" in (root / "CHANGELOG.md").read_text()
  run(root, "prepare", "7.8.9", fails="7.8.9 was released")
  run(root, "prepare", "7.9.0", fails="nothing under [Unreleased]")


def check_assemble(root, folder):
  dist, prefix, out = folder / "dist", folder / "prefix", folder / "out"
  dist.mkdir()
  run(root, "assemble", dist, prefix, out, fails="0 wheels and 0 source distributions")
  write_wheel(dist, "7.8.9", said="7.8.8")
  write_sources(dist, "7.8.9")
  write_prefix(prefix, "7.8.9")
  run(root, "assemble", dist, prefix, out, fails="whl is of version 7.8.8, not 7.8.9")
  write_wheel(dist, "7.8.9", parts=[*PARTS, "other-1.0"])
  run(root, "assemble", dist, prefix, out, fails="the licence of other, a part of the wheels, is not known")
  write_wheel(dist, "7.8.9")
  shutil.rmtree(prefix)
  write_prefix(prefix, "7.8.7")
  run(root, "assemble", dist, prefix, out, fails="bin/reshard is of version 7.8.7, not 7.8.9")
  assert not out.exists()
  shutil.rmtree(prefix)
  write_prefix(prefix, "7.8.9")
  printed = run(root, "assemble", dist, prefix, out)
  assert printed.count("\n") == 6, printed
  subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=out, check=True)
  bill = json.loads((out / "reshard-7.8.9.spdx.json").read_text())
  assert bill["spdxVersion"] == "SPDX-2.3" and bill["creationInfo"]["created"] == "1970-01-02T00:00:00Z"
  assert [(p["name"], p["versionInfo"], p["licenseConcluded"]) for p in bill["packages"]] == [
    ("reshard", "7.8.9", "Apache-2.0"),
    ("libcxx", "0.17.1", "Apache-2.0 WITH LLVM-exception"),
    ("nlohmann-json3-dev", "3.11.2-2", "MIT"),
    ("zlib", "1.2.13.dfsg-1", "Zlib"),
  ]
  assert (out / "reshard-7.8.9-notes.md").read_text().startswith("### Added\n")
  (package,) = out.glob("reshard-7.8.9-cpp-*.tar.gz")
  with tarfile.open(package) as archive:
    (program,) = [member for member in archive if member.name.endswith("/bin/reshard")]
    assert program.mode & 0o111 and program.mtime == 86400
  run(root, "assemble", dist, prefix, out, fails="out exists")
  run(root, "assemble", dist, prefix, folder / "again")
  assert (folder / "again/SHA256SUMS").read_bytes() == (out / "SHA256SUMS").read_bytes()


def main():
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "root").mkdir()
    root = sources_of(folder / "root")
    check_prepare(root, check_versions(root))
    check_assemble(root, folder)


if __name__ == "__main__":
  main()
