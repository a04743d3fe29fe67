"""
Connections of one client id while the disk takes its time: which are accepted, and whose will is
published when.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.support.connects import connect
from tests.support.edge_bench import EdgeBench
from tests.support.keeping import MemoryTable
from tests.support.recorders import SinkRecorder
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.packets import Connect, Will


class Connection(SinkRecorder):
    """One connection; its will's payload is its number. As `MqttProtocol` it is closed once."""

    def __init__(self, house: House, number: int, *, clean: bool, has_will: bool) -> None:
        super().__init__(house.bench.router)
        self.number = number
        self.will = (
            Will(topic="w", payload=b"%d" % number, qos=1, retain=False) if has_will else None
        )
        self.present: bool | None = None
        self.is_open = True
        self.is_good_bye = False
        self._house = house
        self._session: Session | None = None
        packet = Connect(client_id="c", clean_session=clean, will=self.will)
        connect(house.bench.edge, packet, self._accept, self)

    @property
    def is_accepted(self) -> bool:
        return self.present is not None

    def _accept(self, session: Session, present: bool) -> None:
        clients = self._house.bench.edge.clients
        assert self.is_open
        self.present = present
        self._session = session
        assert clients.attach(session, self)

    def drop_if_gone(self) -> bool:
        return False

    def host(self) -> str:
        return ""

    def close(self, reason: str, code: int) -> None:
        """By the edge."""
        self.leave(will=True)

    def leave(self, *, will: bool) -> None:
        """Gone; without `will` the client said DISCONNECT."""
        assert self.is_open
        self.is_open = False
        self.is_good_bye = not will
        if self._session is not None:
            self._house.bench.edge.clients.disconnect(self._session, self, will=will)


class House:
    """An edge, and all connections of client `c`."""

    def __init__(self) -> None:
        self.bench = EdgeBench()
        self.bench.online("")
        self.connections: list[Connection] = []

    def connect(self, *, clean: bool = False, has_will: bool = True) -> Connection:
        number = len(self.connections)
        connection = Connection(self, number, clean=clean, has_will=has_will)
        self.connections.append(connection)
        return connection

    def visit(self) -> None:
        """There is a kept session afterwards, durable."""
        connection = self.connect()
        self.bench.settle()
        connection.leave(will=False)
        self.bench.settle()

    @property
    def wills(self) -> list[int]:
        return [int(e[2]) for e in self.bench.events if e[:2] == ("", "publish")]

    def check(self) -> None:
        """Each will is published once its connection is gone, and was ever there."""
        due = [
            one.number
            for one in self.connections
            if one.will and one.is_accepted and not one.is_open and not one.is_good_bye
        ]
        assert sorted(due) == sorted(self.wills)
        assert sum(one.is_open and one.is_accepted for one in self.connections) <= 1
        assert all(not one.is_open for one in self.connections[:-1])


@pytest.mark.parametrize("clean", [False, True])
def test_client_that_tries_again_while_the_disk_stalls(clean: bool) -> None:
    """
    The second attempt is the one: no will is published, until it is lost itself. The node does not
    read an attempt that waits, so it need not know that the first is gone.
    """
    house = House()
    house.visit()
    first = house.connect(clean=clean)
    second = house.connect(clean=clean)
    assert not first.is_open
    house.bench.settle()
    house.check()

    assert (False, True) == (first.is_accepted, second.is_accepted)
    assert [] == house.wills
    second.leave(will=True)
    assert [second.number] == house.wills


def test_session_of_which_no_client_heard_is_new() -> None:
    """Whoever is told that there was one does not subscribe."""
    house = House()
    house.connect()
    second = house.connect()
    house.bench.settle()

    assert second.present is False


def test_clean_attempt_that_waits_leaves_no_session() -> None:
    """It ends what was kept; the next one begins anew, and is told so when that is durable."""
    house = House()
    house.visit()
    house.connect(clean=True)
    kept = house.connect(clean=False)
    assert not kept.is_accepted
    house.bench.settle()

    assert kept.present is False
    assert not house.bench.edge.clients.sessions["c"].clean
    kept.leave(will=False)
    again = house.connect()
    house.bench.settle()
    assert again.present


def test_clean_attempts_wait_for_the_end_of_what_was_kept() -> None:
    """Also the second one: or the kept session would be back after a crash."""
    house = House()
    house.visit()
    house.connect(clean=True)
    second = house.connect(clean=True)

    assert not second.is_accepted
    house.bench.settle()
    assert second.present is False
    assert {} == house.bench.restart().edge.clients.sessions


def test_attempt_that_waits_does_not_get_a_session_that_leaves() -> None:
    """What the client did there would be lost: the other node has the session as of before."""
    house = House()
    house.visit()
    waiting = house.connect()
    transfer = SessionTransfer(house.bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    assert transfer.freeze("c") is not None

    assert not waiting.is_open
    house.bench.settle()
    assert not waiting.is_accepted
    house.check()

    transfer.thaw("c")
    again = house.connect()
    house.bench.settle()
    assert again.present


def test_attempt_that_waits_is_closed_with_its_session() -> None:
    """By an operator, say: it is not told of a session that is none any more."""
    house = House()
    house.visit()
    waiting = house.connect()

    assert house.bench.edge.clients.delete("c")
    house.bench.settle()
    assert not waiting.is_open and not waiting.is_accepted
    assert {} == house.bench.edge.clients.sessions


def test_clean_session_that_is_not_announced_yet_ends_when_it_is_replaced() -> None:
    """Its connection is accepted when other nodes know of it, and would stay open then."""
    house = House()
    clients = house.bench.edge.clients
    announced: list[Session] = []
    packet = Connect(client_id="c", clean_session=True)
    connect(house.bench.edge, packet, lambda session, _: announced.append(session))

    clients.close("c")

    assert {} == clients.sessions
    assert not clients.attach(announced[0], SinkRecorder(house.bench.router))


@pytest.mark.parametrize("seed", range(300))
def test_any_order(seed: int) -> None:
    """Attempts, commits, losses and good-byes, and attempts at other nodes."""
    rng = Random(seed)
    house = House()
    for _ in range(rng.randrange(5, 40)):
        last = house.connections[-1] if house.connections else None
        match rng.choice(("connect", "connect", "write", "sync", "lose", "bye", "elsewhere")):
            case "connect":
                house.connect(clean=rng.random() < 0.4, has_will=rng.random() < 0.7)
            case "elsewhere":
                house.bench.edge.clients.close("c")
                assert not any(one.is_open for one in house.connections)
            case "write":
                house.bench.commit.write()
            case "sync":
                house.bench.commit.sync()
            case "lose" if last is not None and last.is_open:
                last.leave(will=True)
            case "bye" if last is not None and last.is_open and last.is_accepted:
                last.leave(will=False)
        house.check()
    house.bench.settle()
    house.check()
