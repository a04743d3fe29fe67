"""What a child tells of its zone in a hand-back, as the parent keeps it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.apart import run_apart
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.hand_back_messages import HandBackOffer
from txbroker.delegation.hand_back_parent import HandBackParent
from txbroker.delegation.procedure import Procedure
from txbroker.delegation.rpc.hand_back_convert import TakeBackEnd
from txbroker.delegation.rpc.journal_transfer import JournalReceiver
from txbroker.delegation.rpc.procedure_runner import DelegationRunner
from txbroker.delegation.zone_snapshot import StagedZone, mark_of_will
from txbroker.journal.store.record_format import encode_records
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.rpc.link_convert import mark_to_wire
from txbroker.storage.segment import FORMAT
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import HandBackRequest

OFFER = HandBackOffer(node="n", zone="a", epoch=1)
FENCE = HandBackRequest(fence=control_pb2.Fence(zone="a", epoch=1, offset=5))
ALIVE = HandBackRequest(alive=control_pb2.Alive())
COPIED = HandBackRequest(copied=control_pb2.Copied())
PART = HandBackRequest(part=control_pb2.JournalPart(zone="a", epoch=1, format=FORMAT))


class Child:
    """The call of a child that says this."""

    def __init__(self, *said: HandBackRequest) -> None:
        self._said = list(said)

    async def read(self, timeout: float) -> HandBackRequest:
        return self._said.pop(0)

    async def write(self, reply: object, timeout: float = 0) -> None:
        pass


class Arriving:
    """Where a journal arrives; nothing is kept."""

    def __init__(self) -> None:
        self.count = 0

    def start_part(self, part: object, before: object) -> None:
        pass

    async def append(self, batch: object) -> None:
        self.count += 1


class Parent:
    """The owner of the root zone, which is at offset 10 and has delegated `a`."""

    def __init__(self) -> None:
        self.table = DelegationTable("")
        self.table.commit(ZoneCut(apex="a", epoch=1, node="n", grpc="127.0.0.1:1"))
        self.is_full = False
        self.arriving = Arriving()
        fakes: dict[str, Any] = {
            "node_grant": SimpleNamespace(table=self.table, known_epoch=self.table.epoch_of),
            "zone": SimpleNamespace(serving=True, apex="", epoch=1, offset=10, delivered=10),
            "node": SimpleNamespace(parts_within=lambda apex: frozenset()),
            "ownership": None,
        }
        self.procedures = HandBackParent(**fakes)

    def take(
        self, *said: HandBackRequest, then: tuple[HandBackRequest, ...] = (FENCE,)
    ) -> StagedZone:
        """The journal, and what comes behind it."""
        journal = JournalReceiver(
            cast(Any, self.arriving),
            JournalId("a", 1),
            is_full=lambda: self.is_full,
            known=self.table.epoch_of,
        )

        def receiving() -> Procedure[StagedZone]:
            yield from self.procedures._receive_journal(OFFER)
            staged_zone, _ = yield from self.procedures._receive_state(OFFER, journal)
            return staged_zone

        end = TakeBackEnd(Child(*said, COPIED, *then), "a", journal)
        others = ("node_grant", "authority", "committer", "channels", "departure")
        runner = DelegationRunner(**dict.fromkeys(others, cast(Any, None)))
        return run_apart(runner.run(receiving(), end))


def batch() -> HandBackRequest:
    body = encode_records([Message("a/t", b"x", 1)], {}, "n")
    one = control_pb2.JournalBatch(first=1, count=1, time=1, body=body)
    return HandBackRequest(batches=control_pb2.JournalBatches(batches=[one]))


def test_marks_of_other_zones_are_left_out() -> None:
    """An honest child has them as well, from its parent."""
    will = ("whose", 3, 7)
    keys = [("e", 1, zone, 5) for zone in ("", "a", "a/b", "ab")]
    marks = [mark_to_wire(key, 1 << 61) for key in (*keys, mark_of_will(will))]
    snapshot = HandBackRequest(snapshot=control_pb2.Snapshot(marks=marks))
    staged_zone = Parent().take(then=(snapshot, FENCE))

    assert {("e", 1, "a", 5), ("e", 1, "a/b", 5), mark_of_will(will, "a")} == set(
        staged_zone.incoming.marks
    )


def test_transitions_of_the_zones_around_are_left_out() -> None:
    """An honest child has them from its parent, whose own later ones would be lost behind these."""

    def passage(apex: str, left: str, entered: str) -> control_pb2.Passage:
        ends = (control_pb2.Predecessor(zone=zone, epoch=1, offset=3) for zone in (left, entered))
        return control_pb2.Passage(apex=apex, left=next(ends), entered=next(ends))

    passages = [passage("a", "", "a"), passage("a/b", "a/b", "a"), passage("", "", "")]
    fence = HandBackRequest(
        fence=control_pb2.Fence(
            zone="a", epoch=1, offset=5, subtree=control_pb2.Subtree(passages=passages)
        )
    )
    staged_zone = Parent().take(then=(fence,))

    assert ["a", "a/b"] == [one.apex for one in staged_zone.subtree.passages]


def test_a_journal_that_fills_the_disk_ends_the_hand_back() -> None:
    """Whatever size was announced: publishes here would wait for as long as the child goes on."""
    parent = Parent()
    parent.take(PART, batch(), ALIVE)
    parent.is_full = True
    with pytest.raises(StoreError, match="no room for the rest"):
        parent.take(PART, batch())
    assert 1 == parent.arriving.count


def test_a_child_keeps_nobody_waiting_behind_its_journal() -> None:
    """Until the fence nothing else changes hands at the parent."""
    with pytest.raises(PeerError, match="does not wait"):
        Parent().take(then=(ALIVE, FENCE))
