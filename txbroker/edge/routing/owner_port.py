"""The owner of a zone, as an edge sees it while they are connected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from txbroker.core import Run, Sender
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.model.log_position import JournalHolder, JournalId
from txbroker.model.zone_cut import ZoneCut


class OutStream(Protocol):
    """A publish stream beside the live one, on one connection."""

    def send(self, entries: Sequence[OutboxEntry]) -> None:
        """Send entries, each with its number as its sequence."""

    def restart(self) -> None:
        """After a refusal: what is sent from now on is to be taken again."""


class StreamUser(Protocol):
    """Whoever sends in an `OutStream`."""

    def on_taken(self, sequence: int) -> None:
        """The owner has everything up to this one."""

    def on_refused(self, sequence: int, cut: ZoneCut | None, *, retry: bool) -> None:
        """
        It has what came before this one, and takes nothing from there on until a restart.

        `cut` may say whose the topic is; `retry`: it may be sent again at once.
        """


class OwnerPort(Protocol):
    """The owner of a zone, as an edge sees it while they are connected."""

    def has_credit(self) -> bool:
        """Whether more publishes may be sent now."""

    def publish(self, publication: Publication) -> None:
        """Send one; QoS 1/2 come back through the edge's `on_taken` or `on_refused`."""

    def publish_run(self, run: Run) -> None:
        """Send many."""

    def sender(self) -> Sender | None:
        """What sends QoS 0 at once, if nothing has to go before that, or to wait."""

    def restart(self, sequence: int, returned: Iterable[Publication]) -> None:
        """After a refusal, which `returned` these: the next QoS 1/2 publish has this number."""

    def ask(self, keys: Iterable[MarkKey], answered: Callable[[dict[MarkKey, int]], None]) -> None:
        """Ask how far these streams were taken; no answer where the connection breaks."""

    def open_stream(self, key: MarkKey, user: StreamUser) -> OutStream:
        """Another publish stream."""

    def add_interest(self, topic_filter: str, request: int, *, retained: bool) -> None:
        """Ask for deliveries, and once for the `retained` messages."""

    def remove_interest(self, topic_filter: str) -> None:
        """No more deliveries."""

    def sync(self, filters: Iterable[str], claims: Iterable[str]) -> None:
        """Replace the interest and claim what was inherited."""

    def keep(
        self,
        places: dict[JournalId, int],
        kept: Callable[[], None],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]],
    ) -> None:
        """
        What this edge's sessions need lies above these offsets; `kept` is called when that is
        durable there, not at all where the connection breaks before. `holders` are the sessions
        that hold back most, for operators.
        """

    def close(self, reason: str) -> None:
        """Give up this connection, which is lost when this returns."""
