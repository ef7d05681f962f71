#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a release of reshard (docs/release.md).

    tools/release.py check                            the versions of all parts agree
    tools/release.py prepare VERSION                  writes the version into all parts, and closes the changelog's section
    tools/release.py assemble DIST PREFIX OUT         the folder OUT with all files of the release

DIST has the wheels and the source distribution, PREFIX is what `cmake --install` installed. Ends with 1 and one line for what is wrong.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
VERSION = re.compile(r"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)")
#: Where a version is written: the file, and the pattern with it as its second group.
PLACES = {
  "CMakeLists.txt": re.compile(r"(project\(reshard VERSION )([0-9.]+)( )"),
  "CITATION.cff": re.compile(r"(^version: )([0-9.]+)($)", re.MULTILINE),
}
UNRELEASED = "## [Unreleased]\n"
#: The licences of the parts of others in wheels; SPDX's names.
LICENCES = {
  "libsodium": "ISC",
  "zlib": "Zlib",
  "xxhash": "BSD-2-Clause",
  "fmtlib": "MIT",
  "nlohmann-json3-dev": "MIT",
  "libcli11-dev": "BSD-3-Clause",
  "libexpected-dev": "CC0-1.0",
  "libcxx": "Apache-2.0 WITH LLVM-exception",
}


def stop(why):
  sys.exit(f"release: {why}")


def versions(root):
  """{file: the version that it states}."""
  found = {}
  for name, pattern in PLACES.items():
    match = pattern.search((root / name).read_text())
    found[name] = match[2] if match else stop(f"{name} states no version")
  return found


def project_version(root):
  """The version of all parts."""
  found = versions(root)
  if len(set(found.values())) != 1:
    stop("the versions differ: " + ", ".join(f"{name} has {version}" for name, version in found.items()))
  return next(iter(found.values()))


def notes_of(root, version):
  """The changelog's section of a version, without its heading; None if it has none."""
  text = (root / "CHANGELOG.md").read_text()
  match = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
  return match[1].strip() + "\n" if match else None


def prepare(root, version, today):
  """Writes a version into all parts, and closes the changelog's open section with it."""
  if not VERSION.fullmatch(version):
    stop(f"'{version}' is no version of three numbers")
  now = project_version(root)
  if tuple(map(int, version.split("."))) < tuple(map(int, now.split("."))) or notes_of(root, version) is not None:
    stop(f"{version} was released, or is before {now}")
  changelog = (root / "CHANGELOG.md").read_text()
  begin, found, rest = changelog.partition(UNRELEASED)
  if not found or not notes_of(root, "Unreleased").strip():
    stop("CHANGELOG.md has nothing under [Unreleased]")
  (root / "CHANGELOG.md").write_text(f"{begin}{UNRELEASED}\n## [{version}] - {today}\n{rest}")
  for name, pattern in PLACES.items():
    path = root / name
    path.write_text(pattern.sub(lambda match: match[1] + version + match[3], path.read_text(), count=1))


def expect_version(path, found, version):
  if found != version:
    stop(f"{path} is of version {found}, not {version}")


def metadata_version(text):
  match = re.search(r"^Version: (.+)$", text, re.MULTILINE)
  return match[1] if match else None


def check_dist(folder, version):
  """The wheels and the source distribution of a folder, which must be of this version."""
  wheels, sources = sorted(folder.glob("reshard-*.whl")), sorted(folder.glob("reshard-*.tar.gz"))
  if not wheels or len(sources) != 1:
    stop(f"{folder} has {len(wheels)} wheels and {len(sources)} source distributions; run make wheels")
  for path in wheels:
    with zipfile.ZipFile(path) as wheel:
      (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
      expect_version(path.name, metadata_version(wheel.read(name).decode()), version)
  with tarfile.open(sources[0]) as archive:
    (name,) = [name for name in archive.getnames() if re.fullmatch(r"[^/]+/PKG-INFO", name)]
    expect_version(sources[0].name, metadata_version(archive.extractfile(name).read().decode()), version)
  return [*wheels, *sources]


def check_prefix(prefix, version):
  """The installed program and the CMake package must be of this version."""
  said = subprocess.run([prefix / "bin/reshard", "--version"], capture_output=True, text=True, check=True).stdout.split()
  expect_version("bin/reshard", said[1], version)
  (config,) = prefix.glob("**/reshardConfigVersion.cmake")
  expect_version(config.name, re.search(r'PACKAGE_VERSION "([^"]+)"', config.read_text())[1], version)


def epoch():
  """The time that archives say: that of the last commit, or SOURCE_DATE_EPOCH."""
  if "SOURCE_DATE_EPOCH" in os.environ:
    return int(os.environ["SOURCE_DATE_EPOCH"])
  said = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False).stdout
  return int(said or 0)


def write_prefix(prefix, path, folder, time):
  """The prefix as an archive; equal contents give equal bytes."""

  def plain(member):
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = time
    return member

  with open(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed:
    with tarfile.open(mode="w", fileobj=packed) as archive:
      for member in sorted(prefix.rglob("*")):
        archive.add(member, f"{folder}/{member.relative_to(prefix)}", recursive=False, filter=plain)


def parts_of(wheel):
  """{name: version} of the parts of others in a wheel, which it names by their licences."""
  found = {}
  with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
      match = re.fullmatch(r"reshard/licenses/([a-z0-9-]+?)-(?:zig-)?(\d[^/]*?)(?:\.txt)?", name)
      if match:
        found[match[1]] = match[2]
  return found


def bill_of_materials(wheels, version, time):
  """What the files of the release are made of: SPDX 2.3."""
  parts = {}
  for wheel in wheels:
    parts |= parts_of(wheel)
  unknown = sorted(set(parts) - set(LICENCES))
  if unknown:
    stop(f"the licence of {unknown[0]}, a part of the wheels, is not known: name it in tools/release.py")
  packages = [("reshard", version, "Apache-2.0")] + [(name, parts[name], LICENCES[name]) for name in sorted(parts)]
  identity = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([packages, [digest_of(wheel) for wheel in wheels]]))
  return {
    "spdxVersion": "SPDX-2.3",
    "dataLicense": "CC0-1.0",
    "SPDXID": "SPDXRef-DOCUMENT",
    "name": f"reshard-{version}",
    "documentNamespace": f"urn:uuid:{identity}",
    "creationInfo": {
      "created": datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
      "creators": ["Tool: tools/release.py"],
    },
    "packages": [
      {
        "SPDXID": f"SPDXRef-{name}",
        "name": name,
        "versionInfo": of,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
      }
      for name, of, licence in packages
    ],
    "relationships": [
      {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-reshard"},
      *(
        {"spdxElementId": "SPDXRef-reshard", "relationshipType": "CONTAINS", "relatedSpdxElement": f"SPDXRef-{name}"}
        for name, _, _ in packages[1:]
      ),
    ],
  }


def digest_of(path):
  return hashlib.sha256(path.read_bytes()).hexdigest()


def system_name():
  """Of this machine, for the name of an archive: "debian12"."""
  found = platform.freedesktop_os_release()
  return found.get("ID", "linux") + found.get("VERSION_ID", "")


def assemble(root, dist, prefix, out):
  """Fills the folder, which must not exist. Nothing is left there if something is wrong."""
  version = project_version(root)
  notes = notes_of(root, version)
  if notes is None:
    stop(f"CHANGELOG.md has no section of {version}: tools/release.py prepare {version}")
  if out.exists():
    stop(f"{out} exists")
  files = check_dist(dist, version)
  check_prefix(prefix, version)
  time = epoch()
  bill = bill_of_materials([path for path in files if path.suffix == ".whl"], version, time)
  unfinished = out.with_name(out.name + ".unfinished")
  shutil.rmtree(unfinished, ignore_errors=True)
  unfinished.mkdir(parents=True)
  for path in files:
    shutil.copy2(path, unfinished)
  name = f"reshard-{version}-cpp-{system_name()}-{platform.machine()}"
  write_prefix(prefix, unfinished / f"{name}.tar.gz", name, time)
  (unfinished / f"reshard-{version}.spdx.json").write_text(json.dumps(bill, indent=1) + "\n")
  (unfinished / f"reshard-{version}-notes.md").write_text(notes)
  sums = io.StringIO()
  for path in sorted(unfinished.iterdir()):
    sums.write(f"{digest_of(path)}  {path.name}\n")
  (unfinished / "SHA256SUMS").write_text(sums.getvalue())
  unfinished.rename(out)
  for path in sorted(out.iterdir()):
    print(f"{path.stat().st_size:>12,}  {path.name}")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  commands = parser.add_subparsers(dest="command", required=True)
  commands.add_parser("check")
  commands.add_parser("prepare").add_argument("version")
  assembled = commands.add_parser("assemble")
  for name in ("dist", "prefix", "out"):
    assembled.add_argument(name, type=pathlib.Path)
  parser.add_argument("--root", type=pathlib.Path, default=ROOT, help=argparse.SUPPRESS)
  given = parser.parse_args()
  if given.command == "check":
    print(project_version(given.root))
  elif given.command == "prepare":
    prepare(given.root, given.version, datetime.date.today().isoformat())
  else:
    assemble(given.root, given.dist, given.prefix, given.out)


if __name__ == "__main__":
  main()
