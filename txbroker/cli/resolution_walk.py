"""
SHELL: asks nodes for a walk to the owners of a topic or filter. asyncio.
"""

from __future__ import annotations

import asyncio

import attrs
import click

from txbroker.cli.node_calls import CALL_TIMEOUT, Channels, NoAnswer, answer, status_of
from txbroker.delegation.resolution import (
    AnswerKind,
    Resolution,
    ResolutionError,
    ZoneAnswer,
    start_at,
)
from txbroker.model.topics import is_sys
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.zone_convert import answer_from_wire
from txbroker.v1.control_pb2 import ResolveRequest


async def walk_to_owners(channels: Channels, question: str, address: str) -> Resolution:
    """
    Walk as an edge with an empty cache. The node at `address` is asked first. Raises
    `click.ClickException` where the walk cannot go on.
    """
    walk = Resolution(question, address)
    if is_sys(question):
        node = (await status_of(channels, address)).zone
        local = ZoneAnswer(kind=AnswerKind.LOCAL, zone=start_at(address))
        walk.steps.append((local.zone, local))
        walk.owners.append(attrs.evolve(local.zone, node=node.node, grpc=node.grpc))
        return walk
    try:
        while queries := walk.next_queries():
            answers = await asyncio.gather(*(_ask(channels, question, cut) for cut in queries))
            for cut, found in zip(queries, answers, strict=True):
                walk.accept_answer(cut, found)
    except ResolutionError as error:
        raise click.ClickException(str(error)) from None
    return walk


async def _ask(channels: Channels, question: str, cut: ZoneCut) -> ZoneAnswer | None:
    request = ResolveRequest(question=question, zone=cut.apex, any=not cut.node)
    try:
        call = channels.stub(cut.grpc).Resolve(request, timeout=CALL_TIMEOUT)
        return answer_from_wire(await answer(cut.grpc, call))
    except NoAnswer:
        return None
