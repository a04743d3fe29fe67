"""
Tracks the packet ids of a client's publishes, from PUBLISH to the last acknowledgement.

Section 4.3 of MQTT 3.1.1 defines the flows. States of a packet id:

- *free*: no publish has the id;
- *open*: a publish of a run has the id. QoS 1 ends at PUBACK. QoS 2 moves on at PUBREC
  (`Flow.is_taken`), and ends at PUBREL;
- *held*: another part of the session handles the id (`hold`), until `free`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.packets import Entry
from txbroker.mqtt.wire.property_list import LISTED_LEVEL


class Flow(NamedTuple):
    """An open publish of a run; `is_taken`: True for QoS 2 once PUBREC was due."""

    qos: int
    serial: int
    is_taken: bool


class OpenRun(Protocol):
    """A run of the client's publishes, as `Flows` needs it."""

    @property
    def entries(self) -> list[Entry]:
        """The publishes of the run."""

    @property
    def serial(self) -> int:
        """The serial number of the run."""


class Flows:
    """The packet ids of one session: each is free, open or held."""

    __slots__ = ("_flows", "_held", "_serial")

    def __init__(self) -> None:
        self._flows: dict[int, Flow] = {}
        self._held: set[int] = set()
        self._serial = 0

    def __len__(self) -> int:
        """Return the number of open publishes."""
        return len(self._flows)

    def next_serial(self) -> int:
        """Return the serial number of the next run."""
        self._serial += 1
        return self._serial

    def open_flow(self, packet_id: int, qos: int, serial: int) -> bool:
        """Open a flow for a publish of run `serial`; return False if its packet id is not free."""
        if packet_id in self._flows or packet_id in self._held:
            return False
        self._flows[packet_id] = Flow(qos, serial, False)
        return True

    def acknowledge(self, run: OpenRun, packet_writer: PacketWriter | None) -> list[int]:
        """
        Acknowledge a durable run: send PUBACK or PUBREC of each publish, in the order of the run.

        Return the packet ids that the run has lost to `hold`, or to a later run.
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
        """
        Handle PUBREL of a clean session: send PUBCOMP.

        Return False if the id is held. At level 5 return False, too, if no publish of QoS 2 has the
        id: PUBCOMP says so.
        """
        if packet_id in self._held:
            return False
        flow = self._flows.get(packet_id)
        if flow is not None and flow.qos == 2:
            del self._flows[packet_id]
        elif packet_writer.level >= LISTED_LEVEL:
            return False
        packet_writer.send(b"\x70\x02" + packet_id.to_bytes(2))
        return True

    def hold(self, packet_id: int) -> None:
        """Move a packet id to *held*: another part of the session handles it."""
        self._flows.pop(packet_id, None)
        self._held.add(packet_id)

    def free(self, packet_id: int) -> None:
        """End *held* for a packet id."""
        self._held.discard(packet_id)

    def get(self, packet_id: int) -> Flow | None:
        """Return the open flow of a packet id, or None."""
        return self._flows.get(packet_id)

    def packet_ids(self) -> list[int]:
        """Return the packet ids of all open publishes, in no order."""
        return list(self._flows)
