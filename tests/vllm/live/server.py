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

PROMPTS = [[3 + i, 5, 7, 11, 13] for i in range(4)]


def environment(**more):
  """Of processes that run vLLM on the few cores of a test machine."""
  return os.environ | {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # Some processors stop in oneDNN's AMX kernels.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    **more,
  }


def free_port():
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1]


class Server:
  """`vllm serve` on a checkpoint, with the backend reshard."""

  def __init__(self, checkpoint, tp=1):
    self.url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    options = {
      "model": checkpoint,
      "served-model-name": "model",
      "port": self.url.rpartition(":")[2],
      "dtype": "float32",
      "max-model-len": 256,
      "max-num-seqs": 4,
      "tensor-parallel-size": tp,
      "weight-transfer-config": json.dumps({"backend": "reshard"}),
    }
    for name, value in options.items():
      command += [f"--{name}", str(value)]
    self.process = subprocess.Popen(
      [*command, "--enforce-eager"],
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

  def generate(self):
    """The tokens that greedy decoding adds to each prompt."""
    body = {"model": "model", "prompt": PROMPTS, "max_tokens": 16, "temperature": 0}
    answer = self.call("v1/completions", body | {"ignore_eos": True, "return_token_ids": True})
    return [choice["token_ids"] for choice in answer["choices"]]

  def checksums(self):
    """Of the memory of every parameter on every worker."""
    return self.call("weight_checker", {"action": "checksum"})["checksums"]

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
