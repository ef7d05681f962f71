# SPDX-License-Identifier: Apache-2.0
"""Protects: traced layouts that are kept on disk are believed only if this user wrote them, whole."""

import json
import os
import re

import pytest

torch = pytest.importorskip("torch")

import reshard  # noqa: E402
from reshard import tracing  # noqa: E402

BF16 = torch.bfloat16


class Small(torch.nn.Module):
  """An engine that notes how often it is built."""

  built = 0

  def __init__(self, rank):
    super().__init__()
    type(self).built += 1
    self.p = torch.nn.Parameter(torch.empty(8, 6, dtype=BF16), requires_grad=False)


def kept(key, **options):
  """A trace with a key, and whether the engine was built for it."""
  before = Small.built
  copy = lambda module, weights: [module.p.data.copy_(w) for _, w in weights]  # noqa: E731
  found = tracing.trace(Small, copy, {"w": ((8, 6), BF16)}, key=key, **options)
  assert [f.box.origin for f in found.layout.local(0)[0].fragments] == [(0, 0)]
  assert (found.method == "cache") == (Small.built == before)
  return found


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("RESHARD_CACHE", str(tmp_path / "kept"))
  return tmp_path / "kept"


def test_layouts_are_kept_by_their_key(cache, monkeypatch):
  first = kept({"engine": "1.0"})
  assert first.method == "recording" and len(list(cache.iterdir())) == 1
  again = kept({"engine": "1.0"})
  assert again.method == "cache" and again.proof == first.proof
  assert reshard.diff(first.layout, again.layout) == []
  assert kept({"engine": "1.1"}).method == "recording"
  monkeypatch.setenv("RESHARD_CACHE", "off")
  assert kept({"engine": "1.0"}).method == "recording"


def test_a_kept_layout_says_how_it_was_proved(cache):
  assert kept({}, prove=False).method == "recording"
  assert str(kept({}, prove=False).proof) == "not proved"
  assert kept({}).method == "recording"  # which asks for more than what is kept
  assert kept({}).method == kept({}, prove="whole").method == kept({}, prove=False).method == "cache"


def test_the_folder_of_kept_layouts_is_the_users_own(cache):
  kept({})
  assert cache.stat().st_mode & 0o777 == 0o700
  (path,) = cache.iterdir()
  assert path.stat().st_mode & 0o777 == 0o600
  assert json.loads(path.read_text())["kept"]["proved"] == 1


def poisoned(path):
  """The kept layout with its rows exchanged."""
  layout = json.loads(path.read_text())
  layout["local_tensors"][0]["parts"] = ["0[0,4)x[0,6)@4,0", "0[4,8)x[0,6)@0,0"]
  return json.dumps(layout)


def _is_a_link(path):
  path.rename(path.parent / "elsewhere")
  path.symlink_to(path.parent / "elsewhere")


def _is_a_pipe(path):
  path.unlink()
  os.mkfifo(path)


def _is_a_folder(path):
  path.unlink()
  path.mkdir()


def _has_another_key(path):
  text = path.read_text()
  kept({"engine": "other"})
  (other,) = set(path.parent.glob("layout-*")) - {path}
  other.write_text(text)
  other.replace(path)
  head, _, rest = text.partition("\n")
  path.write_text(re.sub('"key": "..', '"key": "00', head) + "\n" + rest)


@pytest.mark.parametrize(
  "change, said",
  [
    (lambda path: path.write_text(poisoned(path)), "it is no kept layout"),
    (lambda path: path.write_text(path.read_text().replace("@0,0", "@0,1")), "its digest is not that of its content"),
    (lambda path: path.write_text(path.read_text()[:-20]), "its digest"),
    (lambda path: path.write_text(re.sub('"proved": 1', '"proved": 7', path.read_text())), "how it was proved"),
    (lambda path: path.write_text(""), "it is no kept layout"),
    (lambda path: path.write_text("["  * 100_000), "it is no kept layout"),
    (lambda path: path.write_text('{"kept": {' + '"a":{' * 700 + "},"), "JSON|Expecting|recursion"),
    (lambda path: path.write_bytes(b"\x00\xff\n"), "it is no kept layout"),
    (lambda path: path.chmod(0o666), "others may write it"),
    (lambda path: path.chmod(0o620), "others may write it"),
    (lambda path: os.truncate(path, 1 << 31), "it has 2147483648 bytes"),
    (_has_another_key, "another key"),
    (_is_a_link, "symbolic links"),
    (_is_a_pipe, "it is no regular file"),
    (_is_a_folder, "it is no regular file"),
  ],
)
def test_a_kept_layout_that_others_may_have_written_is_not_believed(change, said, cache, caplog):
  kept({})
  (path,) = cache.iterdir()
  change(path)
  assert kept({}).method == "recording"
  assert re.search(f"{path}: .*({said}).*: ignored, and traced anew", caplog.text)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_kept_layout_of_another_user_is_not_believed(cache, caplog):
  kept({})
  (path,) = cache.iterdir()
  os.chown(path, 65534, 65534)
  assert kept({}).method == "recording" and "it belongs to user 65534" in caplog.text
