"""
SHELL: the journal bytes that sessions hold back, for an operator who looks for disk space.

A session's node knows the session's cursors; a zone's owner knows the bytes above a cursor. So the
node asks the owners when an operator asks the node.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import attrs
import grpc.aio

from txbroker.data.data_directory import DataDirectory
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.session import Session
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.rpc.zone_convert import place_to_wire
from txbroker.storage.lived_time import wall
from txbroker.v1 import control_pb2

MOST_PLACES = 5_000
"""
The most positions in one request. A part with more positions is sampled down to about this number.
"""

MOST_ROUNDS = 8
"""The most owners that are asked for one part, one after the other."""

EXACT = 20
"""Positions of one part whose age is read; others get the age of the next lower one."""


@attrs.frozen(kw_only=True)
class HeldBack:
    """
    The approximate bytes of journals that a session holds back.

    `age`: seconds since the first of them was written. `is_whole`: False if an owner does not
    answer.
    """

    size: int = 0
    age: float = 0.0
    is_whole: bool = True

    def with_(self, above: control_pb2.Above | None) -> HeldBack:
        """Return the sum of this and the bytes above another position; None: no owner answered."""
        if above is None:
            return attrs.evolve(self, is_whole=False)
        age = max(self.age, above.age if above.size else 0.0)
        return attrs.evolve(self, size=self.size + above.size, age=age)


class HoldingSessions:
    """
    The sessions of one node and the bytes that they hold back; `zones` names the owners to ask.
    """

    def __init__(
        self, *, data_directory: DataDirectory, channels: Channels, zones: ResolverCache
    ) -> None:
        self._data_directory = data_directory
        self._channels = channels
        self._zones = zones

    def answer(self, request: control_pb2.HeldRequest) -> control_pb2.HeldReply:
        """Answer another node's request."""
        places = [LogPosition(JournalId(one.zone, one.epoch), one.offset) for one in request.places]
        found = dict(self._here(places[:MOST_PLACES]))
        return control_pb2.HeldReply(
            above=[found.get(place) or control_pb2.Above() for place in places]
        )

    async def of(self, sessions: Iterable[Session]) -> dict[str, HeldBack]:
        """
        Return the held bytes of each session by client id, without sessions that hold back nothing.
        """
        needs = {session.client_id: _lowest(session.needs()) for session in sessions}
        by_part: dict[JournalId, list[int]] = {}
        for places in needs.values():
            for part, offset in places.items():
                by_part.setdefault(part, []).append(offset)
        asked = {part: _sample(offsets) for part, offsets in by_part.items()}
        known = await self._ask(
            [LogPosition(part, offset) for part, offsets in asked.items() for offset in offsets]
        )
        return {
            client_id: _sum(
                known.get(LogPosition(part, _nearest(asked[part], offset)))
                for part, offset in places.items()
            )
            for client_id, places in needs.items()
            if places
        }

    # internal

    async def _ask(self, places: list[LogPosition]) -> dict[LogPosition, control_pb2.Above]:
        """Return the bytes above each position, for positions whose part some node has."""
        known = dict(self._here(places))
        for round_ in range(MOST_ROUNDS):
            by_owner: dict[str, list[LogPosition]] = {}
            for place in places:
                address = self._owner(place.part, round_)
                if place not in known and address is not None:
                    by_owner.setdefault(address, []).append(place)
            if not by_owner:
                break
            answers = await asyncio.gather(
                *(
                    self._ask_one(address, wanted[first : first + MOST_PLACES])
                    for address, wanted in by_owner.items()
                    for first in range(0, len(wanted), MOST_PLACES)
                )
            )
            for answer in answers:
                known.update(answer)
        return known

    async def _ask_one(
        self, address: str, places: list[LogPosition]
    ) -> dict[LogPosition, control_pb2.Above]:
        request = control_pb2.HeldRequest(places=map(place_to_wire, places))
        try:
            reply = await self._channels.stub(address).Held(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError:
            return {}  # the owner is away, or of an earlier version
        pairs = zip(places, reply.above, strict=False)
        return {place: above for place, above in pairs if above.kept}

    def _owner(self, part: JournalId, round_: int) -> str | None:
        """Return the owner to ask in the n-th round: the zone's, then that of each zone above."""
        route = self._zones.get(part.zone) or self._zones.enclosing(part.zone)
        for _ in range(round_):
            if not route.apex:
                return None
            route = self._zones.enclosing(route.apex)
        return None if route.cut is None or route.is_local else route.cut.grpc

    def _here(
        self, places: Iterable[LogPosition]
    ) -> Iterator[tuple[LogPosition, control_pb2.Above]]:
        by_part: dict[JournalId, list[int]] = {}
        for part, offset in places:
            by_part.setdefault(part, []).append(offset)
        for key, offsets in by_part.items():
            kept = self._data_directory.journals.get(key)
            if kept is not None:
                yield from _above(kept, offsets)


def _above(
    part: JournalPart, offsets: list[int]
) -> Iterator[tuple[LogPosition, control_pb2.Above]]:
    ordered = sorted(set(offsets))
    step = max(len(ordered) // EXACT, 1)
    now, age = wall(), 0.0
    for index, offset in enumerate(ordered):
        size = part.log.size_above(offset) if offset < part.log.written else 0
        if size and index % step == 0:
            since = next((batch.time for batch in part.log.batches(offset)), now)
            age = max((now - since) / 1e6, 0.0)
        yield LogPosition(part.key, offset), control_pb2.Above(kept=True, size=size, age=age)


def _lowest(needs: Iterable[LogPosition]) -> dict[JournalId, int]:
    lowest: dict[JournalId, int] = {}
    for part, offset in needs:
        lowest[part] = min(offset, lowest.get(part, offset))
    return lowest


def _sample(offsets: list[int]) -> list[int]:
    """Return about `MOST_PLACES` of the offsets at most, always with the lowest."""
    ordered = sorted(set(offsets))
    return ordered[:: max(-(-len(ordered) // MOST_PLACES), 1)]


def _nearest(sample: list[int], offset: int) -> int:
    return sample[bisect_right(sample, offset) - 1]


def _sum(found: Iterable[control_pb2.Above | None]) -> HeldBack:
    held = HeldBack()
    for above in found:
        held = held.with_(above)
    return held
