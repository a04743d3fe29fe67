"""
Calls nodes over gRPC, for the commands.

A command imports this module when it runs, not at the start of the program. gRPC loads slowly. The
wrapper that forks nodes must not load it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TypeVar

import click

# gRPC's C core reads this when it loads; without it, its own lines double each error message.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc.aio

from txbroker.rpc.channels import CALL_TIMEOUT, Channels, why
from txbroker.v1.control_pb2 import StatusReply, StatusRequest

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
        raise NoAnswer(why(address, error, late)) from None


async def status_of(channels: Channels, address: str) -> StatusReply:
    """The node at `address` about itself; raises `NoAnswer`."""
    call = channels.stub(address).Status(StatusRequest(), timeout=CALL_TIMEOUT)
    return await answer(address, call)


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


__all__ = ["CALL_TIMEOUT", "Channels", "NoAnswer", "answer", "answer_all", "ask", "status_of"]
