"""
A node that is none: a gRPC server whose answers a test has written down.

The module has a control plane that answers each call with what `answers` has for it. It has no idea
of what is right. `join` makes it a child. `scripts` are those of the join streams, one after the
other.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc

from txbroker.v1 import control_pb2, control_pb2_grpc
from txbroker.v1.control_pb2 import JoinReply, JoinRequest
from txbroker.v1.control_pb2_grpc import ControlStub

Script = list[JoinReply]


def join(stub: ControlStub, address: str) -> None:
    """A node `liar`, which is to be asked at the address, is granted the zone `a`."""
    said: queue.SimpleQueue[JoinRequest | None] = queue.SimpleQueue()
    announce = control_pb2.Announce(version=1, node="liar", owns_zone=True, zone="a", grpc=address)
    said.put(JoinRequest(announce=announce))
    for reply in stub.Join(iter(said.get, None), timeout=20):
        if reply.WhichOneof("kind") == "fence":
            received = control_pb2.Received(epoch=reply.fence.grant)
            said.put(JoinRequest(received=received))
        if reply.WhichOneof("kind") == "granted":
            said.put(None)
            return
    raise AssertionError("not granted")


class Liar(control_pb2_grpc.ControlServicer):
    """
    Serves at `address`. A join stream gets the replies of the next script; behind a fence the
    liar waits for the child's word. `left` counts the scripts whose streams the child has left.
    `answers`: what a call gets, by the call's name.
    """

    def __init__(
        self, address: str, answers: Mapping[str, Callable[[Any], Any]] | None = None
    ) -> None:
        self.scripts: queue.SimpleQueue[Script] = queue.SimpleQueue()
        self.left = 0
        self.asked: list[Any] = []
        self._answers = dict(answers or {})
        self._server = grpc.server(ThreadPoolExecutor(20))
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        assert self._server.add_insecure_port(address)

    def Join(self, request_iterator: Iterator[JoinRequest], context: Any) -> Iterator[JoinReply]:
        next(request_iterator, None)
        try:
            script = self.scripts.get_nowait()
        except queue.Empty:
            context.abort(grpc.StatusCode.UNAVAILABLE, "nothing to say")
        try:
            for reply in script:
                yield reply
                if reply.WhichOneof("kind") == "fence":
                    next(request_iterator, None)
            for _ in request_iterator:
                pass
        finally:
            self.left += 1

    def Resolve(self, request: Any, context: Any) -> Any:
        return self._answer("Resolve", request, context)

    def OpenLink(self, request: Any, context: Any) -> Any:
        return self._answer("OpenLink", request, context)

    def Read(self, request: Any, context: Any) -> Any:
        return self._answer("Read", request, context)

    def Status(self, request: Any, context: Any) -> Any:
        return control_pb2.StatusReply()

    def _answer(self, call: str, request: Any, context: Any) -> Any:
        self.asked.append(request)
        if call not in self._answers:
            context.abort(grpc.StatusCode.UNAVAILABLE, "nothing to say")
        return self._answers[call](request)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop(0).wait()
