"""What readers of a journal are told while it changes under their hands."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from tests.storage.test_committer import run_apart
from tests.support.clock import Clock
from tests.support.history import rows
from txbroker.data.data_directory import DataDirectory, StoreSettings
from txbroker.journal.history import journal_catalog as parts_module
from txbroker.journal.history.journal_catalog import CatalogPart, JournalCatalog
from txbroker.journal.history.journal_service import JournalService
from txbroker.journal.history.read_throttle import ReadThrottle
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.model.counters import Counters
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.storage.commit_ports import CommitEvents
from txbroker.v1.journal_pb2 import PartsRequest, RecordsRequest, SeekRequest
from txbroker.v1.journal_pb2_grpc import JournalStub

T = TypeVar("T")

KEY = JournalId("z", 1)


class Node:
    """A journal, and the service over it."""

    def __init__(self, folder: Path, durability: str = "sync") -> None:
        self.failed: list[str] = []
        self.turn = FlushQueue(lambda action: None)
        self.disk = DataDirectory(
            folder,
            StoreSettings(
                durability=durability,
                sync_interval=0.1,
                segment_bytes=64 * 1024,
            ),
            flush_queue=self.turn,
            timers=Clock(),
            events=CommitEvents(
                on_full=lambda *_: None,
                on_failed=lambda error: self.failed.append(str(error)),
            ),
        )
        self.standing = SimpleNamespace(zone="z", divergent=0, ended=0)
        self.authority = SimpleNamespace(apex="z", serving=True, epoch=1)
        loop = asyncio.get_running_loop()
        self.parts = JournalCatalog(
            data_directory=self.disk,
            authority=self.authority,  # type: ignore[arg-type]
            node_grant=self.standing,  # type: ignore[arg-type]
            now=loop.time,
        )
        self.pace = ReadThrottle()
        self.service = JournalService(
            node="n",
            parts=self.parts,
            pace=self.pace,
            counters=Counters(),
            on_failed=self.disk.fail,
        )
        self.part = self.disk.journals.create(KEY, None)
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((self.service.handlers(),))

    async def start(self) -> Any:
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        return JournalStub(self.channel)

    async def close(self) -> None:
        await self.channel.close()
        self.service.close()
        await self.server.stop(None)
        if not self.failed:
            self.disk.close()

    def say(self, count: int, size: int = 10, qos: int = 1) -> None:
        for number in range(count):
            payload = b"%d " % number + bytes(size)
            self.part.append(Message("t", payload, qos), None, 0, time=number)
            self.turn.end()

    def kept(self, part: JournalPart | None = None) -> CatalogPart:
        return self.parts.describe(part or self.part)


def asking(
    folder: Path, scenario: Callable[[Node, Any], Awaitable[T]], durability: str = "sync"
) -> T:
    """Run a scenario against a node."""

    async def run() -> T:
        node = Node(folder, durability)
        stub = await node.start()
        try:
            return await scenario(node, stub)
        finally:
            await node.close()

    return run_apart(run())


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """With what a call is refused."""
    try:
        found = [one async for one in call] if hasattr(call, "__aiter__") else await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError(f"not refused: {found}")


async def all_of(stub: Any, **keys: Any) -> list[Any]:
    request = RecordsRequest(zone="z", epoch=1, **keys)
    return [reply async for reply in stub.Records(request)]


@pytest.mark.parametrize("durability", ["sync", "interval", "memory"])
def test_parts_show_what_was_appended_before(tmp_path: Path, durability: str) -> None:
    """Of every QoS, and all of that is given."""

    async def scenario(node: Node, stub: Any) -> None:
        for turn, qos in enumerate((0, 1, 2, 0)):
            node.say(5, qos=qos)
            (part,) = (await stub.Parts(PartsRequest())).parts
            assert ("z", 1, 1, 5 * turn + 6) == (part.zone, part.epoch, part.first, part.end)
            assert 5 * (turn + 1) == len(rows(await all_of(stub)))

    asking(tmp_path, scenario, durability)


@pytest.mark.parametrize("durability", ["interval", "memory"])
def test_what_is_not_synced_is_not_given(tmp_path: Path, durability: str) -> None:
    """Though it is written, and sessions get it."""

    async def scenario(node: Node, stub: Any) -> None:
        node.say(5)
        await stub.Parts(PartsRequest())
        node.say(5)
        node.disk.committer.write()
        assert (10, 5) == (node.part.log.written, node.part.log.synced)

        replies = await all_of(stub, end=100)
        assert (5, 6) == (len(rows(replies)), replies[-1].through)
        assert 6 == (await stub.Seek(SeekRequest(zone="z", epoch=1, time=10**9))).offset

    asking(tmp_path, scenario, durability)


def test_those_who_ask_at_once_share_a_sync(tmp_path: Path) -> None:
    async def scenario(node: Node, stub: Any) -> None:
        node.say(1, qos=0)
        before = node.disk.committer.syncs
        replies = await asyncio.gather(*(stub.Parts(PartsRequest()) for _ in range(50)))
        assert {2} == {reply.parts[0].end for reply in replies}
        assert node.disk.committer.syncs - before == 1

    asking(tmp_path, scenario)


def test_a_disk_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known to be safe is told all the same."""
    monkeypatch.setattr(parts_module, "SYNC_LIMIT", 0.05)
    answer = threading.Event()
    real = os.fdatasync

    def hang(fd: int) -> None:
        assert answer.wait(30)
        real(fd)

    async def scenario(node: Node, stub: Any) -> None:
        node.say(1)
        await stub.Parts(PartsRequest())
        monkeypatch.setattr(os, "fdatasync", hang)
        node.say(1)
        try:
            assert 2 == (await stub.Parts(PartsRequest())).parts[0].end
        finally:
            answer.set()
        await node.disk.committer.drain()
        assert 3 == (await stub.Parts(PartsRequest())).parts[0].end

    asking(tmp_path, scenario)


# -- while a stream runs


def midway(
    folder: Path, change: Callable[[Node], object]
) -> tuple[grpc.StatusCode, str, list[int], list[str]]:
    """
    A reader of 40 batches of 50 kB, of which some have come when something happens: with what it is
    refused, the offsets that it got before, and of what errors the node has heard.
    """

    async def scenario(node: Node, stub: Any) -> tuple[grpc.StatusCode, str, list[int], list[str]]:
        node.say(40, 50_000)
        await stub.Parts(PartsRequest())
        work, pieces = node.pace.work, 0

        async def counted(piece: Callable[[], T]) -> T:
            nonlocal pieces
            pieces += 1
            found = await work(piece)
            if pieces == 4:
                change(node)
            return found

        node.pace.work = counted  # type: ignore[method-assign]
        replies: list[Any] = []
        try:
            async for reply in stub.Records(RecordsRequest(zone="z", epoch=1, start=1)):
                replies.append(reply)
        except grpc.aio.AioRpcError as error:
            offsets = [row.offset for row in rows(replies)]
            return error.code(), error.details() or "", offsets, node.failed
        raise AssertionError("not refused")

    return asking(folder, scenario)


def is_some(offsets: list[int]) -> bool:
    """True if it is the beginning of a part, without gaps."""
    return 0 < len(offsets) < 40 and list(range(1, len(offsets) + 1)) == offsets


def test_retention_overtakes_a_reader(tmp_path: Path) -> None:
    code, line, offsets, _ = midway(tmp_path, lambda node: node.part.log.trim(30))

    assert grpc.StatusCode.OUT_OF_RANGE == code
    first = int(line.split(" offset ")[1].split()[0])
    assert is_some(offsets)
    assert offsets[-1] + 1 < first <= 31
    assert line == (
        f"node 'n' keeps zone 'z' at epoch 1 from offset {first} on, no longer from"
        f" {offsets[-1] + 1} on"
    )


def test_the_part_is_dropped(tmp_path: Path) -> None:
    code, line, offsets, _ = midway(tmp_path, lambda node: node.disk.journals.drop(KEY))

    assert (grpc.StatusCode.NOT_FOUND, True) == (code, is_some(offsets))
    assert "node 'n' keeps no journal of zone 'z' at epoch 1" == line


def test_damage_ends_the_stream_and_the_node(tmp_path: Path) -> None:
    """Nothing behind it is given as if nothing were missing."""

    def spoil(node: Node) -> None:
        file = sorted(node.part.log.folder.glob("*.log"))[-2]
        raw = bytearray(file.read_bytes())
        raw[1000] ^= 1
        file.write_bytes(raw)

    code, line, offsets, failed = midway(tmp_path, spoil)

    assert (grpc.StatusCode.DATA_LOSS, True) == (code, is_some(offsets))
    assert "checksum" in line
    assert [line] == failed


def test_the_node_ends(tmp_path: Path) -> None:
    code, line, offsets, _ = midway(tmp_path, lambda node: node.service.close())

    assert (grpc.StatusCode.UNAVAILABLE, "node 'n' ends", True) == (code, line, is_some(offsets))


def test_a_batch_that_cannot_be_understood_is_told(tmp_path: Path) -> None:
    """One that was written so, by whatever mistake."""

    async def scenario(node: Node, stub: Any) -> tuple[grpc.StatusCode, str]:
        node.part.log.append(b"nonsense", time=0)
        node.disk.committer.touch(node.part.log)
        await stub.Parts(PartsRequest())
        return await refused(stub.Records(RecordsRequest(zone="z", epoch=1, filter="t")))

    code, line = asking(tmp_path, scenario)
    assert grpc.StatusCode.DATA_LOSS == code
    assert line.startswith("the stored batch of offset 1 is malformed: ")


# -- when a part is closed


@pytest.mark.parametrize(
    ("key", "standing", "authority", "expected"),
    [
        (("z", 1), {"ended": 0}, {"serving": True, "epoch": 1}, (False, False)),
        # Not served yet, or not now: it may go on.
        (("z", 1), {"ended": 0}, {"serving": False, "epoch": 0}, (False, False)),
        (("z", 1), {"ended": 0}, {"serving": False, "epoch": 1}, (False, False)),
        # The grant is lost, but what is served is not told yet.
        (("z", 1), {"ended": 1}, {"serving": True, "epoch": 1}, (False, False)),
        (("z", 1), {"ended": 1}, {"serving": False, "epoch": 1}, (True, False)),
        (("z", 1), {"ended": 2}, {"serving": True, "epoch": 3}, (True, False)),
        (("z", 1), {"ended": 1, "divergent": 1}, {"serving": False, "epoch": 0}, (True, True)),
        (("z", 1), {"ended": 3, "divergent": 3}, {"serving": False, "epoch": 0}, (True, False)),
        (("z/b", 1), {"ended": 0}, {"serving": True, "epoch": 1}, (True, False)),
    ],
)
def test_a_part_is_closed_when_nothing_will_be_added(
    tmp_path: Path,
    key: tuple[str, int],
    standing: dict[str, int],
    authority: dict[str, int],
    expected: tuple[bool, bool],
) -> None:
    async def scenario(node: Node, stub: Any) -> tuple[bool, bool]:
        vars(node.standing).update(standing)
        vars(node.authority).update(authority)
        part = node.disk.journals.create(JournalId(*key), None)
        kept = node.kept(part)
        return kept.is_closed, kept.is_cut_off

    assert expected == asking(tmp_path, scenario)


def test_a_part_is_not_closed_before_its_end_is_shown(tmp_path: Path) -> None:
    """Who goes on to the next one then has seen all."""

    async def scenario(node: Node, stub: Any) -> None:
        node.part.append(Message("t", b""), None, 0, time=0)
        node.authority.serving, node.standing.ended = False, 1
        assert (1, False) == (node.kept().end, node.kept().is_closed)
        (part,) = (await stub.Parts(PartsRequest())).parts
        assert (2, True) == (part.end, part.closed)

    asking(tmp_path, scenario)
