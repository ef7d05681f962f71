# SPDX-License-Identifier: Apache-2.0
"""Law: after a refit every byte of the target is what torch's slicing of the source's values gives."""

import json
import mmap
import threading
import traceback

import pytest
import torch

import reshard
from ranks import errors_in_threads, in_threads
from small_models import CONFIGS, assert_equal, megatron_slices, model, values, vllm_slices, zeros


def refit_all(size, source, target, given, *, versions=(1,), **options):
  """{rank: target tensors} after refits of the sources `given(rank, version)`."""

  def body(group):
    me = group.rank
    mine = given(me, versions[0]) if me in source.ranks else None
    theirs = zeros(target, me) if me in target.ranks else None
    if mine is not None:
      mine = {name: tensor.clone() for name, tensor in mine.items()}
    back = zeros(target, me) if theirs is not None and options.get("buffering") == "doubled" else None
    with reshard.Session(
      group, source=source, source_tensors=mine, target=target, target_tensors=theirs, back_tensors=back, **options
    ) as session:
      for version in versions:
        if mine is not None:
          for name, tensor in given(me, version).items():
            mine[name].copy_(tensor)
        report = session.refit(version)
        assert report.version == version and session.report is not None
      session.verify()
      now = session.target_version()
      if theirs is not None:
        assert now.whole and now.version == versions[-1]
      return back if now.buffer == 1 else theirs

  return in_threads(size, body)


@pytest.mark.parametrize("path", ["direct", "message"])
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_whole_tensors_become_the_shards_of_vllm(kind, path):
  of = model(kind)
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=2,offset=1", of)
  got = refit_all(3, source, target, lambda _, version: values(of, version), versions=(1, 2), path=path)
  for rank in (0, 1):
    assert_equal(got[rank + 1], vllm_slices(values(of, 2), 2, rank))


@pytest.mark.parametrize("buffering", ["in_place", "doubled"])
def test_replicas_on_other_hosts_relay_what_they_receive(buffering):
  of = model("moe")
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=2,replicas=3,offset=1", of)

  def body(group):
    me = group.rank
    mine = values(of, 1) if me == 0 else None
    theirs, back = (zeros(target, me), zeros(target, me)) if me > 0 else (None, None)
    sides = {"source": source, "source_tensors": mine, "target": target, "target_tensors": theirs}
    if buffering == "doubled":
      sides["back_tensors"] = back
    host = f"host {(me + 1) // 2}"  # the trainer's, and one for each replica
    with reshard.Session(group, **sides, buffering=buffering, routes="auto", host=host) as session:
      for version in (1, 2):
        if mine is not None:
          for name, tensor in values(of, version).items():
            mine[name].copy_(tensor)
        session.refit(version)
      session.verify()
      relays = session.relays
      assert relays["used"] == 1 and relays["hops"] > 1
      # Each of three hosts wants everything.
      assert relays["direct_bytes"] > 2.5 * relays["busiest_bytes"] >= 2.5 * relays["least_bytes"]
      if me == 0:
        assert sum(peer.sent for peer in session.peers) == relays["busiest_bytes"]
      return back if session.target_version().buffer == 1 else theirs

  got = in_threads(7, body)
  for rank in range(6):
    assert_equal(got[rank + 1], vllm_slices(values(of, 2), 2, rank % 2))


def test_routes_on_one_host_are_direct():
  of = model("dense")
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=1,replicas=2,offset=1", of)
  direct = refit_all(3, source, target, lambda _, version: values(of, version), routes="auto")
  assert_equal(direct[2], vllm_slices(values(of, 1), 1, 0))

  def refused(group):
    with pytest.raises(reshard.InvalidArgumentError, match="routes='relayed': must be one of 'direct', 'auto'"):
      reshard.Session(group, source=source, target=target, source_tensors=None, target_tensors=None, routes="relayed")

  in_threads(2, refused)


@pytest.mark.parametrize("path", ["direct", "message"])
def test_only_what_is_named_moves(path):
  of = model("moe")
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=2,offset=1", of)
  only = "model.layers.#.mlp.*"
  got = refit_all(3, source, target, lambda _, version: values(of, version), only=only, path=path)
  for rank in (0, 1):
    for name, tensor in vllm_slices(values(of, 1), 2, rank).items():
      wanted = tensor if ".mlp." in name else torch.zeros_like(tensor)
      assert torch.equal(got[rank + 1][name].view(torch.uint8), wanted.view(torch.uint8)), name


def test_a_pattern_that_matches_nothing_is_refused_on_all_ranks():
  of = model()
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=1,offset=1", of)
  for option, what in (("only", "to move"), ("ignore", "to ignore")):
    errors = errors_in_threads(
      2, lambda group, option=option: reshard.Session(group, source=source, target=target, **{option: "model.layer.#.mlp*"})
    )
    assert all(what in str(error) and "matches no tensor" in str(error) for error in errors), errors


@pytest.mark.parametrize("options", [{}, {"verify": "always"}, {"buffering": "doubled"}, {"threads": 0}])
def test_shards_of_megatron_become_those_of_vllm(options):
  of = model()
  source, target = reshard.layout("megatron:tp=2", of), reshard.layout("vllm:tp=4", of)

  def given(rank, version):
    return megatron_slices(values(of, version), 2, rank)

  got = refit_all(4, source, target, given, versions=(3, 5, 9), **options)
  for rank in range(4):
    assert_equal(got[rank], vllm_slices(values(of, 9), 4, rank))


def test_shards_of_vllm_become_whole_tensors():
  of = model("moe")
  source, target = reshard.layout("vllm:tp=4", of), reshard.layout("hf", of)
  got = refit_all(4, source, target, lambda rank, version: vllm_slices(values(of, version), 4, rank))
  assert_equal(got[0], values(of, 1))


@pytest.mark.parametrize("convert", ["receiver", "sender"])
@pytest.mark.parametrize("quant", ["mxfp8", "fp8_channel"])
def test_a_quantised_target_has_the_bytes_of_quantise(quant, convert):
  of = model()
  source, target = reshard.layout("hf", of), reshard.layout(f"vllm:tp=1,quant={quant}", of)
  names = [t.name for t in target.local(0) if t.name.endswith("_scale")]
  assert names

  def body(group):
    engine = reshard.RankBuffers.allocate(target)
    with reshard.Session(
      group, source=source, source_tensors=values(of), target=target, target_tensors=engine, convert=convert, verify="always"
    ) as session:
      session.refit(1)
      assert session.conversions.at_sender + session.conversions.at_receiver > 0
      return engine

  engine = in_threads(1, body)[0]
  plain = vllm_slices(values(of), 1, 0)
  for name in names:
    weight = name.removesuffix("_scale")
    if "qkv" in weight or "gate_up" in weight:
      continue  # sections are quantised one by one
    want = reshard.quantise(plain[weight], quant)
    assert bytes(engine.tensor(0, weight).raw()) == bytes(want.data.raw())
    assert bytes(engine.tensor(0, name).raw()) == bytes(want.scales.raw())


@pytest.mark.parametrize("path", ["direct", "message"])
def test_a_trainer_reports_what_it_sent_and_at_which_rate(path):
  of = model()
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=1,offset=1", of)

  def body(group):
    sides = {"source_tensors": values(of)} if group.rank == 0 else {"target_tensors": zeros(target, 1)}
    with reshard.Session(group, source=source, target=target, path=path, **sides) as session:
      return session.refit(1)

  trainer, engine = in_threads(2, body)
  assert trainer.bytes == 0 and trainer.sent == engine.received == engine.bytes > 0
  for report, moved in ((trainer, trainer.sent), (engine, engine.bytes)):
    assert 0 < report.transfer_seconds < report.seconds
    assert report.gigabytes_per_second == pytest.approx(moved / report.transfer_seconds / 1e9)
  assert "sent " in str(trainer) and "while they moved" in str(trainer)


def test_a_report_is_a_dict_rows_a_table_and_html():
  of = model()
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=2", of)

  def body(group):
    me = group.rank
    session = reshard.Session(
      group,
      source=source,
      source_tensors=values(of) if me == 0 else None,
      target=target,
      target_tensors=zeros(target, me),
    )
    assert session.report is None and session.path == "direct" and session.reason == ""
    report = session.refit(4)
    volumes = [(v.peer, v.sent, v.received) for v in session.peers]
    session.close()
    return report, volumes

  (report, volumes), (other, _) = in_threads(2, body)
  table = report.dict()
  assert table["version"] == 4 and table["bytes"] == report.bytes > 0
  assert report.received == 0 and report.sent == other.received > 0
  moved = report.move_seconds - report.wait_seconds - report.finish_seconds
  assert report.transfer_seconds == table["transfer_seconds"] == pytest.approx(max(0, moved), abs=1e-9)
  assert volumes == [(1, report.sent, 0)]
  assert [row["phase"] for row in report.rows()] == ["begin", "plan", "move", "check", "commit"]
  assert sum(row["seconds"] for row in report.rows()) <= report.seconds
  assert "version 4" in str(report) and "move" in report.table() and "SessionReport" in repr(report)
  assert report._repr_html_().startswith("<b>version 4")


def test_versions_continue_in_the_next_session():
  of = model()
  layout, target = reshard.layout("hf", of), reshard.layout("vllm:tp=1", of)
  memory = mmap.mmap(-1, 16)  # as processes share it
  published = reshard.PublishedVersion(memoryview(memory)[8:16])
  reader = reshard.PublishedVersion(memoryview(memory)[8:16])
  theirs = zeros(target, 0)
  for version in (5, 7):
    group = reshard.local(1)[0]
    with reshard.Session(
      group, source=layout, source_tensors=values(of), target=target, target_tensors=theirs, published=published
    ) as session:
      assert session.published is published
      with pytest.raises(reshard.InvalidArgumentError, match="not above|is not from 0"):
        session.refit(reader.target_version().version)
      session.refit(version)
      assert reader.target_version() == session.target_version() == reader.target_version_after_reading()
      assert reader.target_version().version == version
  for wrong in (bytearray(7), bytes(8), memoryview(memory)[1:9]):
    with pytest.raises(reshard.InvalidArgumentError, match="PublishedVersion: the buffer"):
      reshard.PublishedVersion(wrong)
  with pytest.raises(BufferError):
    memory.close()


def all_on_rank_0(group, of, **options):
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=2", of)
  me = group.rank
  options.setdefault("source_tensors", values(of) if me == 0 else None)
  options.setdefault("target_tensors", zeros(target, me))
  return reshard.Session(group, source=source, target=target, **options)


@pytest.mark.parametrize(
  ("change", "text"),
  [
    (lambda t: t.resize_(3), "shape [3]"),
    (lambda t: t.untyped_storage().resize_(0), "has no memory"),
    (lambda t: setattr(t, "data", t.data.clone()), "is at another address"),
  ],
)
def test_all_ranks_learn_of_a_tensor_that_changed_and_go_on(change, text):
  of = model()

  def body(group):
    theirs = zeros(reshard.layout("vllm:tp=2", of), group.rank)
    session = all_on_rank_0(group, of, target_tensors=theirs)
    session.refit(1)
    saved = theirs["model.norm.weight"]
    if group.rank == 1:
      other = torch.clone(saved)
      theirs["model.norm.weight"] = other
      change(other)
    for _ in range(2):
      with pytest.raises(reshard.InvalidArgumentError) as raised:
        session.refit(2)
      assert "rank 1: target tensor 'model.norm.weight'" in str(raised.value)
      assert text in str(raised.value)
      assert session.target_version().version == 1
    theirs["model.norm.weight"] = saved
    session.refit(2)
    return session.target_version().version

  assert in_threads(2, body) == [2, 2]


def test_replans_for_tensors_that_moved():
  of = model()

  def body(group):
    theirs = zeros(reshard.layout("vllm:tp=2", of), group.rank)
    session = all_on_rank_0(group, of, target_tensors=theirs, replan=True)
    session.refit(1)
    for tensor in theirs.values():
      tensor.data = torch.zeros_like(tensor)
    assert session.refit(2).plan_seconds > 0
    session.update(target_tensors=(others := zeros(reshard.layout("vllm:tp=2", of), group.rank)))
    session.refit(3)
    return theirs, others

  for rank, both in enumerate(in_threads(2, body)):
    for got in both:
      assert_equal(got, vllm_slices(values(of), 2, rank))


def test_all_ranks_learn_of_wrong_arguments_of_one():
  of = model()

  def body(group):
    theirs = zeros(reshard.layout("vllm:tp=2", of), group.rank)
    if group.rank == 1:
      theirs["model.norm.weight"] = torch.zeros(64)
    all_on_rank_0(group, of, target_tensors=theirs)

  for error in errors_in_threads(2, body):
    assert isinstance(error, reshard.InvalidArgumentError)
    assert "rank 1: target tensor 'model.norm.weight': dtype F32, but BF16 in vllm:tp=2" in str(error)

  def wrong_option(group):
    all_on_rank_0(group, of, verify="sometimes" if group.rank == 0 else "never")

  for error in errors_in_threads(2, wrong_option):
    assert "verify='sometimes': must be one of 'never', 'always'" in str(error)

  def no_layout(group):
    reshard.Session(group, source=None if group.rank == 0 else reshard.layout("hf", of), target=reshard.layout("hf", of))

  first, second = errors_in_threads(2, no_layout)
  assert isinstance(first, TypeError) and isinstance(second, reshard.InvalidArgumentError)
  assert "rank 0: source must be a reshard.Layout" in str(second)


def test_the_group_stays_usable_after_an_error_that_all_share():
  of = model()

  def body(group):
    with pytest.raises(reshard.InvalidArgumentError):
      all_on_rank_0(group, of, path="sideways")
    with all_on_rank_0(group, of) as session, pytest.raises(reshard.InvalidArgumentError):
      session.refit(-3)
    with all_on_rank_0(group, of) as session:
      session.refit(1)

  in_threads(2, body)


@pytest.mark.parametrize("phase", ["begin", "transfer", "check", "commit", "committed"])
def test_an_exception_of_on_phase_arrives_whole(phase):
  of = model()

  class Boom(Exception):
    pass

  def on_phase(entered):
    if entered == phase:
      raise Boom("the engine sleeps", 7)

  def body(group):
    session = all_on_rank_0(group, of, on_phase=on_phase if group.rank == 0 else None)
    session.refit(1)

  first, second = errors_in_threads(2, body)
  assert type(first) is Boom and first.args == ("the engine sleeps", 7)
  frames = [frame.name for frame in traceback.extract_tb(first.__traceback__)]
  assert frames[-1] == "on_phase" and "refit of version 1 failed" in first.__notes__[0]
  assert isinstance(second, reshard.AbortedError)
  assert f"on_phase('{phase}') raised Boom" in str(second)


def test_on_phase_runs_in_the_thread_that_calls_refit():
  seen = []
  of = model()
  group = reshard.local(1)[0]
  layout = reshard.layout("hf", of)
  with reshard.Session(
    group,
    source=layout,
    source_tensors=values(of),
    target=layout,
    target_tensors=zeros(layout, 0),
    on_phase=lambda phase: seen.append((phase, threading.current_thread())),
  ) as session:
    session.refit(1)
  here = threading.current_thread()
  assert seen == [(phase, here) for phase in ("begin", "transfer", "check", "commit", "committed")]


def test_progress_is_told_and_may_cancel():
  of = model()
  seen = []
  group, layout = reshard.local(1)[0], reshard.layout("hf", of)
  session = reshard.Session(
    group, source=layout, source_tensors=values(of), target=layout, target_tensors=zeros(layout, 0)
  )
  session.refit(1, progress=lambda *args: seen.append(args))
  assert seen and seen[-1][1] == seen[-1][2] > 0
  with pytest.raises(ZeroDivisionError):
    session.refit(2, progress=lambda *args: 1 // 0)


def test_refits_from_memory_that_reshard_allocates_and_back():
  of = model("moe")
  there, home = reshard.layout("megatron:tp=2,ep=2,etp=1", of), reshard.layout("hf", of)
  first = reshard.RankBuffers(home, {0: values(of)})
  between = reshard.RankBuffers.allocate(there)
  last = reshard.RankBuffers.allocate(home)
  reshard.InProcessRefit(reshard.plan(home, there), first, between).run()
  report = reshard.InProcessRefit(reshard.plan(there, home), between, last).run()
  assert report.bytes == last.nbytes == first.nbytes
  assert_equal({name: tensor.torch() for name, tensor in last.tensors(0).items()}, values(of))
  prints = [reshard.fingerprints(x) for x in (first, between, last)]
  reshard.compare_fingerprints(prints[0], prints[1])
  assert prints[0].dict() == prints[2].dict() and len(prints[0]) == len(first.tensors(0))
  last.tensor(0, "model.norm.weight").torch()[3] = 7
  with pytest.raises(reshard.CorruptError, match="'model.norm.weight'"):
    reshard.compare_fingerprints(prints[0], reshard.fingerprints(last))


def test_loads_weights_into_buffers(tmp_path):
  from safetensors.torch import save_file

  of = model()
  save_file(values(of), tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text(json.dumps(CONFIGS["dense"]))
  stored = reshard.open_model(tmp_path)
  target = reshard.layout("vllm:tp=2", stored)
  engine = reshard.RankBuffers.allocate(target)
  reshard.load_weights(stored, engine)
  mine = zeros(target, 1)
  reshard.load_weights(stored, reshard.RankBuffers(target, {1: mine}), rank=1)
  assert_equal(mine, vllm_slices(values(of), 2, 1))
  assert_equal({n: t.torch() for n, t in engine.tensors(0).items()}, vllm_slices(values(of), 2, 0))
  with pytest.raises(reshard.InvalidArgumentError, match="is no checkpoint"):
    reshard.load_weights(of, engine)
