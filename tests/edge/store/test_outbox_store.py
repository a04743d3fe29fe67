"""Entries of outboxes as they are read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.test_committer import Bench
from txbroker.data.data_repair import repair_files
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.edge.store.outbox_store import OutboxEntryLog
from txbroker.mqtt.session.inbound_publish import OriginId
from txbroker.mqtt.wire.message import Message, WillId
from txbroker.storage.committer import Durability
from txbroker.storage.log import SegmentLog


def test_origins_and_wills_are_read_back(tmp_path: Path) -> None:
    """Runs of sequences, wills among them, and wills that were sent before."""
    bench = Bench(tmp_path / "others", Durability.SYNC)
    log = SegmentLog(tmp_path / "log", on_trimmed=lambda *_: None)
    entries = OutboxEntryLog(log, bench.committer, lambda: 1)
    key = ("edge", 1, "", 4)
    kept: list[tuple[str, OriginId | None, WillId | None]] = [
        ("1", None, None),
        ("2", None, ("a", 1, 1)),
        ("3", None, ("a", 1, 2)),
        ("4", (key, 7), None),
        ("5", (key, 8), ("b", 2, 1)),
        ("6", (key, 9), None),
        ("7", (key, 10), None),
        ("8", None, None),
    ]
    for text, origin, will in kept:
        entries.append(Message("t", text.encode(), 1, client_id="c", will=will), origin)
    bench.turn.end()
    while bench.work:
        bench.sync()

    found: list[OutboxEntry] = []
    while len(found) < len(kept):
        found += entries.read(len(found)).entries
    assert kept == [(e.message.payload.decode(), e.origin, e.message.will) for e in found]


@pytest.mark.parametrize("cut", [b"entry 0", b"entry 2"])
def test_numbers_that_a_repair_cut_off_are_read_as_nothing(tmp_path: Path, cut: bytes) -> None:
    """A drain comes to the end all the same: what comes later would wait behind it for ever."""
    bench = Bench(tmp_path / "others", Durability.SYNC)
    log = SegmentLog(tmp_path / "log", on_trimmed=lambda *_: None)
    entries = OutboxEntryLog(log, bench.committer, lambda: 1)
    for number in range(3):
        entries.append(Message("t", b"entry %d" % number, 1), None)
        bench.turn.end()
        while bench.work:
            bench.sync()
    log.close()
    (path,) = log.folder.glob("*.log")
    whole = bytearray(path.read_bytes())
    whole[whole.index(cut)] ^= 1
    path.write_bytes(whole)
    assert repair_files(log.folder)

    again = OutboxEntryLog(
        SegmentLog(log.folder, on_trimmed=lambda *_: None), bench.committer, lambda: 1
    )
    found = again.read(0)
    assert int(cut[-1:]) == len(found.entries)
    assert again.next - 1 == found.through
