# SPDX-License-Identifier: Apache-2.0
"""Inputs that change under a running program, and what others leave where it writes.

Each case is drawn from a seed (RESHARD_FAULT_SEEDS, "0-9" say; default 0-3), which decides when the file
changes and how. The program stops itself at a named point (RESHARD_TEST_STOP) and goes on when the file has
changed, so that nothing depends on time.
"""

import functools
import mmap
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import program  # noqa: E402

PAGE = os.sysconf("SC_PAGESIZE")
SMALL_BUFFER = ("--buffer-bytes", "8kB")


def seeds():
  first, _, last = os.environ.get("RESHARD_FAULT_SEEDS", "0-3").partition("-")
  return range(int(first), int(last or first) + 1)


def for_each_seed(test):
  """Runs a test with the input as it was, nothing written, and numbers drawn from each seed."""

  @functools.wraps(test)
  def run(self):
    for seed in seeds():
      with self.subTest(seed=seed):
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.rmtree(self.partial, ignore_errors=True)
        self.file.unlink(missing_ok=True)
        self.file.write_bytes(self.whole)
        test(self, random.Random(f"{test.__name__}/{seed}"))

  return run


class Stopped:
  """A run of the program that has stopped itself at a point."""

  def __init__(self, point, *command):
    self.process = subprocess.Popen(
      [program.BINARY, *map(str, command)],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=os.environ | {"RESHARD_TEST_STOP": point},
    )
    _, status = os.waitpid(self.process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
      self.process.returncode = os.waitstatus_to_exitcode(status)
      raise AssertionError(f"{command} never came to '{point}': {self.process.communicate()[1]}")

  def go_on(self):
    """Lets it run to its end; returns exit code and last words."""
    self.process.send_signal(signal.SIGCONT)
    _, said = self.process.communicate(timeout=program.TIMEOUT_SECONDS)
    return self.process.returncode, said

  def kill(self):
    self.process.kill()
    self.process.communicate()


def children_of(pid):
  """{process id: state} of the direct children."""
  found = {}
  try:
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
  except OSError:
    children = ""
  for child in children.split():
    try:
      found[int(child)] = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
      pass
  return found


class Inputs(unittest.TestCase):
  def setUp(self):
    self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-inputs-"))
    self.addCleanup(shutil.rmtree, self.d)
    self.source = self.d / "in"
    config = program.write_json(self.d / "in.json", program.LLAMA | {"vocab_size": 2048})
    program.done("synth", config, self.source)
    self.file = self.source / "model.safetensors"
    self.whole = self.file.read_bytes()
    self.out, self.partial = self.d / "out", self.d / "out.partial"

  def convert(self, *more):
    return ("convert", self.source, self.out, "--to", "megatron:tp=4", *SMALL_BUFFER, *more)

  def overwrite(self, rng):
    """Other bytes in the middle of the data, in place; with the old time of the last write, perhaps."""
    before = self.file.stat()
    bytes_changed = rng.randrange(1, len(self.whole) // 2)
    at = rng.randrange(len(self.whole) // 4, len(self.whole) - bytes_changed)
    with open(self.file, "r+b") as file:
      file.seek(at)
      file.write(rng.randbytes(bytes_changed))
    if rng.random() < 0.5:
      os.utime(self.file, ns=(before.st_atime_ns, before.st_mtime_ns))

  def assert_refused(self, outcome, file=None, words="changed while it was read"):
    code, said = outcome
    self.assertEqual(code, 1, said)
    self.assertIn(f"{file or self.file}: ", said)
    self.assertIn(words, said)
    self.assertEqual(said.count("\n"), 1, said)
    self.assertFalse(self.out.exists(), "committed")

  @for_each_seed
  def test_what_was_overwritten_while_it_was_read_is_not_committed(self, rng):
    run = Stopped(rng.choice(["start", "piece", "file", "files", "end"]), *self.convert())
    self.overwrite(rng)
    self.assert_refused(run.go_on())
    self.assertFalse(self.partial.exists(), "what no later run can use was left behind")
    program.done(*self.convert())

  @for_each_seed
  def test_what_lost_its_tail_inside_the_last_page_is_not_committed(self, rng):
    run = Stopped(rng.choice(["start", "piece", "file", "files", "end"]), *self.convert())
    os.truncate(self.file, len(self.whole) - rng.randrange(1, len(self.whole) % PAGE or PAGE))
    self.assert_refused(run.go_on(), words="it had")

  @for_each_seed
  def test_what_a_mapping_took_while_it_was_read_is_not_committed(self, rng):
    # The pages are dirty before the program begins: no file time tells of what they take later.
    with open(self.file, "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
      data = 8 + int.from_bytes(pages[:8], "little")
      pages[data:] = bytes([2]) * (len(pages) - data)
      run = Stopped(rng.choice(["start", "piece", "file", "files"]), *self.convert())
      at = rng.randrange(data, len(pages) - 1)
      pages[at:] = bytes([3]) * (len(pages) - at)
      code, said = run.go_on()
    # At the start nothing is read yet: what is committed then is the second version, whole.
    if code != 0:
      self.assertIn("changed while it was read", said)
      self.assertFalse(self.out.exists() or self.partial.exists())
    else:
      program.done("verify", self.source, self.out)

  @for_each_seed
  def test_what_was_replaced_while_it_was_read_is_not_committed(self, rng):
    run = Stopped(rng.choice(["start", "piece", "file", "files", "end"]), *self.convert())
    other = self.source / "other"
    other.write_bytes(self.whole)
    os.replace(other, self.file)
    self.assert_refused(run.go_on())

  @for_each_seed
  def test_a_config_that_changes_while_it_counts_is_not_committed(self, rng):
    config = self.source / "config.json"
    before = config.read_text()
    run = Stopped(rng.choice(["start", "piece", "file", "files", "end"]), *self.convert())
    config.write_text(before.replace("silu", "gelu") + " ")
    self.assert_refused(run.go_on(), file=config)
    config.write_text(before)

  def kill_after_the_first_file(self):
    Stopped("file", *self.convert()).kill()
    self.assertTrue((self.partial / "rank-00000.safetensors").exists())

  @for_each_seed
  def test_what_was_replaced_between_kill_and_resume_is_another_job(self, rng):
    times = self.file.stat()
    self.kill_after_the_first_file()
    body = bytearray(self.whole)
    body[-rng.randrange(1, 1000)] ^= 0xFF
    in_place = rng.random() < 0.5
    if not in_place:
      self.file.unlink()
    self.file.write_bytes(body)
    os.utime(self.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    before = program.files_of(self.partial)
    result = program.run(*self.convert())
    self.assertEqual(result.returncode, 2, result.stdout)
    self.assertIn("interrupted job", result.stderr)
    self.assertFalse(self.out.exists())
    self.assertEqual(program.files_of(self.partial), before)

  def damage(self, rng):
    """One byte of the first finished file, with its old size and times of writing."""
    path = self.partial / "rank-00000.safetensors"
    before, body = path.stat(), bytearray(path.read_bytes())
    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    path.write_bytes(body)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path

  @for_each_seed
  def test_a_finished_file_that_was_altered_is_written_again(self, rng):
    program.done(*self.convert())
    right = program.files_of(self.out)
    shutil.rmtree(self.out)
    self.kill_after_the_first_file()
    self.damage(rng)
    self.assertNotIn("kept", program.done(*self.convert()))
    self.assertEqual(program.files_of(self.out), right)

  def test_a_finished_file_that_is_as_it_was_is_kept(self):
    self.kill_after_the_first_file()
    self.assertIn("1 file of an earlier run kept", program.done(*self.convert()))

  @for_each_seed
  def test_a_finished_file_that_was_altered_before_the_commit_is_noticed(self, rng):
    run = Stopped(rng.choice(["files", "end"]), *self.convert())
    path = self.damage(rng)
    self.assert_refused(run.go_on(), file=path, words="changed after it was finished")
    program.done(*self.convert())
    program.done("verify", self.source, self.out)

  # Parts of a file that are gone raise a signal where they are read, in whatever thread.

  def cut(self, rng):
    os.truncate(self.file, rng.randrange(0, len(self.whole) // 2))

  @for_each_seed
  def test_input_cut_while_it_is_copied_is_named(self, rng):
    run = Stopped(rng.choice(["start", "piece", "file"]), *self.convert())
    self.cut(rng)
    self.assert_refused(run.go_on())
    self.assertFalse(self.partial.exists())

  @for_each_seed
  def test_input_cut_while_it_is_quantised_is_named(self, rng):
    run = Stopped("start", "convert", self.source, self.out, "--to", "hf:quant=fp8_channel")
    self.cut(rng)
    self.assert_refused(run.go_on())

  @for_each_seed
  def test_input_cut_while_it_is_dequantised_is_named(self, rng):
    quantised = self.d / f"quantised-{rng.random()}"
    program.done("convert", self.source, quantised, "--to", "hf:quant=fp8_channel")
    file = quantised / "model.safetensors"
    run = Stopped("start", "convert", quantised, self.out, "--to", "hf")
    os.truncate(file, rng.randrange(0, file.stat().st_size // 2))
    self.assert_refused(run.go_on(), file=file)

  @for_each_seed
  def test_input_cut_while_it_is_verified_is_named(self, rng):
    other = self.d / f"other-{rng.random()}"
    program.done("convert", self.source, other, "--to", "vllm:tp=2")
    run = Stopped("start", "verify", other, self.source)
    self.cut(rng)
    self.assert_refused(run.go_on())

  @for_each_seed
  def test_input_cut_while_a_run_reads_it_is_named(self, rng):
    to = rng.choice(["vllm:tp=2", "vllm:tp=2,quant=fp8_channel"])
    run = Stopped("start", "run", "--model", self.source, "--from", "megatron:tp=2", "--to", to)
    self.cut(rng)
    self.assert_refused(run.go_on())

  @for_each_seed
  def test_input_cut_while_the_processes_of_a_run_read_it_is_named(self, rng):
    run = subprocess.Popen(
      [program.BINARY, "run", "--model", self.source, "--from", "megatron:tp=2", "--to"]
      + ["vllm:tp=2", "--transport", "shm", "--spawn"],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=os.environ | {"RESHARD_TEST_STOP": "start"},
    )
    # A stopped rank may be the only one that another needs to reach the same point.
    cut = False
    while run.poll() is None:
      for pid in [pid for pid, state in children_of(run.pid).items() if state == "T"]:
        if not cut:
          self.cut(rng)
          cut = True
        os.kill(pid, signal.SIGCONT)
      os.sched_yield()
    _, said = run.communicate()
    self.assertTrue(cut, said)
    self.assert_refused((run.returncode, said))

  def adapter(self, value):
    """The folder of an adapter for one matrix, whose factors are one number."""
    folder = self.d / f"adapter-{value}"
    folder.mkdir(exist_ok=True)
    program.write_json(folder / "adapter_config.json", {"peft_type": "LORA", "r": 1, "lora_alpha": 1})
    name = "model.layers.0.self_attn.q_proj"
    rows, cols = program.read_safetensors(self.file)[f"{name}.weight"][1]
    factors = {"A": [1, cols], "B": [rows, 1]}
    program.write_safetensors(folder / "adapter_model.safetensors", {
      f"base_model.model.{name}.lora_{kind}.weight": ("F32", shape, struct.pack("<f", value) * (shape[0] * shape[1]))
      for kind, shape in factors.items()
    })  # fmt: skip
    return folder

  @for_each_seed
  def test_an_adapter_that_changes_while_it_is_merged_is_not_committed(self, rng):
    folder = self.adapter(1)
    run = Stopped(rng.choice(["start", "piece", "file", "files", "end"]), *self.convert("--merge", folder))
    name = rng.choice(["adapter_config.json", "adapter_model.safetensors"])
    data = bytearray((folder / name).read_bytes())
    data[-2] ^= 1
    (folder / name).write_bytes(data)
    self.assert_refused(run.go_on(), folder / name)

  @for_each_seed
  def test_another_adapter_does_not_resume_a_conversion(self, rng):
    one, two = self.adapter(1), self.adapter(2)
    Stopped("file", *self.convert("--merge", one)).kill()
    self.assertTrue(self.partial.exists())
    for others in ([], ["--merge", two], ["--merge", one, "--merge", two]):
      result = program.run(*self.convert(*others))
      self.assertEqual(result.returncode, 2, others)
      self.assertIn("an interrupted job other than this one", result.stderr)
    self.assertIn("kept", program.done(*self.convert("--merge", one)))
    program.done("verify", self.source, self.out, "--merge", one)
    self.assertEqual(program.run("verify", self.source, self.out, "--merge", two).returncode, 1)

  @unittest.skipIf(os.geteuid() != 0, "only root can give files to another user")
  @for_each_seed
  def test_what_another_user_left_is_not_taken_over(self, rng):
    self.kill_after_the_first_file()
    whose = rng.choice(["folder", "record", "all"])
    stranger = rng.randrange(1000, 60000)
    if whose != "record":
      os.chown(self.partial, stranger, -1)
    if whose != "folder":
      os.chown(self.partial / ".reshard-resume", stranger, -1)
    before = program.files_of(self.partial)
    result = program.run(*self.convert())
    self.assertEqual(result.returncode, 2, result.stdout)
    self.assertIn(str(self.partial), result.stderr)
    self.assertIn("user", result.stderr)
    self.assertFalse(self.out.exists())
    self.assertEqual(program.files_of(self.partial), before)

  @unittest.skipIf(os.geteuid() != 0, "only root can give files to another user")
  @for_each_seed
  def test_a_finished_file_of_another_user_is_written_again(self, rng):
    self.kill_after_the_first_file()
    os.chown(self.partial / "rank-00000.safetensors", rng.randrange(1000, 60000), -1)
    self.assertNotIn("kept", program.done(*self.convert()))
    self.assertEqual({path.stat().st_uid for path in self.out.iterdir()}, {os.geteuid()})

  # Files that come with a checkpoint of others.

  def hostile_ranks(self, rng, layout):
    """A checkpoint in ranks with long names, whose layout's file is to be written."""
    letter = rng.choice("abc123")
    names = [letter * rng.randrange(300, 400) + str(i) + "x" for i in range(20)]
    source = self.d / f"names-{rng.random()}.safetensors"
    program.write_safetensors(source, {name: ("F32", [1], bytes(4)) for name in names})
    plain = program.write_json(self.d / f"{layout}.json", PLAIN[layout])
    shutil.rmtree(self.out, ignore_errors=True)
    program.done("convert", source, self.out, "--to", f"{layout}:{plain}")
    return letter

  @for_each_seed
  def test_hostile_patterns_that_come_with_a_checkpoint_do_not_stall(self, rng):
    for layout, plain in PLAIN.items():
      letter = self.hostile_ranks(rng, layout)
      wild = "#" if letter.isdigit() and rng.random() < 0.5 else "*"
      match = "*" + f"{letter}*" * 3 + "b" if wild == "*" else "*#*#b"
      [last] = plain["rules"]
      rules = [last | {"match": match}] * 10 + [last]
      program.write_json(self.out / f"{layout}.json", plain | {"rules": rules})
      program.done("inspect", self.out, "--json")


PLAIN = {
  "rules": {"axes": [], "rules": [{"match": "*"}]},
  "dtensor": {
    "meshes": [{"name": "all", "shape": [1]}],
    "rules": [{"match": "*", "mesh": "all", "placements": ["R"]}],
  },
}


if __name__ == "__main__":
  unittest.main()
