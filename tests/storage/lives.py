"""Lives of a node's store that do all it ever does on a disk, and what it has promised by then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import attrs

from tests.support.clock import Clock
from txbroker.data.backups import Backups
from txbroker.data.data_directory import DataDirectory, StoreSettings
from txbroker.delegation.state.node_state import DataFolder
from txbroker.edge.routing.stored_outbox import DrainState, OutboxState
from txbroker.edge.store.outbox_store import OutboxEntryLog
from txbroker.journal.delivery_ledger import LedgerKind, LedgerRow
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.journal.store.record_format import encode_records
from txbroker.model.counters import Counters
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.runtime import hooks
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.storage.commit_ports import CommitEvents
from txbroker.storage.segment import Batch

ZONE = JournalId("z", 2)
EARLIER = JournalId("z", 1)
BELOW = JournalId("z/b", 1)
OUTBOX = OutboxState(zone="y", incarnation=1, stream=1, drains=(DrainState(apex="y"),))
EDGE = ("e", 1, "z", 1)
BODY = encode_records([Message("z/b/t", b"below", 1)], {})
ROUNDS = 12
"""Turns, each with time for another attempt, after which a store that says nothing is deaf."""


class Ended(BaseException):
    """The process has ended in a stage of its life, with a line."""

    def __init__(self, stage: str, line: str) -> None:
        super().__init__(f"{stage}: {line}")
        self.stage = stage


@attrs.define(kw_only=True)
class Promises:
    """
    What somebody was told is safe: offsets with what stands there, values of a table and the state.
    Of the latter a later one may be there, up to the one that was asked for.
    """

    records: dict[tuple[JournalId, int], bytes] = attrs.field(factory=dict)
    entries: dict[int, bytes] = attrs.field(factory=dict)
    value: int = 0
    asked_value: int = 0
    state: int = 0
    asked_state: int = 0
    dropped: set[JournalId] = attrs.field(factory=set)
    adopted: bool = False
    trimmed: int = 0
    drained: int = 0
    backups: int = 0

    def now(self) -> Promises:
        """As they are at this moment."""
        return attrs.evolve(
            self, records=dict(self.records), entries=dict(self.entries), dropped=set(self.dropped)
        )


Work = Callable[[], Callable[[], None] | None]


class InlineThread:
    """A `WorkThread` that works when the life says so."""

    made: InlineThread

    def __init__(self, loop: object) -> None:
        self.work: list[tuple[Work, Callable[[BaseException | None], None]]] = []
        InlineThread.made = self

    def run(self, work: Work, done: Callable[[BaseException | None], None]) -> None:
        self.work.append((work, done))

    def turn(self) -> None:
        while self.work:
            work, done = self.work.pop(0)
            error: BaseException | None = None
            more: Callable[[], None] | None = None
            try:
                more = work()
            except Exception as raised:
                error = raised
            done(error)
            if more is not None:
                more()

    def close(self) -> None:
        self.turn()


def look_at(error: StoreError) -> None:
    """What an operator reads is a line."""
    assert str(error) and "\n" not in str(error)


class Life:
    """One process over the folder `data`, from its start on; raises `Ended` where that ends it."""

    def __init__(self, data: Path, told: Promises, durability: str = "sync") -> None:
        self.data = data
        self.told = told
        self.is_full = False
        self.stage = "start"
        self._clock = Clock()
        self.turn = FlushQueue(lambda action: None)
        hooks.when_failed(self._crash)
        try:
            self.folder = DataFolder(data, on_failed=self._end)
        except StoreError as error:
            raise Ended(self.stage, str(error)) from error
        try:
            self.state = self.folder.load("n", "z")
            self.found = self.state.incarnation
            self._save_state()
            self.disk = DataDirectory(
                data,
                StoreSettings(
                    durability=durability,
                    sync_interval=0.1,
                    segment_bytes=64 * 1024,
                ),
                flush_queue=self.turn,
                timers=self._clock,
                events=CommitEvents(
                    on_full=self._on_full,
                    on_failed=self._end,
                ),
            )
            self.outboxes = {state.stream: log for state, log in self.disk.outboxes.load()}
            self.disk.open_ledger(is_copy=False, is_full=lambda: False, counters=Counters())
            self.disk.arrivals.clean(self.state.absorbing)
            if self.state.absorbing is not None:
                self.disk.arrivals.adopt("z/b", self.disk.journals)
                self.told.adopted = True
        except StoreError as error:
            self._end(error)
        self.thread = InlineThread.made
        self.table = self.disk.tables.table("t")
        self.stage = "run"

    # -- what becomes of it

    def _end(self, error: StoreError) -> None:
        look_at(error)
        self.folder.close()
        raise Ended(self.stage, str(error))

    def _crash(self) -> None:
        raise AssertionError("ended by an error that no line explains")

    def _on_full(self, is_full: bool, reason: str) -> None:
        assert bool(reason) == is_full
        self.is_full = is_full

    # -- what it does

    def _save_state(self) -> None:
        self.told.asked_state += 1
        self.attempt(self._save_once)

    def _save_once(self) -> None:
        state = attrs.evolve(self.state, incarnation=self.told.asked_state)
        self.folder.save(state)
        self.state, self.told.state = state, state.incarnation

    def attempt(self, action: Callable[[], object]) -> bool:
        """What the node tries again; whether it has come about."""
        for _ in range(ROUNDS):
            try:
                action()
                return True
            except StoreError as error:
                look_at(error)
        return False

    def begin(self, key: JournalId) -> JournalPart | None:
        if not self.attempt(lambda: self.disk.journals.create(key, None)):
            return None
        return self.disk.journals.parts[key]

    def publish(self, part: JournalPart, *sizes: int) -> None:
        """Messages in one turn, with the table's next value."""
        self.told.asked_value += 1
        value = self.told.asked_value
        self.table.put(b"k", value.to_bytes(8))
        # Others change tables as late as this: sessions do.
        self.disk.committer.before_write(lambda: self.table.put(b"late", value.to_bytes(8)))
        said: dict[tuple[JournalId, int], bytes] = {}
        for size in sizes:
            payload = random.Random(value).randbytes(size)
            offset = part.append(Message("t", payload, 1), EDGE, value, time=value)
            assert (part.key, offset) not in self.told.records, "an offset is given twice"
            said[part.key, offset] = payload
        assert self.disk.ledger is not None
        self.disk.ledger.add(
            LedgerRow(LedgerKind.DELIVERY, value, client_id="c", part=part.key, offset=value)
        )

        def safe() -> None:
            self.told.records |= said
            self.told.value = value

        self.disk.committer.when_durable(safe)

    def put_out(self, log: OutboxEntryLog, *sizes: int) -> None:
        """Entries of one turn for an owner that is away."""
        asked = {log.append(Message("y", bytes(size), 1), None): bytes(size) for size in sizes}

        def look() -> None:
            self.told.entries |= {at: asked[at] for at in asked if at <= log.durable}

        log.on_durable = look

    async def settle(self) -> bool:
        """True if all that was asked for has come about; what has not is said to wait."""
        done: list[bool] = []
        self.disk.committer.when_durable(lambda: done.append(True))
        for _ in range(ROUNDS):
            self.turn.end()
            self.thread.turn()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.thread.turn()
            self.turn.end()
            if done:
                return True
            self._clock.advance(0.25)
        assert self.is_full, "deaf"
        return False

    async def all_of_it(self) -> bool:
        """Everything that a store does; whether all came about."""
        old = self.begin(EARLIER) if EARLIER not in self.told.dropped else None
        part = self.begin(ZONE)
        if part is None:
            return False
        if old is not None:
            self.publish(old, 100)
        for sizes in ((100, 200), (30_000, 30_000), (10,), (50_000,), (700, 3)):
            self.publish(part, *sizes)
            if not await self.settle():
                return False
        return (
            self._save_again()
            and await self._outbox()
            and await self._tidy(part, old)
            and await self._take_over()
            and await self._copy()
        )

    def _save_again(self) -> bool:
        before = self.told.asked_state
        self._save_state()
        return self.told.state > before

    async def _outbox(self) -> bool:
        log = self.outboxes.get(1)
        if log is None:
            log = self.disk.outboxes.create(OUTBOX)
        if log is None:
            log = self.disk.outboxes.create(OUTBOX)
        if log is None:
            return False
        self.outboxes[1] = log
        self.put_out(log, 10, 40_000)
        if not await self.settle():
            return False
        self.told.drained = log.durable
        self.attempt(lambda: log.trim(log.durable))
        return True

    async def _tidy(self, part: JournalPart, old: JournalPart | None) -> bool:
        last = part.log.excess(70_000)
        self.told.trimmed = max(self.told.trimmed, last)
        if not self.attempt(lambda: part.log.trim(last)):
            return False
        for number in range(9):
            self.table.put(b"big %d" % (number % 2), bytes([number + 1]) * 20_000)
            self.attempt(self.disk.tables.clean)
            if not await self.settle():
                return False
        if old is None:
            return True
        self.told.dropped.add(EARLIER)
        try:
            self.disk.journals.drop(EARLIER)
        except StoreError as error:
            look_at(error)
        return True

    async def _take_over(self, tries: int = 1) -> bool:
        """The journal of a zone below comes."""
        if self.told.adopted:
            return True
        arriving = None
        for _ in range(2):
            try:
                arriving = self.disk.arrivals.start("z/b")
                arriving.start_part(BELOW, None)
                break
            except StoreError as error:
                look_at(error)
        else:
            return False
        assert arriving is not None
        came = Batch(first=1, count=1, time=1, body=BODY)
        task = asyncio.ensure_future(arriving.append(came))
        await asyncio.sleep(0)
        task = asyncio.ensure_future(arriving.durable())
        await asyncio.sleep(0)
        if not await self.settle():
            task.cancel()
            return False
        await task
        arriving.close()
        self.told.asked_state += 1
        taken = attrs.evolve(self.state, incarnation=self.told.asked_state, absorbing="z/b")
        try:
            self.folder.save(taken)
        except StoreError as error:
            look_at(error)
            self.attempt(lambda: self.disk.arrivals.forget("z/b"))
            return await self._take_over(tries - 1) if tries else False
        self.state, self.told.state = taken, taken.incarnation
        self.stage = "adopt"
        try:
            self.disk.arrivals.adopt("z/b", self.disk.journals)
        except StoreError as error:
            self._end(error)
        self.told.adopted = True
        self.stage = "run"
        return await self.settle()

    async def _copy(self) -> bool:
        number = self.told.backups + 1
        target = self.data.parent / f"copy{number}"
        backups = Backups(self.data, now=lambda: 1.0, extents=self.disk.extents)
        for _ in range(2):
            try:
                await backups.copy(target)
                self.told.backups = number
                return True
            except StoreError as error:
                look_at(error)
        return False

    def close(self) -> None:
        """In good order."""
        self.stage = "close"
        try:
            self.disk.close()
        except StoreError as error:
            self._end(error)
        self.folder.close()


def check(data: Path, told: Promises) -> None:
    """Start with what is left, find all that was promised, and go on."""
    made, ends = InlineThread.made, hooks._ends[:]
    try:
        _check(data, told.now())
    except Ended as error:
        raise AssertionError(f"does not start: {error}") from None
    finally:
        InlineThread.made = made
        hooks._ends[:] = ends


def _check(data: Path, told: Promises) -> None:
    life = Life(data, told.now())
    assert told.state <= life.found <= told.asked_state
    value = int.from_bytes(life.table.get(b"k") or b"")
    assert told.value <= value <= told.asked_value, "the table"
    assert life.table.get(b"k") == life.table.get(b"late"), "half of a turn"
    parts = life.disk.journals.parts
    for key in {key for key, _ in told.records} - told.dropped:
        found = {}
        if key in parts:
            for record in parts[key].read(0, 10_000, 1 << 30).records:
                found[record.offset] = record.message.payload
        wanted = {at: payload for (one, at), payload in told.records.items() if one == key}
        for offset, payload in wanted.items():
            if key != ZONE or offset > told.trimmed:
                assert found.get(offset) == payload, f"{key} {offset} is lost"
    if life.told.adopted:
        assert [BODY] == [batch.body for batch in parts[BELOW].log.batches()], "the zone below"
    if told.entries:
        left = {at: message.payload for at, message, _ in life.outboxes[1].read(0).entries}
        for number, payload in told.entries.items():
            assert number <= told.drained or left.get(number) == payload, "the outbox"
    part = life.begin(ZONE)
    assert part is not None
    life.publish(part, 10)
    life.turn.end()
    life.thread.turn()
    life.turn.end()
    assert life.told.value == life.told.asked_value, "deaf"
    life.close()
    for number in range(1, told.backups + 2):
        copy = data.parent / f"copy{number}"
        if number <= told.backups or copy.exists():
            Life(copy, Promises(asked_state=told.asked_state)).close()
