"""
What the commands share in asking nodes over gRPC.

Imported by the commands when they run, not with the command line: gRPC takes its time to load, and
has no place in the wrapper that forks nodes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TypeVar

import click

# The C core reads this when it is loaded. What goes wrong is told once, in our words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from txbroker.rpc.channels import CALL_TIMEOUT, Channels

Reply = TypeVar("Reply")
Result = TypeVar("Result")


STREAM_TIMEOUT = 30.0
"""Seconds for all replies of a call that streams them."""


class NoAnswer(click.ClickException):
    """A node did not answer; one line that says which, why and what to look at."""


async def answer(
    address: str, call: Awaitable[Reply], *, late: str = "is it a node's gRPC address?"
) -> Reply:
    """
    The reply to a call made to the node at `address`; raises `NoAnswer`, which ends in `late` when
    the call's time has passed.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise NoAnswer(_reason(address, error, late)) from None


async def answer_all(address: str, call: AsyncIterable[Reply]) -> list[Reply]:
    """All replies of a call that streams them; raises `NoAnswer`."""

    async def collect() -> list[Reply]:
        async with asyncio.timeout(STREAM_TIMEOUT):
            return [reply async for reply in call]

    try:
        return await answer(address, collect())
    except TimeoutError:
        raise NoAnswer(f"{address} gave no answer in time; is it a node's gRPC address?") from None


def ask(work: Callable[[Channels], Awaitable[Result]]) -> Result:
    """Run `work` with channels of its own, and give its result."""

    async def run() -> Result:
        channels = Channels()
        try:
            return await work(channels)
        finally:
            await channels.close()

    return asyncio.run(run())


def _reason(address: str, error: grpc.aio.AioRpcError, late: str) -> str:
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            remedy = "is it a node's gRPC address, and does the node run?"
            return f"{address} cannot be reached; {remedy}"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"{address} gave no answer in time; {late}"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"{address} is not a txbroker node, or one of another version"
        case code:
            details = " ".join((error.details() or code.name).split())
            return f"{address}: {details}"


__all__ = ["CALL_TIMEOUT", "Channels", "NoAnswer", "answer", "answer_all", "ask"]
