"""A node's disk and zone in memory: what outlives a process, and what a handover moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from txbroker.authority.handover_source import HandoverSource
from txbroker.delegation.grant_state import NodeState
from txbroker.delegation.zone_snapshot import StagedZone
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message

if TYPE_CHECKING:
    from tests.delegation.simulated_tree import Node


class Disk:
    """What outlives a process; it is the node's `GrantStore`, too."""

    def __init__(self, node: Node) -> None:
        self.state = NodeState(node=node.name, zone=node.zone_name)
        self.received: StagedZone | None = None
        self.values: dict[str, bytes] = {}
        self.offset = 0
        self.absorbed = ""
        self._node = node

    @property
    def incoming(self) -> ReceivedZonePlace:
        return ReceivedZonePlace(self, self._node)

    def save(self, state: NodeState) -> None:
        self._node.tree.strike(f"{self._node.name} saves")
        self._node.check_space()
        self.state = state
        self._node.tree.strike(f"{self._node.name} saved")


class ReceivedZonePlace:
    """The place of one zone's received state."""

    def __init__(self, disk: Disk, node: Node) -> None:
        self._disk, self._node = disk, node

    def save(self, staged_zone: StagedZone) -> None:
        self._node.check_space()
        self._disk.received = staged_zone

    def load(self) -> StagedZone | None:
        return self._disk.received

    def remove(self) -> None:
        self._disk.received = None


class Values:
    """The retained values of a zone."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.now = dict(values)

    def within(self, apex: str) -> Iterator[Message]:
        return (Message(t, v, 1, True) for t, v in self.now.items() if is_within(t, apex))

    def get(self, topic: str) -> Message | None:
        value = self.now.get(topic)
        return None if value is None else Message(topic, value, 1, True)


class Nobody:
    """The edges of a zone: none."""

    def within(self, apex: str) -> Iterator[Any]:
        return iter(())


class Journal:
    """A journal that has arrived; its records are not simulated."""

    def __init__(self) -> None:
        self.is_committed = False
        self.parts: list[JournalId] = []

    def close(self) -> None:
        pass


class Zone:
    """A node's zone, and the transfers of its subtrees."""

    def __init__(self, node: Node) -> None:
        self.apex = node.zone_name
        self.epoch = 0
        self.offset = node.disk.offset
        self.serving = False
        self.retained = Values(node.disk.values)
        self.peers, self.marks = Nobody(), dict[Any, int]()
        self.fenced: set[str] = set()
        self.outgoing: list[HandoverSource] = []
        self.subtrees = self
        self._node = node

    def cuts(self) -> tuple[ZoneCut, ...]:
        return self._node.node_grant.table.cuts()

    def accepts(self, topic: str) -> bool:
        """True if a publish of this topic gets an acknowledgement here."""
        if not self.serving or not is_within(topic, self.apex):
            return False
        is_delegated = self._node.node_grant.table.lookup(topic) is not None
        return not is_delegated and not any(is_within(topic, apex) for apex in self.fenced)

    def publish(self, topic: str, number: int, acknowledged: Callable[[int], object]) -> None:
        self.offset = self._node.disk.offset = self.offset + 1
        self.retained.now[topic] = str(number).encode()
        for source in self.outgoing:
            source.mark_changed(topic)

        def durable() -> None:
            self._node.disk.values = dict(self.retained.now)
            acknowledged(number)

        self._node.after(self._node.tree.clock.delay() * 3, durable)

    def open(self, epoch: int) -> None:
        self.epoch, self.serving = epoch, True

    # the transfers

    def awaits_claims(self, apex: str) -> bool:
        return False

    def prepare(self, apex: str) -> HandoverSource:
        source = HandoverSource(self, apex)  # type: ignore[arg-type]
        self.outgoing.append(source)
        return source

    def fence(self, source: HandoverSource) -> int:
        self.fenced.add(source.apex)
        return self.offset

    def roll_back(self, source: HandoverSource) -> None:
        self.outgoing.remove(source)
        self.fenced.discard(source.apex)

    def complete(self, source: HandoverSource) -> None:
        if source.apex == self.apex:
            self.serving = False
        self.discard_retained(source.apex)
        self.roll_back(source)

    def discard_retained(self, apex: str) -> None:
        disk = self._node.disk
        self.retained.now = outside(apex, self.retained.now)
        disk.values = outside(apex, disk.values)

    def fence_returned(self, apex: str) -> None:
        self.fenced.add(apex)

    def is_claimed(self, apex: str) -> bool:
        return True

    def release(self, apex: str) -> None:
        self.fenced.discard(apex)

    @property
    def delivered(self) -> int:
        return self.offset

    def announce(self, cut: ZoneCut) -> None:
        pass

    def announce_found(self, cut: ZoneCut) -> None:
        pass


def outside(apex: str, values: dict[str, bytes]) -> dict[str, bytes]:
    """Return the values of topics that are not within the apex."""
    return {topic: value for topic, value in values.items() if not is_within(topic, apex)}
