"""
A node that checks itself sees each planted breach, and ends at the first one.

`PLANTS` breaks the state of one rule after the other in a node that works, and its check names the
rule. That no rule is broken without a plant, the models and the fault harness show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import attrs
import pytest

from tests.support import wire
from tests.support.cluster import Cluster, on_loop
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from txbroker.delegation.delegation_table import Delegation
from txbroker.directory.session_ownership import FrozenSession
from txbroker.edge.routing.publication import InDoubt
from txbroker.edge.routing.route_state import RouteState
from txbroker.link.link_server import LinkServer
from txbroker.model.errors import InvariantBroken
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Cursor
from txbroker.mqtt.session.inbound_publish import InboundPublish
from txbroker.mqtt.session.window import OutboundMessage
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.checked_turns import VARIABLE, CheckedFlushQueue, make_flush_queue
from txbroker.runtime.flush_queue import FlushQueue

PART = JournalId("z", 1)


class Plant(NamedTuple):
    """
    What is broken: fields of an object that are other values for a moment; `of` finds the object in
    a node.
    """

    rule: int
    of: Callable[[Any], Any]
    fields: Callable[[Any], Mapping[str, Any]]


def queue(node: Any) -> Any:
    return node.authority._settling


def store(node: Any) -> Any:
    return node._owner.store


def checkpoint(node: Any) -> Any:
    return store(node).checkpoint


def part(node: Any) -> Any:
    return store(node)._part


def table(node: Any) -> Any:
    return node.node_grant.table


def route(node: Any) -> Any:
    return node.edge.zones.get("z")


def waiting(node: Any) -> Any:
    return route(node).queue


def claims(node: Any) -> Any:
    return route(node).claims


def session(node: Any) -> Any:
    return node.edge.clients.sessions["kept"]


def sender(node: Any) -> Any:
    return session(node).durable_sender


def holdings(node: Any) -> Any:
    return node._edge_role.directory.ownership


def entries(node: Any) -> Any:
    return node._edge_role.directory.replica.entries


def server(node: Any) -> Any:
    return next(port for port in node.authority.peers.ports() if isinstance(port, LinkServer))


def deliveries(node: Any) -> Any:
    return server(node)._deliveries


def stream(node: Any) -> Any:
    return next(iter(server(node)._intake._streams.values()))


ONE = {"_batch_size": 65, "_batch_count": 1, "_batch_first": 1 << 20}


def early_publish() -> Message:
    return Message("t", b"", 1)


def early(**fields: Any) -> OutboundMessage:
    """A flight that leaves a hole in some rule."""
    entry = OutboundMessage(Message("t", b"", 1), 1, False, LogPosition(PART, 1))
    for name, value in fields.items():
        setattr(entry, name, value)
    return entry


def nested(known: Any) -> dict[str, Delegation]:
    (entry,) = known._delegations.values()
    cut = attrs.evolve(entry.cut, apex="z/y")
    return {**known._delegations, "z/y": attrs.evolve(entry, cut=cut)}


PLANTS: dict[str, Plant] = {
    "a record is shown that was not taken": Plant(3, queue, lambda q: {"through": q.last + 1}),
    "a record is forgotten": Plant(3, queue, lambda q: {"last": q.last + 1000}),
    "an entry stands before earlier ones": Plant(
        3, queue, lambda q: {"_queue": [(q.last + 1, None, None, 0, None)]}
    ),
    "durable before the sync": Plant(
        3, store, lambda s: {"durable": s._part.log.synced + 1, "_begun": 0}
    ),
    "a checkpoint of what is to come": Plant(3, checkpoint, lambda c: {"offset": c._given + 1}),
    "a synced one likewise": Plant(3, checkpoint, lambda c: {"saved": c._given + 1}),
    "an offset above the reserved ones": Plant(
        30, lambda n: store(n)._ceiling, lambda c: {"_offset": 0}
    ),
    "reserved for another epoch": Plant(30, lambda n: store(n)._ceiling, lambda c: {"_epoch": 99}),
    "written before staged": Plant(3, lambda n: part(n).log, lambda g: {"written": g.next}),
    "synced before written": Plant(3, lambda n: part(n).log, lambda g: {"synced": g.written + 1}),
    "a mark without its record": Plant(1, part, lambda p: {"_marks": {("e", 1, "z", 1): 5}}),
    "a part goes on from itself": Plant(
        7, part, lambda p: {"_meta": attrs.evolve(p._meta, predecessor=(p.key, 1))}
    ),
    "nobody will answer": Plant(
        35,
        lambda n: n._node_base.data_directory.committer,
        lambda c: {"_next": [print], "_unsynced": {}},
    ),
    "an epoch goes down": Plant(
        11, table, lambda t: {"_epochs": {a: e - 1 for a, e in t._epochs.items()}}
    ),
    "two owners of a topic": Plant(11, table, lambda t: {"_delegations": nested(t)}),
    "a cut that is not durable": Plant(11, table, lambda t: {"_delegations": {}}),
    "held by another, and its own": Plant(15, table, lambda t: {"_reclaimed_at": {"z": 1}}),
    "served at another epoch": Plant(11, lambda n: n.authority, lambda a: {"epoch": 99}),
    "lives after the present one": Plant(
        30, lambda n: n.node_grant, lambda s: {"_state": attrs.evolve(s._state, lives=(99,))}
    ),
    "online without a port": Plant(2, route, lambda r: {"_port": None}),
    "a port, and not online": Plant(2, route, lambda r: {"_state": RouteState.IDLE}),
    "a doubt about nothing": Plant(
        2, waiting, lambda q: {"_doubts": [InDoubt(key=("e", 1, "z", 1), first=1, publications=())]}
    ),
    "bytes that nobody sent": Plant(34, waiting, lambda q: {"_waiting_size": 1}),
    "awaited, not claimed": Plant(13, claims, lambda c: {"claiming": {"z/q": None}}),
    "a position that was lost": Plant(
        6,
        lambda n: n.edge.zones.get(""),
        lambda r: {"_position": attrs.evolve(r.position, offset=-1)},
    ),
    "sent before it is durable": Plant(
        17,
        lambda n: sender(n).window,
        lambda w: {"flights": {1: early(is_unsaved=True, is_sent=True, size=0)}},
    ),
    "a packet id out of range": Plant(
        16, lambda n: sender(n).window, lambda w: {"flights": {65_536: early()}}
    ),
    "bytes in flight that are none": Plant(
        34, lambda n: sender(n).window, lambda w: {"flight_size": w.flight_size + 1}
    ),
    "one id, two publishes": Plant(
        16, lambda n: session(n).receiver, lambda r: {"_flows": {1: InboundPublish(2, 2)}}
    ),
    "a client that left without places": Plant(6, sender, lambda s: {"sink": None}),
    "a cursor of another part": Plant(
        6, lambda n: session(n).places, lambda c: {"behind": {PART: Cursor(JournalId("y", 1), 0)}}
    ),
    "a part that waits for itself": Plant(
        7,
        lambda n: session(n).places,
        lambda c: {"behind": {PART: Cursor(PART, 0, None, LogPosition(PART, 1))}},
    ),
    "a session that is over": Plant(33, session, lambda s: {"is_over": True}),
    "a mark above a need": Plant(
        31,
        lambda n: n.edge.low_water,
        lambda w: {"_marks": {PART: 4}, "_sessions": {"x": mock.Mock(needs=lambda: [(PART, 3)])}},
    ),
    "marks that are not stored": Plant(
        31, lambda n: n._node_base.retention, lambda r: {"_kept": {**r._kept, "ghost": {}}}
    ),
    "frozen, and not here": Plant(
        18,
        holdings,
        lambda h: {"frozen": {"x": FrozenSession(node="a", token=b"", incarnation=1, since=0.0)}},
    ),
    "here, and not stored": Plant(18, holdings, lambda h: {"held": {}, "_unfinished": {}}),
    "an entry that is said, and hearsay": Plant(
        19, entries, lambda e: {"_hearsay": {"root": dict.fromkeys(e._records)}}
    ),
    "a removed member that is one": Plant(
        36, lambda n: n.members, lambda m: {"_removed": {"edge": None}}
    ),
    "credit for more than was sent": Plant(
        28, lambda n: route(n).port._live, lambda p: {"_consumed": 1 << 40}
    ),
    "a gap between sequences": Plant(
        1, lambda n: route(n).port._live, lambda p: {"batch": [early_publish()], **ONE}
    ),
    "credit told that is none": Plant(
        20, lambda n: route(n).port._consumer, lambda c: {"_consumed_told": 1 << 40}
    ),
}

OWNER_PLANTS: dict[str, Plant] = {
    "acknowledged before the mark": Plant(
        1, stream, lambda s: {"taken": s.next - 1 + 5, "next": 99}
    ),
    "acknowledged before it was taken": Plant(1, stream, lambda s: {"taken_told": s.taken + 1}),
    "consumed more than was sent": Plant(20, deliveries, lambda d: {"consumed": 1 << 40}),
    "live bytes that are none": Plant(34, deliveries, lambda d: {"queued": 1}),
    "a read that is not in the queue": Plant(6, deliveries, lambda d: {"_backlogs": 1}),
    "reached what is not delivered": Plant(6, server, lambda s: {"_reached": 1 << 40}),
    "credit for what did not come": Plant(20, server, lambda s: {"_credit_told": 1 << 40}),
}


async def prepare(cluster: Cluster) -> None:
    """The root has a durable session, follows a zone, and has published into that."""
    client = await cluster.client("root", "kept", clean=False)
    await client.subscribe(("#", 1))
    other = await cluster.client("root")
    await other.publish("t", b"1", 1)
    await other.publish("z/t", b"1", 1)
    await client.wait_for(2)


@on_loop
async def test_each_breach_is_seen(tmp_path: Path) -> None:
    """By the check of the class that owns the state, with the number of its rule."""
    async with Cluster(tmp_path, {"root": "", "z": "z"}) as cluster:
        await prepare(cluster)
        unseen = look(cluster.nodes["root"], PLANTS) + look(cluster.nodes["z"], OWNER_PLANTS)
    assert not unseen


def look(node: Any, plants: Mapping[str, Plant]) -> list[str]:
    """What the node's checks say of each, where that is not the rule that it breaks."""
    unseen = []
    for name, plant in plants.items():
        node.checks.check()
        target = plant.of(node)
        with mock.patch.multiple(target, **plant.fields(target)):
            try:
                node.checks.check()
                unseen.append(f"{name}: nothing")
            except InvariantBroken as broken:
                if broken.rule != plant.rule:
                    unseen.append(f"{name}: {broken}")
    node.checks.check()
    return unseen


BREAK = """
from txbroker.storage.committer import Committer


def pass_on(self, actions):
    self._ready.extend(actions)  # though nothing is synced


Committer._release = pass_on
"""


@pytest.mark.parametrize("checks", ["1", ""])
def test_a_broken_rule_ends_the_node(tmp_path: Path, checks: str) -> None:
    """At once, with its line, where the node checks itself; else it goes on."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(BREAK)
    env = {"PYTHONPATH": str(broken), VARIABLE: checks}
    node = NodeProcess(tmp_path, topology("n", zone=""), env=env)
    with node.start(), RawClient(node.mqtt) as client:
        client.connect("c")
        if not checks:
            client.publish("t", b"x", qos=1)
            return
        client.send(wire.publish("t", b"x", qos=1, packet_id=7))
        assert 1 == node.wait(20.0)
        assert "rule 3: ZoneStore" in node.wait_event("node.failed")["reason"]


def test_nothing_checks_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush queue is the plain one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert type(make_flush_queue(lambda _: None)) is FlushQueue
    monkeypatch.setenv(VARIABLE, "1")
    assert type(make_flush_queue(lambda _: None)) is CheckedFlushQueue
