"""The history of a node by its journal service, as a test wants to look at it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from txbroker.core import Columns
from txbroker.pipeline.source.channel import open_channel
from txbroker.v1 import journal_pb2
from txbroker.v1.journal_pb2_grpc import JournalStub

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Row:
    """A record; `time` in microseconds UTC."""

    offset: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client: str
    node: str
    time: int


class History:
    """The journal service at a gRPC address."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self.stub = JournalStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def parts(self) -> dict[tuple[str, int], Any]:
        """The parts by zone and epoch."""
        reply = self.stub.Parts(journal_pb2.PartsRequest(), timeout=30)
        found = {(part.zone, part.epoch): part for part in reply.parts}
        assert len(found) == len(reply.parts)
        return found

    def seek(self, zone: str, epoch: int, time: int) -> int:
        """The first offset received then or later."""
        request = journal_pb2.SeekRequest(zone=zone, epoch=epoch, time=time)
        return int(self.stub.Seek(request, timeout=30).offset)

    def replies(self, zone: str, epoch: int, **keys: Any) -> list[Any]:
        """The answer of `Records`."""
        request = journal_pb2.RecordsRequest(zone=zone, epoch=epoch, **keys)
        return list(self.stub.Records(request, timeout=30))

    def read(self, zone: str, epoch: int, **keys: Any) -> list[Row]:
        """The records that are asked for; how far was looked is what the request or part says."""
        replies = self.replies(zone, epoch, **keys)
        throughs = [reply.through for reply in replies]
        assert throughs == sorted(throughs)
        if "end" in keys:
            assert keys["end"] == throughs[-1]
        return rows(replies, keys.get("start", 0), keys.get("end", (1 << 63) - 1))

    def refusal(self, call: str, **keys: Any) -> tuple[grpc.StatusCode, str]:
        """With what a call is refused."""
        kind = getattr(journal_pb2, f"{call}Request")
        try:
            reply = getattr(self.stub, call)(kind(**keys), timeout=30)
            if call == "Records":
                reply = list(reply)
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError(f"not refused: {reply}")


def rows(replies: list[Any], start: int = 0, end: int = (1 << 63) - 1) -> list[Row]:
    """The records of replies."""
    columns = Columns(start, end)
    for reply in replies:
        assert FORMAT == reply.format
        for batch in reply.batches:
            columns.add(batch.first, batch.time, batch.body, batch.count, batch.places)
    filled = columns.finish()
    topics, payloads = (
        [one.data[start:end] for start, end in zip(ends, ends[1:], strict=False)]
        for one, ends in ((o, array("i", o.ends)) for o in (filled.topics, filled.payloads))
    )
    offsets, created = array("q", filled.offset), array("q", filled.created)
    return [
        Row(
            offsets[n],
            topics[n].decode(),
            payloads[n],
            filled.qos[n],
            bool(filled.retain[n >> 3] >> (n & 7) & 1),
            *filled.publishers[publisher],
            created[n],
        )
        for n, publisher in enumerate(array("i", filled.publisher))
    ]
