"""
SHELL: the nodes of a tree, and the parts of journals that they keep. Synchronous gRPC.

A look begins at any node. The look goes up to the root zone, and down to every zone that the filter
may match. All nodes of a step are asked at the same time. Of a node that is away its parent's word
stands, also of what is below it. A node may keep parts of its own zone and of zones below, which
came back to it. So every node on the way is asked for its parts.

Not imported with the data source: workers and planners import it when they run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

import attrs
import grpc

from txbroker.delegation.resolution import start_at
from txbroker.delegation.tree_walk import NodeAnswer, TreeWalk
from txbroker.model.errors import PipelineError
from txbroker.model.log_position import JournalId
from txbroker.model.topics import may_match_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.pipeline.source.channel import open_channel
from txbroker.pipeline.source.ranges import JournalRange, ZoneHistory, logs_of
from txbroker.rpc.channels import CALL_TIMEOUT, why
from txbroker.rpc.zone_convert import node_from_wire
from txbroker.v1.control_pb2 import StatusRequest
from txbroker.v1.control_pb2_grpc import ControlStub
from txbroker.v1.journal_pb2 import PartsReply, PartsRequest, SeekRequest
from txbroker.v1.journal_pb2_grpc import JournalStub

if TYPE_CHECKING:
    from txbroker.v1.control_pb2_grpc import ControlStub as ControlCalls
    from txbroker.v1.journal_pb2_grpc import JournalStub as JournalCalls

WALK_EVERY = 2.0
"""Seconds for which the nodes that were found are taken for all."""

QUIET = 1.0
"""Seconds for which a node that gave no answer is not asked again."""


class Stubs:
    """Channels to nodes, by address."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.Channel] = {}

    def control(self, address: str) -> ControlCalls:
        """The stub for a node's control plane."""
        return ControlStub(self._channel(address))

    def journal(self, address: str) -> JournalCalls:
        """The stub for a node's journals."""
        return JournalStub(self._channel(address))

    def close(self) -> None:
        """Close all."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _channel(self, address: str) -> grpc.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        return channel


@attrs.frozen(kw_only=True)
class FoundNode:
    """
    The result of one look: the parts at nodes that answered, and the cuts of nodes that gave no
    answer. `cut_off` has the parts that went with a node from which its zone was reclaimed.
    """

    parts: tuple[JournalRange, ...] = ()
    missing: tuple[ZoneCut, ...] = ()
    cut_off: frozenset[JournalId] = frozenset()

    def logs(self) -> dict[str, ZoneHistory]:
        """The parts by zone."""
        return logs_of(self.parts, {cut.apex for cut in self.missing}, self.cut_off)


class NodeWalk:
    """The nodes of the tree of which the one at `root` (a gRPC address) is one."""

    def __init__(self, root: str, topic_filter: str = "") -> None:
        self.root = root
        self._filter = topic_filter or "#"
        self._stubs = Stubs()
        self._known: list[ZoneCut] = []
        self._missing: tuple[ZoneCut, ...] = ()
        self._cut_off: set[JournalId] = set()
        self._walked = float("-inf")
        self._quiet: dict[str, float] = {}
        self._last_error: grpc.RpcError | None = None

    def close(self) -> None:
        """Close all channels."""
        self._stubs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def discover(self, *, fresh: bool = False) -> FoundNode:
        """
        Find the nodes that keep parts now; raises `PipelineError` when no node answers at all.

        `fresh`: look for nodes even if that was done a moment ago.
        """
        if fresh or time.monotonic() - self._walked > WALK_EVERY or self._missing:
            self._walk()
        parts: list[JournalRange] = []
        away = list(self._missing)
        for cut, reply in self._ask(self._known, self._ask_parts):
            if reply is None:
                away.append(cut)
                self._walked = float("-inf")
            else:
                parts += self._parts(cut, reply)
        self._cut_off |= {part.key for part in parts if part.is_cut_off}
        # A branch that its node has brought in after all is a part like others.
        self._cut_off -= {part.key for part in parts if not part.is_cut_off}
        return FoundNode(parts=tuple(parts), missing=tuple(away), cut_off=frozenset(self._cut_off))

    def seek(self, part: JournalRange, moment: int) -> int:
        """
        The first offset of a part that was received at `moment` (UTC, microseconds) or later;
        raises `PipelineError`.
        """
        request = SeekRequest(zone=part.zone, epoch=part.epoch, time=moment)
        try:
            reply = self._stubs.journal(part.address).Seek(request, timeout=CALL_TIMEOUT)
        except grpc.RpcError as error:
            raise PipelineError(why(part.address, error)) from None
        return reply.offset

    # internal

    def _walk(self) -> None:
        walk = TreeWalk(self._starts(), self._around)
        while queries := walk.next_queries():
            for cut, reply in self._ask(queries, self._ask_status):
                answer = None if reply is None else node_from_wire(reply, cut.grpc)
                walk.accept_answer(cut, answer)
        answers = walk.answers.values()
        if not answers:
            raise PipelineError(why(self.root, self._last_error))
        serving = {node.own.apex: node.own.epoch for node in answers if node.serves}
        reclaimed = {(cut.apex, cut.node): cut for node in answers for cut in node.reclaimed}
        self._known = [node.own for node in answers]
        self._missing = tuple(
            cut
            for cut in walk.missing()
            if (cut.apex, cut.node) not in reclaimed and serving.get(cut.apex, 0) <= cut.epoch
        )
        self._cut_off |= {JournalId(cut.apex, cut.epoch) for cut in reclaimed.values()}
        self._walked = time.monotonic()

    def _starts(self) -> list[ZoneCut]:
        """
        The beginnings of a walk: the root option's node, and the nodes that were found before.
        """
        return [start_at(self.root), *(cut for cut in self._known if cut.grpc != self.root)]

    def _around(self, node: NodeAnswer) -> list[ZoneCut]:
        """The zones above and below a node, at any depth, and nodes that lost theirs."""
        cuts = (*node.lineage, *node.reclaimed, *node.below)
        return [cut for cut in cuts if may_match_within(self._filter, cut.apex)]

    def _ask_status(self, address: str) -> Any:
        call: Any = self._stubs.control(address).Status
        return call.future(StatusRequest(), timeout=CALL_TIMEOUT)

    def _ask_parts(self, address: str) -> Any:
        call: Any = self._stubs.journal(address).Parts
        return call.future(PartsRequest(), timeout=CALL_TIMEOUT)

    def _ask(
        self, cuts: Iterable[ZoneCut], begin: Callable[[str], Any]
    ) -> Iterator[tuple[ZoneCut, Any]]:
        """All at the same time; None for a node that gives no answer."""
        now = time.monotonic()
        calls = [
            (cut, begin(cut.grpc) if self._quiet.get(cut.grpc, 0) <= now else None) for cut in cuts
        ]
        for cut, call in calls:
            try:
                yield cut, call and call.result()
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise PipelineError(why(cut.grpc, error)) from None
                self._last_error = error
                self._quiet[cut.grpc] = time.monotonic() + QUIET
                yield cut, None

    def _parts(self, cut: ZoneCut, reply: PartsReply) -> Iterator[JournalRange]:
        for kept in reply.parts:
            if not may_match_within(self._filter, kept.zone):
                continue
            yield JournalRange(
                zone=kept.zone,
                epoch=kept.epoch,
                first=kept.first,
                end=kept.end,
                is_closed=kept.closed,
                is_cut_off=kept.cut_off,
                node=cut.node,
                address=cut.grpc,
            )
