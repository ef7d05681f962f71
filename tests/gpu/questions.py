#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What only a real NVIDIA driver answers: prints each question, what reshard expects, and the answer.

    python3 tests/gpu/questions.py

Uses GPU 0 through libcuda.so.1 alone. Exits 0 when all questions were asked, whatever the answers.
"""

import ctypes
import os
import resource
import subprocess
import sys

MIB = 1 << 20
SUCCESS = 0
# CUpointer_attribute.
BUFFER_ID, IPC_CAPABLE, MAPPED, BLOCK_ID = 7, 10, 13, 20
POSIX_FD, FABRIC = 1, 8
ULL, SIZE, INT, UINT, PTR = ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p


class IpcHandle(ctypes.Structure):
  _fields_ = (("bytes", ctypes.c_char * 64),)


class Location(ctypes.Structure):
  _fields_ = (("type", INT), ("id", INT))


class Properties(ctypes.Structure):
  """CUmemAllocationProp."""

  _fields_ = (("type", INT), ("handles", INT), ("location", Location), ("windows", PTR), ("flags", ctypes.c_ubyte * 8))


class Access(ctypes.Structure):
  _fields_ = (("location", Location), ("flags", INT))


class PoolProperties(ctypes.Structure):
  """CUmemPoolProps."""

  _fields_ = (
    ("type", INT), ("handles", INT), ("location", Location), ("windows", PTR), ("most", SIZE),
    ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54),
  )  # fmt: skip


class Driver:
  """libcuda.so.1, and the primary context of GPU 0."""

  def __init__(self):
    self.lib = ctypes.CDLL("libcuda.so.1")
    self.must("cuInit", UINT(0))
    self.device = INT()
    self.must("cuDeviceGet", ctypes.byref(self.device), INT(0))
    context = PTR()
    self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
    self.must("cuCtxPushCurrent_v2", context)

  def call(self, name, *arguments):
    return getattr(self.lib, name)(*arguments)

  def must(self, name, *arguments):
    status = self.call(name, *arguments)
    if status != SUCCESS:
      raise RuntimeError(f"{name}: {self.error(status)}")

  def error(self, status):
    if status == SUCCESS:
      return "success"
    text = ctypes.c_char_p()
    self.lib.cuGetErrorName(INT(status), ctypes.byref(text))
    return f"{(text.value or b'?').decode()} ({status})"

  def alloc(self, size):
    at = ULL()
    self.must("cuMemAlloc_v2", ctypes.byref(at), SIZE(size))
    return at.value

  def free(self, at):
    self.must("cuMemFree_v2", ULL(at))

  def attribute(self, which, at, kind=ULL):
    value = kind()
    status = self.call("cuPointerGetAttribute", ctypes.byref(value), INT(which), ULL(at))
    return value.value if status == SUCCESS else self.error(status)

  def range_of(self, at):
    base, size = ULL(), SIZE()
    status = self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ULL(at))
    return (base.value, size.value) if status == SUCCESS else self.error(status)

  def ipc_handle(self, at):
    handle = IpcHandle()
    status = self.call("cuIpcGetMemHandle", ctypes.byref(handle), ULL(at))
    return bytes(memoryview(handle)) if status == SUCCESS else self.error(status)

  def ipc_open(self, handle):
    """(status, address)"""
    at = ULL()
    given = IpcHandle.from_buffer_copy(handle)
    status = self.call("cuIpcOpenMemHandle_v2", ctypes.byref(at), given, UINT(1))
    return status, at.value

  def fill(self, at, value, size):
    self.must("cuMemsetD8Async", ULL(at), ctypes.c_ubyte(value), SIZE(size), PTR())
    self.must("cuStreamSynchronize", PTR())

  def byte_at(self, at):
    value = (ctypes.c_ubyte * 1)()
    status = self.call("cuMemcpyAsync", ULL(ctypes.addressof(value)), ULL(at), SIZE(1), PTR())
    status = status or self.call("cuStreamSynchronize", PTR())
    return value[0] if status == SUCCESS else self.error(status)

  def properties(self, handles):
    return Properties(type=1, handles=handles, location=Location(1, 0))

  def create(self, size, handles):
    """(status, handle) of physical memory."""
    handle = ULL()
    given = self.properties(handles)
    return self.call("cuMemCreate", ctypes.byref(handle), SIZE(size), ctypes.byref(given), ULL(0)), handle.value

  def map(self, at, size, handle):
    self.must("cuMemMap", ULL(at), SIZE(size), SIZE(0), ULL(handle), ULL(0))
    access = Access(Location(1, 0), 3)
    self.must("cuMemSetAccess", ULL(at), SIZE(size), ctypes.byref(access), SIZE(1))


def say(question, expected, answer):
  print(f"- {question}\n  expected: {expected}\n  answer:   {answer}", flush=True)


class Peer:
  """A second process, which evaluates lines with `d` as its driver and `v` as its variables."""

  def __init__(self):
    self.process = subprocess.Popen(
      [sys.executable, __file__, "--peer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

  def ask(self, line):
    self.process.stdin.write(line + "\n")
    self.process.stdin.flush()
    answer = self.process.stdout.readline()
    if not answer:
      raise RuntimeError("the peer process ended")
    return eval(answer)  # noqa: S307 - our own process.

  def close(self):
    self.process.stdin.close()
    self.process.wait(60)


def serve():
  d, v = Driver(), {}
  for line in sys.stdin:
    try:
      answer = eval(line, {"d": d, "v": v})  # noqa: S307 - our own process.
    except Exception as error:  # noqa: BLE001 - the asker is told.
      answer = f"{type(error).__name__}: {error}"
    print(repr(answer), flush=True)


def ask_driver(d):
  version, count = INT(), INT()
  d.must("cuDriverGetVersion", ctypes.byref(version))
  d.must("cuDeviceGetCount", ctypes.byref(count))
  name = ctypes.create_string_buffer(256)
  d.must("cuDeviceGetName", name, INT(255), d.device)
  say("driver, GPUs", "any", f"CUDA {version.value}, {count.value} x {name.value.decode()}")
  wanted = {
    "integrated": 18, "unified addressing": 41, "host pointers of registered memory": 91,
    "virtual memory": 102, "file handles": 103, "fabric handles": 128, "pools": 115, "read-only registration": 113,
    "copy engines": 40, "multiprocessors": 16, "L2 bytes": 38,
  }  # fmt: skip
  found = {}
  for key, number in wanted.items():
    value = INT()
    status = d.call("cuDeviceGetAttribute", ctypes.byref(value), INT(number), d.device)
    found[key] = value.value if status == SUCCESS else d.error(status)
  say("attributes of the GPU", "any", found)


def ask_attributes(d):
  at = d.alloc(5000)
  facts = {
    "MAPPED": d.attribute(MAPPED, at, INT), "IPC_CAPABLE": d.attribute(IPC_CAPABLE, at, INT),
    "BUFFER_ID": d.attribute(BUFFER_ID, at), "MEMORY_BLOCK_ID": d.attribute(BLOCK_ID, at),
    "an unknown attribute": d.attribute(99, at),
  }  # fmt: skip
  say("attributes of memory of cuMemAlloc", "MAPPED 1, IPC_CAPABLE 1, two ids", facts)
  first = (at, d.attribute(BUFFER_ID, at), d.attribute(BLOCK_ID, at))
  d.free(at)
  again = d.alloc(5000)
  second = (again, d.attribute(BUFFER_ID, again), d.attribute(BLOCK_ID, again))
  say("(address, BUFFER_ID, MEMORY_BLOCK_ID) before and after cuMemFree and cuMemAlloc", "another BUFFER_ID",
      (first, second))  # fmt: skip
  d.free(again)
  small = [d.alloc(5000) for _ in range(4)]
  say("addresses and ranges of four allocations of 5000 bytes", "parts of one block of 2 MiB",
      [(hex(a), d.range_of(a)) for a in small])  # fmt: skip
  for a in small:
    d.free(a)


def ask_remapping(d):
  at, size = ULL(), 2 * MIB
  d.must("cuMemAddressReserve", ctypes.byref(at), SIZE(4 * size), SIZE(0), ULL(0), ULL(0))
  ids = []
  for _ in range(2):
    status, handle = d.create(size, POSIX_FD)
    if status != SUCCESS:
      return say("cuMemCreate with file handles", "success", d.error(status))
    d.map(at.value, size, handle)
    ids.append((d.attribute(BUFFER_ID, at.value), d.attribute(BLOCK_ID, at.value), d.attribute(MAPPED, at.value, INT)))
    d.must("cuMemUnmap", at, SIZE(size))
    d.must("cuMemRelease", ULL(handle))
  say("(BUFFER_ID, MEMORY_BLOCK_ID, MAPPED) of an address before and after other memory is mapped there",
      "one of the ids changes, MAPPED 1", ids)  # fmt: skip
  say("the same where nothing is mapped", "MAPPED 0 or an error",
      (d.attribute(BUFFER_ID, at.value), d.attribute(BLOCK_ID, at.value), d.attribute(MAPPED, at.value, INT)))  # fmt: skip
  chunks = [d.create(size, POSIX_FD)[1] for _ in range(2)]
  for i, handle in enumerate(chunks):
    d.map(at.value + i * size, size, handle)
  say("range of two chunks mapped back to back, asked in the second one", "the second chunk alone",
      (hex(at.value), d.range_of(at.value + size)))  # fmt: skip
  say("cuIpcGetMemHandle of mapped memory", "an error", d.ipc_handle(at.value))
  status, _ = d.create(size, FABRIC)
  say("cuMemCreate with a fabric handle", "not permitted or not supported without IMEX", d.error(status))
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  say("RLIMIT_NOFILE", "1024 soft on bare Linux", (soft, hard))


def ask_pools(d):
  at, stream = ULL(), PTR()
  d.must("cuMemAllocAsync", ctypes.byref(at), SIZE(4 * MIB), stream)
  d.must("cuStreamSynchronize", PTR())
  say("cuIpcGetMemHandle of memory of the default pool", "invalid value", d.ipc_handle(at.value))
  say("its IPC_CAPABLE", 0, d.attribute(IPC_CAPABLE, at.value, INT))
  pool, given = PTR(), PoolProperties(type=1, handles=POSIX_FD, location=Location(1, 0))
  status = d.call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(given))
  say("cuMemPoolCreate with file handles", "success", d.error(status))
  if status == SUCCESS:
    file = INT(-1)
    status = d.call("cuMemPoolExportToShareableHandle", ctypes.byref(file), pool, INT(POSIX_FD), ULL(0))
    say("cuMemPoolExportToShareableHandle", "success", d.error(status))


def ask_registration(d):
  libc = ctypes.CDLL(None)
  libc.mmap.restype = PTR
  libc.mmap.argtypes = (PTR, SIZE, INT, INT, INT, ctypes.c_long)
  page, anonymous = 4096, libc.mmap(None, 16 * 4096, 3, 0x22, -1, 0)
  middle = PTR(anonymous + 4 * page)
  d.must("cuMemHostRegister_v2", middle, SIZE(page), UINT(3))
  whole = d.call("cuMemHostRegister_v2", PTR(anonymous), SIZE(16 * page), UINT(3))
  same = d.call("cuMemHostRegister_v2", middle, SIZE(page), UINT(3))
  say("cuMemHostRegister of a range of which one page is registered; of that page again", "712 for both",
      (d.error(whole), d.error(same)))  # fmt: skip
  allocated = PTR()
  d.must("cuMemHostAlloc", ctypes.byref(allocated), SIZE(2 * page), UINT(3))
  odd = anonymous + 8 * page + 100
  say("cuMemHostRegister of a part of memory of cuMemHostAlloc; of two ranges that share a page", "an error; success for both",
      (d.error(d.call("cuMemHostRegister_v2", allocated, SIZE(page), UINT(3))),
       [d.error(d.call("cuMemHostRegister_v2", PTR(odd + i * page), SIZE(page), UINT(3))) for i in (0, 1)]))  # fmt: skip
  readonly = libc.mmap(None, page, 1, 0x22, -1, 0)
  say("cuMemHostRegister of memory that may only be read, without and with READ_ONLY", "an error, then success",
      (d.error(d.call("cuMemHostRegister_v2", PTR(readonly), SIZE(page), UINT(3))),
       d.error(d.call("cuMemHostRegister_v2", PTR(readonly), SIZE(page), UINT(3 | 8)))))  # fmt: skip


def ask_sharing(d):
  peer = Peer()
  small = [d.alloc(5000) for _ in range(2)]
  for i, a in enumerate(small):
    d.fill(a, 11 + i, 5000)
  handles = [d.ipc_handle(a) for a in small]
  opened = [peer.ask(f"v.setdefault('o{i}', d.ipc_open({h!r}))") for i, h in enumerate(handles)]
  say("opening two small allocations of one block", "both, or 208 for the second",
      [(d.error(s), hex(a)) for s, a in opened])  # fmt: skip
  say("their ranges at the reader, and the first byte there", "the block; 11 and 12",
      [(peer.ask(f"d.range_of({a})"), peer.ask(f"d.byte_at({a})")) for s, a in opened if s == SUCCESS])  # fmt: skip
  again, at = peer.ask(f"d.ipc_open({handles[0]!r})")
  say("opening one of them again", "the same address", (d.error(again), hex(at), at == opened[0][1]))
  say("opening it in its own process", "invalid context or value", d.error(d.ipc_open(handles[0])[0]))

  big = d.alloc(8 * MIB)
  old = d.ipc_handle(big)
  status, at = peer.ask(f"v.setdefault('big', d.ipc_open({old!r}))")
  d.free(big)
  say("after the owner has freed what a reader has open: the reader's byte", "any", peer.ask(f"d.byte_at({at})"))
  recycled = d.alloc(8 * MIB)
  d.fill(recycled, 77, 8 * MIB)
  new = d.ipc_handle(recycled)
  status, fresh = peer.ask(f"v.setdefault('new', d.ipc_open({new!r}))")
  say("opening memory at a recycled address while the old one is open", "208, or another address",
      {"same address at the owner": recycled == big, "same handle": old == new, "status": d.error(status),
       "same address at the reader": fresh == at,
       "byte": peer.ask(f"d.byte_at({fresh})") if status == SUCCESS else None})  # fmt: skip
  if status != SUCCESS:
    closed = peer.ask(f"d.call('cuIpcCloseMemHandle', __import__('ctypes').c_ulonglong({at}))")
    status, fresh = peer.ask(f"d.ipc_open({new!r})")
    say("after the reader has closed the old one", "success",
        (d.error(closed), d.error(status), peer.ask(f"d.byte_at({fresh})") if status == SUCCESS else None))  # fmt: skip
  peer.close()


def ask_files(d):
  status, handle = d.create(2 * MIB, POSIX_FD)
  file = INT(-1)
  status = d.call("cuMemExportToShareableHandle", ctypes.byref(file), ULL(handle), INT(POSIX_FD), ULL(0))
  say("cuMemExportToShareableHandle as a file", "success", (d.error(status), file.value))
  peer = Peer()
  line = (
    "(lambda l, o: (l.syscall(434, %d, 0), l.syscall(438, l.syscall(434, %d, 0), %d, 0)))"
    "(__import__('ctypes').CDLL(None), 0)" % (os.getpid(), os.getpid(), file.value)
  )
  say("(pidfd_open, pidfd_getfd) in another process", "two files", peer.ask(line))
  peer.close()


def main():
  if "--peer" in sys.argv:
    return serve()
  try:
    d = Driver()
  except (OSError, RuntimeError) as error:
    print(f"questions: skipped: {error}")
    return None
  for ask in (ask_driver, ask_attributes, ask_remapping, ask_pools, ask_registration, ask_sharing, ask_files):
    try:
      ask(d)
    except Exception as error:  # noqa: BLE001 - the other questions are asked, too.
      say(ask.__name__, "answers", f"{type(error).__name__}: {error}")
  return None


if __name__ == "__main__":
  main()
