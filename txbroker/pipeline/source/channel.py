"""
SHELL: a synchronous gRPC channel to a node for programs that are no node, with messages in pieces.

The data source does not import this module; workers and planners import it when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, cast

import grpc

from txbroker.model.errors import PeerError
from txbroker.rpc.channels import OPTIONS
from txbroker.rpc.message_pieces import ANNOUNCEMENT, LARGEST_WHOLE, PieceRoom, WholeMessage

Code = Callable[[Any], Any]

_TAKES = ((ANNOUNCEMENT, "takes"),)


def open_channel(address: str) -> grpc.Channel:
    """Open a channel for stubs, to be closed or used in a `with`. Requests must be small."""
    return cast("grpc.Channel", _Channel(address))


class _Channel:
    """The part of a gRPC channel that stubs use."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def unary_unary(self, path: str, **codes: Any) -> _Unary:
        return _Unary(self.unary_stream(path, **codes))

    def unary_stream(self, path: str, **codes: Any) -> Any:
        multi: Any = self._channel.unary_stream(path, None, None)
        encode, decode = codes["request_serializer"], codes["response_deserializer"]

        def call(request: Any, timeout: float | None = None) -> Iterator[Any]:
            return _replies(multi(encode(request), timeout=timeout, metadata=_TAKES), decode)

        return call

    def stream_stream(self, path: str, **codes: Any) -> None:
        """Do nothing: only nodes call such methods."""


class _Unary:
    """A method with one reply."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, request: Any, timeout: float | None = None) -> Any:
        return self.future(request, timeout).result()

    def future(self, request: Any, timeout: float | None = None) -> _Future:
        """Start the call and return its future."""
        return _Future(self._call(request, timeout))


class _Future:
    """The reply of a running call."""

    def __init__(self, replies: Iterator[Any]) -> None:
        self._replies = replies

    def result(self) -> Any:
        found = list(self._replies)
        if len(found) != 1:
            raise _TooLargeError("not one reply")
        return found[0]


def _replies(call: Any, decode: Code) -> Iterator[Any]:
    whole = WholeMessage(PieceRoom(LARGEST_WHOLE), LARGEST_WHOLE)
    try:
        for message in call:
            complete = whole.add(message)
            if complete is not None:
                yield decode(complete)
    except PeerError as error:
        raise _TooLargeError(str(error)) from None
    finally:
        call.cancel()


class _TooLargeError(grpc.RpcError):
    """The reply is too large, or not a single message."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self._reason = reason

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.DATA_LOSS

    def details(self) -> str:
        return self._reason
