"""Answers that several clients get together, before the end of a turn."""

from __future__ import annotations

from txbroker.core.reference.packet_writer import PacketWriter

TOGETHER = 8
"""
Packet writers of a group.

Each write may wake a client that sleeps on the same machine, which costs a tenth of a connection.
Clients that are answered only at the end of a large turn leave the node without work meanwhile.
"""


class OutputGroup:
    """Packet writers whose output is written as soon as the group is full."""

    def __init__(self) -> None:
        self._members: list[PacketWriter] = []

    def add(self, packet_writer: PacketWriter) -> None:
        """Add a packet writer; write the output of a full group, as far as sockets accept bytes."""
        self._members.append(packet_writer)
        if len(self._members) >= TOGETHER:
            members, self._members = self._members, []
            for member in members:
                member.is_sent()

    def clear(self) -> None:
        """Empty the group: the turn ends, and all output is written."""
        self._members.clear()
