"""Packet ids of a client's own publishes, from PUBLISH to the last answer (section 4.3)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.packets import Entry


class Flow(NamedTuple):
    """A publish of a run that is not over; `is_taken`: QoS 2, and PUBREC was due."""

    qos: int
    serial: int
    is_taken: bool


class OpenRun(Protocol):
    """A run of the client's publishes, as its flows see it."""

    @property
    def entries(self) -> list[Entry]:
        """Its publishes."""

    @property
    def serial(self) -> int:
        """Its number."""


class Flows:
    """
    Those of one session. A packet id is free, or a publish in a run has it, or it is *held*:
    what becomes of it is somebody else's business.
    """

    __slots__ = ("_flows", "_held", "_serial")

    def __init__(self) -> None:
        self._flows: dict[int, Flow] = {}
        self._held: set[int] = set()
        self._serial = 0

    def __len__(self) -> int:
        """How many publishes of runs are open."""
        return len(self._flows)

    def next_serial(self) -> int:
        """The number of the next run."""
        self._serial += 1
        return self._serial

    def begin(self, packet_id: int, qos: int, serial: int) -> bool:
        """A publish came in, in the run of this number; False: its packet id is not free."""
        if packet_id in self._flows or packet_id in self._held:
            return False
        self._flows[packet_id] = Flow(qos, serial, False)
        return True

    def taken(self, run: OpenRun, packet_writer: PacketWriter | None) -> list[int]:
        """
        A run of this client is safe: PUBACK or PUBREC goes to the packet writer, in the order of
        the run.

        Returns the packet ids that are its no longer.
        """
        others: list[int] = []
        answers = bytearray()
        for one in run.entries:
            flow = self._flows.get(one.packet_id)
            if flow is None or flow.serial != run.serial:
                others.append(one.packet_id)
                continue
            if flow.qos == 1:
                del self._flows[one.packet_id]
            else:
                self._flows[one.packet_id] = flow._replace(is_taken=True)
            answers += bytes((0x40 if flow.qos == 1 else 0x50, 2)) + one.packet_id.to_bytes(2)
        if packet_writer is not None and answers:
            packet_writer.send(bytes(answers))
        return others

    def release(self, packet_id: int, packet_writer: PacketWriter) -> bool:
        """PUBREL of a clean session's client came: PUBCOMP goes out; False: the id is held."""
        if packet_id in self._held:
            return False
        flow = self._flows.get(packet_id)
        if flow is not None and flow.qos == 2:
            del self._flows[packet_id]
        packet_writer.send(b"\x70\x02" + packet_id.to_bytes(2))
        return True

    def hold(self, packet_id: int) -> None:
        """Somebody else looks after it from here on."""
        self._flows.pop(packet_id, None)
        self._held.add(packet_id)

    def free(self, packet_id: int) -> None:
        """It is not held any more."""
        self._held.discard(packet_id)

    def get(self, packet_id: int) -> Flow | None:
        """The publish of a run that has this packet id."""
        return self._flows.get(packet_id)

    def packet_ids(self) -> list[int]:
        """Those of all publishes of runs that are open, in no order."""
        return list(self._flows)
