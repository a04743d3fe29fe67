"""
SHELL: reading and writing gRPC's two-way streams, on either side, each step with a time limit.

The stream objects of `pieced` have `read` and `write` on both sides, but the published types know
only the iterator style; so the untyped part is kept to this file.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from txbroker.delegation.peer_checks import check
from txbroker.model.errors import PeerError, StoreError
from txbroker.runtime.structured_log import get_logger

log = get_logger()

_EOF: Any = grpc.aio.EOF

STREAM_ERRORS = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,  # whoever was to get it is gone
    asyncio.InvalidStateError,  # a write to a call that has ended
    OSError,
    TimeoutError,
    PeerError,  # what comes behind a lie is worth nothing
)
"""What a broken stream raises."""


def open_stream(method: Any) -> Any:
    """Call a stream method of a stub; the caller cancels the call when it is done with it."""
    return method()


async def read(stream: Any, timeout: float) -> Any:
    """
    The next message; None at the end of the stream. Raises `TimeoutError` when nothing comes for
    `timeout` s, and `PeerError` for one that no honest node sends. A large one comes in pieces.
    """
    message = await stream.read(timeout)
    if message is _EOF:
        return None
    check(message)
    return message


async def write(stream: Any, message: Any, timeout: float) -> None:
    """Send a message; raises `TimeoutError` when the other side takes nothing for `timeout` s."""
    await stream.write(message, timeout)


def let_in(context: Any) -> None:
    """The caller of this stream is one that the node knows: its messages may be the largest."""
    context.let_in()


LONGEST_TEXT = 1_000
"""Characters of another's text that go back to it: an error must not repeat 300 MB."""


def brief(text: str) -> str:
    """The text, cut where it is longer than anybody reads."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} in all)"


async def unsaved(error: StoreError, context: Any) -> None:
    """Nothing has changed, since it could not be made durable; the other side asks again."""
    log.error("state.unsaved", reason=str(error))
    await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def describe(error: BaseException) -> str:
    """An error of a call, for a log line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or error.code().name
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
