#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds examples/cpp as a user's project does, runs each program, and checks what it prints.

  test_embed.py --source FOLDER --build FOLDER --link installed|pkg-config|subdirectory
                [--build-type Debug] [--compiler clang++-19]

`installed` links the static library, then the shared one, and `pkg-config` some of the programs. Compilers run through ccache where there is one, in a folder
that is always the same.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

PRINTS = {
  "plan": [r"^qwen3-30b-a3b: \d+ bytes to deliver", r"no plan does better than \d+"],
  "refit_in_process": [r"^\d+ bytes in [\d.]+ ms$", r"^every tensor is the same on both sides$"],
  "own_layout": [r"^rank 3 of 4 holds engine/\S+ \[\d+, \d+\]$", r"bytes to deliver"],
  "xfer_tensors": [r"^rank 2 received \d+ bytes: first row 3f80, last row 4000$", r"^rank 3 received"],
  "megatron_swap": [r"^step 3: the engine has 1296 elements, 0 wrong$"],
  "quantised_target": [r"^rank 0: \d+ bytes of BF16 became \d+ of MXFP8", r"^rank 1: \d+ bytes of BF16"],
}


PROGRAMS = [*PRINTS, "refit_processes", "convert_checkpoint"]
# Programs that are built with pkg-config's flags: one for each header that users include.
BY_HAND = ["plan", "megatron_swap", "xfer_tensors"]


def run(command, **more):
  done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **more)
  if done.returncode != 0:
    sys.exit(f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
  return done.stdout


def check(program, text, patterns):
  for pattern in patterns:
    if not re.search(pattern, text, re.MULTILINE):
      sys.exit(f"{program} printed no line like {pattern}:\n{text}")


def check_processes(program, folder, environment):
  """The four ranks of the example, as processes that meet at a port of this host."""
  secret = folder / "secret"
  secret.write_text("0123456789abcdef of this test")
  secret.chmod(0o600)
  # Below those that the system gives to whoever asks for any, which another test may get first.
  url = f"tcp://127.0.0.1:{random.randrange(20_000, 32_768)}"
  ranks = [
    subprocess.Popen([program, str(rank), url, secret], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                     text=True, env=environment)
    for rank in range(4)
  ]
  outputs = [rank.communicate()[0] for rank in ranks]
  for number, (rank, output) in enumerate(zip(ranks, outputs)):
    if rank.returncode != 0:
      sys.exit(f"rank {number} ended with {rank.returncode}:\n{output}")
  for number in (2, 3):
    wanted = [rf"^rank {number} serves version {step} \(whole\), first byte {step}$" for step in (1, 20)]
    check(program, outputs[number], wanted)


def builds(arguments, folder):
  """Configures and builds the examples; the folders with their programs."""
  if arguments.link == "subdirectory":
    out = folder / "build"
    configure(arguments, out, f"-DRESHARD_SOURCE={arguments.source}")
    for target in run(["ninja", "-C", out, "-t", "targets", "all"]).splitlines():
      if "_tests:" in target or target.startswith(("bin/reshard:", "install:")):
        sys.exit(f"as a subdirectory reshard brings what its user did not ask for: {target}")
    run(["ninja", "-C", out, *PROGRAMS])
    yield out
    return
  prefix = folder / "prefix"
  run(["cmake", "--install", arguments.build, "--prefix", prefix])
  check_headers(arguments.source, prefix)
  check_printed(prefix)
  if arguments.link == "pkg-config":
    yield build_by_hand(arguments, prefix, folder / "build")
    return
  for shared in ("OFF", "ON"):
    out = folder / f"build-shared-{shared}"
    configure(arguments, out, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DBUILD_SHARED_LIBS={shared}")
    run(["ninja", "-C", out, *PROGRAMS])
    yield out


def configure(arguments, out, *more):
  command = ["cmake", "-G", "Ninja", "-S", f"{arguments.source}/examples/cpp", "-B", out,
             f"-DCMAKE_BUILD_TYPE={arguments.build_type}", *more]
  if arguments.compiler:
    command.append(f"-DCMAKE_CXX_COMPILER={arguments.compiler}")
  if shutil.which("ccache"):
    command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
  run(command)


def build_by_hand(arguments, prefix, out):
  """Without CMake: the flags that pkg-config says."""
  settings = {**os.environ, "PKG_CONFIG_PATH": str(next(prefix.rglob("reshard.pc")).parent)}

  def said(*what):
    return run(["pkg-config", *what, "reshard"], env=settings).split()

  compiler = ["ccache"] if shutil.which("ccache") else []
  compiler.append(arguments.compiler or "c++")
  out.mkdir()
  for program in BY_HAND:
    source, compiled = f"{arguments.source}/examples/cpp/{program}.cc", out / f"{program}.o"
    run([*compiler, "-c", source, "-o", compiled, *said("--cflags")])
    run([*compiler, compiled, "-o", out / program, *said("--libs"), f"-Wl,-rpath,{said('--variable=libdir')[0]}"])
  return out


def check_printed(prefix):
  """The manual page and the completions are those that the installed program prints."""
  for file, words in {
    "man/man1/reshard.1": ["man"],
    "bash-completion/completions/reshard": ["completion", "bash"],
    "zsh/site-functions/_reshard": ["completion", "zsh"],
    "fish/vendor_completions.d/reshard.fish": ["completion", "fish"],
  }.items():
    if (prefix / "share" / file).read_text() != run([prefix / "bin" / "reshard", *words]):
      sys.exit(f"share/{file} is not what `reshard {' '.join(words)}` prints")


def check_headers(source, prefix):
  """Only public headers are installed, and all of them are used from there."""
  installed = {str(path.relative_to(prefix / "include")) for path in (prefix / "include").rglob("*.h")}
  internal = [name for name in installed if name.endswith(("_testutil.h", "_kernels.h"))]
  missing = {"reshard/reshard.h", "reshard/megatron.h", "reshard/dtensor.h"} - installed
  if missing or internal:
    sys.exit(f"installed headers are not the public ones: {internal or missing}")


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--source", required=True)
  parser.add_argument("--build", required=True)
  parser.add_argument("--link", required=True, choices=["installed", "pkg-config", "subdirectory"])
  parser.add_argument("--build-type", default="Release")
  parser.add_argument("--compiler", default="")
  arguments = parser.parse_args()
  if arguments.compiler and not shutil.which(arguments.compiler):
    sys.exit(f"{arguments.compiler} is not installed")
  # An installed library must find its example configs beside it; a static one knows its sources.
  environment = {key: value for key, value in os.environ.items() if not key.startswith("RESHARD_")}
  folder = pathlib.Path(arguments.build, "embed", "-".join(filter(None, [arguments.link, arguments.build_type, arguments.compiler])))
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  for out in builds(arguments, folder):
    by_hand = arguments.link == "pkg-config"
    for program in BY_HAND if by_hand else PRINTS:
      check(program, run([out / program], env=environment), PRINTS[program])
    if by_hand:
      continue
    check_processes(out / "refit_processes", folder, environment)
    with tempfile.TemporaryDirectory() as checkpoints:
      check("convert_checkpoint", run([out / "convert_checkpoint", checkpoints], env=environment),
            [r"^\d+ bytes for 4 ranks in 4 files$", r"^423 tensors agree in every bit, 0 differ$"])
  shutil.rmtree(folder)


if __name__ == "__main__":
  main()
