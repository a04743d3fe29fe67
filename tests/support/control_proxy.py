"""
A gRPC proxy in front of a node's control plane that shows each message before it passes.

Whoever should talk to the node through it gets `address` instead of the node's own. `on` names a
message by its call and kind (`"Join.received"`, `"HandBack.committed"`, `"Retire"`), and an action
for the next one. The action runs while the message waits. Then the message passes, or is lost for
good with its call, where `on` was told so. So a test can end a process at one certain step of an
exchange, without the program knowing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, Self

import attrs
import grpc

from txbroker.v1 import control_pb2

from .nodes import free_port

STREAMS: dict[str, tuple[Any, Any]] = {
    "Join": (control_pb2.JoinRequest, control_pb2.JoinReply),
    "HandBack": (control_pb2.HandBackRequest, control_pb2.HandBackReply),
}


@attrs.frozen
class _Trap:
    name: str
    action: Callable[[], object]
    passes: bool
    sprung: threading.Event


class _Lost(Exception):
    """The message does not pass, and its call ends."""


class ControlProxy:
    """In front of the control plane at `target`, which need not be there yet."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = f"127.0.0.1:{free_port()}"
        self.seen: list[str] = []
        self._traps: list[_Trap] = []
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(64), handlers=[_Handler(self)])
        assert self._server.add_insecure_port(self.address)
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(5)

    def on(
        self, name: str, action: Callable[[], object], *, passes: bool = False
    ) -> threading.Event:
        """Run `action` at the next message of this name; the event is set when it has run."""
        trap = _Trap(name, action, passes, threading.Event())
        with self._lock:
            self._traps.append(trap)
        return trap.sprung

    def saw(self, name: str) -> None:
        """A message is about to pass; raises `_Lost` when it must not."""
        with self._lock:
            self.seen.append(name)
            trap = next((t for t in self._traps if t.name == name), None)
            if trap is not None:
                self._traps.remove(trap)
        if trap is not None:
            trap.action()
            trap.sprung.set()
            if not trap.passes:
                raise _Lost

    def forward(self, method: str, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        """A call, message by message."""
        call_name = method.rpartition("/")[2]
        kinds = STREAMS.get(call_name)

        def look(messages: Iterable[bytes], kind: Any) -> Iterator[bytes]:
            for message in messages:
                name = kind and kind.FromString(message).WhichOneof("kind")
                self.saw(f"{call_name}.{name}" if name else call_name)
                yield message

        with grpc.insecure_channel(self.target, options=[("grpc.enable_retries", 0)]) as channel:
            call = channel.stream_stream(method)(look(requests, kinds and kinds[0]))
            context.add_callback(call.cancel)
            try:
                yield from look(call, kinds and kinds[1])
            except _Lost:
                call.cancel()
                context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way")
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Any method, as bytes."""

    def __init__(self, proxy: ControlProxy) -> None:
        self._proxy = proxy

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._proxy.forward(details.method, requests, context)
        )
