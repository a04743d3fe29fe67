"""
Calls nodes over gRPC, for the commands.

A command imports this module when it runs, not at the start of the program. gRPC loads slowly, and
must not be loaded in the wrapper that forks nodes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TypeVar

import click

# gRPC's C core reads this when it loads; without it, its own lines double each error message.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from txbroker.rpc.channels import CALL_TIMEOUT, Channels

Reply = TypeVar("Reply")
Result = TypeVar("Result")


STREAM_TIMEOUT = 30.0
"""Seconds for all replies of a streaming call."""


class NoAnswer(click.ClickException):
    """A node did not answer; the line names the node, the reason and the remedy."""


async def answer(
    address: str, call: Awaitable[Reply], *, late: str = "is it a node's gRPC address?"
) -> Reply:
    """
    Return the reply to a call to the node at `address`.

    Raises `NoAnswer`, which ends with `late` if the call timed out.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise NoAnswer(_reason(address, error, late)) from None


async def answer_all(address: str, call: AsyncIterable[Reply]) -> list[Reply]:
    """Return all replies of a streaming call; raises `NoAnswer`."""

    async def collect() -> list[Reply]:
        async with asyncio.timeout(STREAM_TIMEOUT):
            return [reply async for reply in call]

    try:
        return await answer(address, collect())
    except TimeoutError:
        raise NoAnswer(f"{address} gave no answer in time; is it a node's gRPC address?") from None


def ask(work: Callable[[Channels], Awaitable[Result]]) -> Result:
    """Run `work` with new channels; return its result."""

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
