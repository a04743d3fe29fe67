"""
SHELL: reads and writes gRPC's two-way streams on either side, each step with a timeout.

The stream objects of `pieced_calls` have `read` and `write` on both sides. The published types know
only the iterator style. So the untyped part is confined to this module.
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
    grpc.aio.InternalError,  # the receiver is gone
    asyncio.InvalidStateError,  # a write to a call that has ended
    OSError,
    TimeoutError,
    PeerError,  # messages behind a lie are worthless
)
"""Errors that a broken stream raises."""


def open_stream(method: Any) -> Any:
    """Call a stream method of a stub; the caller cancels the call after use."""
    return method()


async def read(stream: Any, timeout: float | None) -> Any:
    """
    Return the next message, possibly joined from pieces; None at the end of the stream.

    Raises `TimeoutError` if no message or piece comes for `timeout` s, and `PeerError` for a
    dishonest message.
    """
    message = await stream.read(timeout)
    if message is _EOF:
        return None
    check(message)
    return message


async def write(stream: Any, message: Any, timeout: float) -> None:
    """Send a message; raises `TimeoutError` if the other side accepts no bytes for `timeout` s."""
    await stream.write(message, timeout)


def allow_large(context: Any) -> None:
    """Allow a stream's caller the largest messages, as this node knows the caller."""
    context.allow_large()


def note_joined(context: Any) -> None:
    """Note that a stream's caller has joined: until it ends, its calls wait for no stranger's."""
    context.note_joined()


async def begin_turn(context: Any) -> None:
    """Wait for the turn of a stream's message, unless its caller has joined; the first has one."""
    await context.begin_turn()


def end_turn(context: Any) -> None:
    """Let other calls begin, as the rest of this call is a wait."""
    context.end_turn()


LONGEST_TEXT = 1_000
"""Characters of a peer's text that an error returns to it: an error must not repeat 300 MB."""


def brief(text: str) -> str:
    """Return the text, shortened to `LONGEST_TEXT` characters."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} in all)"


async def unsaved(error: StoreError, context: Any) -> None:
    """
    Abort a call whose change could not be made durable: nothing has changed, and the caller
    retries.
    """
    log.error("state.write_failed", reason=str(error))
    await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def describe(error: BaseException) -> str:
    """Return an error of a call, for a log line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or error.code().name
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
