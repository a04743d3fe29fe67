"""Port of a group's coordinator to the edge of some members."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from txbroker.core import Run
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message


class MemberPort(Protocol):
    """
    An edge with members of groups, while it is connected.

    A group is named by its whole filter, `$share/GROUP/FILTER`.
    """

    @property
    def edge_name(self) -> str:
        """Return the name of the edge."""

    def lend(
        self,
        group: str,
        part: JournalId,
        offsets: Sequence[int],
        messages: Sequence[Message],
        *,
        is_again: bool,
    ) -> None:
        """
        Lend messages of QoS 1 and 2, each to one member; the edge reports what becomes of them.

        `part` and `offsets` identify the messages. `is_again`: a member had them before.
        """

    def lend_run(self, group: str, part: JournalId, run: Run) -> None:
        """Lend messages of QoS 1 that no member had before, each to one member."""

    def send_run(self, group: str, run: Run) -> None:
        """Send messages of QoS 0, each to one member; messages without room are discarded."""

    def confirm(self, group: str, pending: Collection[str]) -> None:
        """Confirm the group: its zones hold messages for it, except the `pending` ones."""

    def confirm_report(self, group: str, request: int) -> None:
        """Confirm that the report of this number, and all before it, are durable."""
