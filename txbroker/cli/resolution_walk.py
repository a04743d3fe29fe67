"""
One walk to the owners of a topic or filter, step by step, as an edge with an empty cache takes it.

Each step asks the nodes that the step before referred to, all at the same time. A referral must
name a strictly deeper zone (protocol rule 14), so the walk ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs
import click

from txbroker.cli.node_calls import CALL_TIMEOUT, Channels, NoAnswer, answer
from txbroker.model.topics import is_filter_within, is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.link_convert import cut_from_wire
from txbroker.v1.control_pb2 import ResolveReply, ResolveRequest, StatusRequest

ANSWERS = {
    ResolveReply.AUTHORITATIVE: "authoritative",
    ResolveReply.REFERRAL: "referral",
    ResolveReply.NOT_AUTHORITATIVE: "not authoritative",
}
START = "start"
"""The answer of a node that does not cover the question, and tells where a walk can begin."""
UNREACHABLE = "unreachable"
LOCAL = "local"
"""The answer to a question about `$SYS`, which each node has for itself."""


class BadReferral(click.ClickException):
    """A node refers to a zone that is not below its own; following it might never end."""


@attrs.frozen(kw_only=True)
class WalkStep:
    """
    One question asked: of whom (gRPC address), and what the answer was.

    Zone and epoch are those of the node that answers, else those it was believed to have; None
    where there is no zone. `ttl` is in seconds, None without an answer.
    """

    asked: str
    answer: str
    zone: str | None = None
    epoch: int | None = None
    ttl: int | None = None
    referrals: tuple[ZoneCut, ...] = ()


@attrs.frozen(kw_only=True)
class ZoneOwner:
    """A zone that holds part of the question, and its node; zone and epoch are None for `$SYS`."""

    zone: str | None
    node: str
    grpc: str
    epoch: int | None


def is_local(question: str) -> bool:
    """Whether the question is about `$SYS`: answered by each node for itself, never resolved."""
    return question == "$SYS" or question.startswith("$SYS/")


class ResolutionWalk:
    """The walk for one question; `complete` when every part of it found its owner."""

    def __init__(self, channels: Channels, question: str) -> None:
        self.question = question
        self.steps: list[WalkStep] = []
        self.owners: list[ZoneOwner] = []
        self.complete = True
        self._channels = channels

    async def run(self, address: str) -> ResolutionWalk:
        """
        Walk, with the node at `address` asked first; raises `BadReferral`, and a plain
        `click.ClickException` where that node knows no zone to start at.
        """
        if is_local(self.question):
            await self._look(address)
            return self
        reply = await self._ask(address, None)
        if reply is None:
            self._fail(WalkStep(asked=address, answer=UNREACHABLE))
            return self
        own = cut_from_wire(reply.zone)
        if reply.answer != reply.NOT_AUTHORITATIVE and is_filter_within(self.question, own.apex):
            asked = attrs.evolve(own, grpc=address)
            await self._descend(self._take(asked, reply) or [])
            return self
        self.steps.append(_step(address, reply, START))
        await self._climb([cut_from_wire(cut) for cut in reply.lineage])
        return self

    # internal

    async def _climb(self, lineage: Sequence[ZoneCut]) -> None:
        """Begin at the deepest zone that covers the question and answers for itself."""
        starts = [cut for cut in lineage if is_filter_within(self.question, cut.apex)]
        for cut in reversed(starts):
            referrals = self._take(cut, await self._ask(cut.grpc, cut.apex))
            if referrals is not None:
                await self._descend(referrals)
                return
        if not starts:
            raise click.ClickException(
                f"{self.steps[0].asked} knows no zone that covers {self.question!r};"
                " has it joined its parent?"
            )
        self.complete = False

    async def _descend(self, cuts: Sequence[ZoneCut]) -> None:
        """Follow referrals until nobody refers any deeper."""
        while cuts:
            cuts = sorted(cuts, key=lambda cut: cut.apex.split("/"))
            replies = await asyncio.gather(*(self._ask(cut.grpc, cut.apex) for cut in cuts))
            deeper: list[ZoneCut] = []
            for cut, reply in zip(cuts, replies, strict=True):
                referrals = self._take(cut, reply)
                if referrals is None:
                    self.complete = False
                deeper.extend(referrals or ())
            cuts = deeper

    def _take(self, cut: ZoneCut, reply: ResolveReply | None) -> list[ZoneCut] | None:
        """Note the answer of a cut's node; gives its referrals, None when it does not answer."""
        if reply is None:
            step = WalkStep(asked=cut.grpc, answer=UNREACHABLE, zone=cut.apex, epoch=cut.epoch)
            self._fail(step)
            return None
        self.steps.append(_step(cut.grpc, reply, ANSWERS[reply.answer]))
        if reply.answer == reply.NOT_AUTHORITATIVE:
            return None
        zone = reply.zone
        if reply.local:
            self.owners.append(
                ZoneOwner(zone=zone.apex, node=zone.node, grpc=zone.grpc, epoch=zone.epoch)
            )
        referrals = [cut_from_wire(referral) for referral in reply.referrals]
        for referral in referrals:
            if referral.apex == cut.apex or not is_within(referral.apex, cut.apex):
                raise BadReferral(
                    f"{cut.grpc} serves zone {cut.apex!r} and refers to zone {referral.apex!r},"
                    " which is not below it; the walk ends here"
                )
        return referrals

    def _fail(self, step: WalkStep) -> None:
        self.steps.append(step)
        self.complete = False

    async def _look(self, address: str) -> None:
        call = self._channels.stub(address).Status(StatusRequest(), timeout=CALL_TIMEOUT)
        status = await answer(address, call)
        self.steps.append(WalkStep(asked=address, answer=LOCAL))
        node = status.zone
        self.owners.append(ZoneOwner(zone=None, node=node.node, grpc=node.grpc, epoch=None))

    async def _ask(self, address: str, apex: str | None) -> ResolveReply | None:
        request = ResolveRequest(question=self.question, zone=apex or "", any=apex is None)
        call = self._channels.stub(address).Resolve(request, timeout=CALL_TIMEOUT)
        try:
            return await answer(address, call)
        except NoAnswer:
            return None


def _step(address: str, reply: ResolveReply, said: str) -> WalkStep:
    zone = reply.zone
    # Nobody holds a zone before epoch 1, and a pure edge never does.
    has_zone = bool(zone.apex or zone.epoch)
    return WalkStep(
        asked=address,
        answer=said,
        zone=zone.apex if has_zone else None,
        epoch=zone.epoch if has_zone else None,
        ttl=reply.ttl,
        referrals=tuple(cut_from_wire(cut) for cut in reply.referrals) if said != START else (),
    )
