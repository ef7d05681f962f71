# SPDX-License-Identifier: Apache-2.0
"""Protects: processes that exchange metadata through a framework all find the same place to meet, and the
transport that they have in common."""

import json

import pytest
from ranks import in_threads

import reshard
from reshard.engines.offers import Offer, chosen


def offer(host="a", transport="auto", transports=("ucx", "gloo"), address=None):
  said = {"host": host, "transport": transport, "transports": list(transports)}
  return said if address is None else said | {"address": address, "port": 5, "secret": "s" * 16, "job": "j"}


def test_the_first_serves_and_a_host_shares_memory():
  place = chosen([offer(address="10.0.0.1"), offer(), offer(address="10.0.0.1")])
  assert place == {"url": "tcp://127.0.0.1:5", "secret": "s" * 16, "job": "j", "transport": "shm"}


@pytest.mark.parametrize(
  ("transports", "expected"), [((("ucx", "gloo"), ("ucx", "gloo")), "ucx"), ((("ucx", "gloo"), ("gloo",)), "gloo")]
)
def test_hosts_use_the_best_transport_that_all_have(transports, expected):
  first, second = transports
  place = chosen([offer("a", transports=first, address="fd00::1"), offer("b", transports=second)])
  assert place["transport"] == expected and place["url"] == "tcp://[fd00::1]:5"


def test_what_cannot_meet_is_refused_with_the_reason():
  with pytest.raises(reshard.InvalidArgumentError, match="rank 0"):
    chosen([offer(), offer(address="10.0.0.1")])
  with pytest.raises(reshard.InvalidArgumentError, match="'auto', 'gloo'"):
    chosen([offer(address="10.0.0.1"), offer(transport="gloo")])
  with pytest.raises(reshard.UnsupportedError, match="none of ucx, gloo in common"):
    chosen([offer("a", transports=["ucx"], address="10.0.0.1"), offer("b", transports=["gloo"])])


def test_a_transport_that_is_asked_for_is_used_within_a_host_too():
  assert chosen([offer(transport="gloo", address="10.0.0.1"), offer(transport="gloo")])["transport"] == "gloo"


def test_processes_meet_by_metadata_that_is_plain_json():
  offers = [Offer(True), Offer(False), Offer(True)]
  place = json.loads(json.dumps(chosen(json.loads(json.dumps([o.metadata for o in offers])))))

  def meet(rank):
    with offers[rank].join(place, rank, 3, 30.0) as group:
      said = group.all_gather(b"%d" % rank)
      group.barrier()
      return said

  assert in_threads(3, meet, groups=[0, 1, 2]) == [[b"0", b"1", b"2"]] * 3
  for done in offers:
    done.close()  # again


def test_who_does_not_come_is_named_within_the_deadline():
  first = Offer(True)
  with pytest.raises(reshard.DeadlineError, match="rank 1"):
    first.join(chosen([first.metadata, Offer(False).metadata]), 0, 2, 0.3)
