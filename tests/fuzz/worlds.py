"""What a fuzzer does with cores besides what random steps do."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

from tests.core import worlds
from tests.core.cores import REFERENCE, publish
from tests.core.worlds import VALUES
from txbroker.core.reference.packets import Entry
from txbroker.model.errors import PeerError

SURELY_TAKEN = 30_000
"""Bytes that a new socket takes at once."""


class World(worlds.World):
    """Steps that take a part of the core to its limits, or are no use of it that is allowed."""

    def __init__(self, core: Any, cache_limit: int) -> None:
        super().__init__(core, cache_limit)
        self.columns = core.Columns(payload=cache_limit != 1)
        self.sieve = core.Sieve(lambda topic: len(topic) % 2 == 1)

    def do_stored(self, first: int, head: bytes, packets: bytes, count: int, places: bytes) -> Any:
        """A batch that somebody sends, for columns, for a sieve, and for records."""
        found: list[Any] = []
        body = head + packets
        records = self.core.StoredRecords(5, 100, room=2000, least=1)
        for work in (
            lambda: self.columns.add(first, 7, body, count, places),
            lambda: self.sieve.sift(first, body, count, 2, 200),
            lambda: (records.add(first, body, count, places), all_of(records)),
        ):
            try:
                found.append(work())
            except PeerError as error:
                found.append(str(error))
        return found, self.columns.count, self.columns.size

    def do_finish(self) -> Any:
        return tuple(self.columns.finish())

    def do_feed(self, client: int, data: bytes) -> None:
        self.clients[client].packet_reader.feed(data)

    def do_step(self, client: int) -> Any:
        packet_reader = self.clients[client].packet_reader
        frame = packet_reader.step()
        self.runs += [run for run in (packet_reader.qos0, packet_reader.qos12) if run is not None]
        return frame, packet_reader.pubacks

    def do_trust(self, max_frame: int) -> None:
        self.link.trust(max_frame)

    def do_close(self, client: int) -> None:
        self.clients[client].packet_reader.close()

    def do_leave(self, client: int) -> None:
        """A client goes, with its subscriptions, and comes back; nothing of it is kept."""
        gone = self.clients[client].packet_writer
        for topic_filter in list(self.router.targets.filters()):
            for key in range(2):
                self.router.targets.remove(topic_filter, (client, key))
        self.targets = [target for target in self.targets if target.packet_writer is not gone]
        self.do_renew(client)

    def do_replace(self, kind: str, apexes: list[str]) -> None:
        getattr(self.router, kind).replace(dict.fromkeys(apexes, VALUES[1]))

    def do_find(self, topic: str) -> Any:
        trees = [self.router.interests, self.router.targets]
        return (
            [str(apexes.find(topic)) for apexes in (self.router.routes, self.router.bounds)],
            [sorted(str(key) for key, _ in tree.match(topic)) for tree in trees],
            [(len(tree), sorted(tree.filters())) for tree in trees],
        )

    def do_cache(self, limit: int) -> None:
        self.router.set_cache_limit(limit)

    def do_pass_on(self, index: int, edge: int) -> Any:
        run = self._run(index)
        if run is None or run.qos:
            return None
        return self.router.forward(run, VALUES[1], VALUES[1], VALUES[edge])

    def do_misuse(self, data: bytes, places: list[tuple[int, ...]]) -> None:
        """Entries that lie anywhere. The reference trusts them: nothing can be compared."""
        if self.core is REFERENCE:
            return
        try:
            run = self.core.Run(data, [Entry(*one) for one in places], clients=("m",))
            message = run.message(0)
            assert all(one in data for one in (run.raw[1:2], message.payload, message.properties))
        except ValueError:
            return
        self.router.split(run)
        self.router.receivers(run)

    def do_flood(self, client: int, how: str, count: int, size: int) -> int:
        """So many messages of QoS 1; how many found room."""
        give = getattr(self.clients[client].packet_writer, how)
        return sum(give(b"t", b"f" * size, 1, size, "p", n) for n in range(count))

    def do_send(self, client: int, size: int, may_drop: bool) -> Any:
        packet_writer, packet = (
            self.clients[client].packet_writer,
            publish(b"s", bytes(size)) if size else b"",
        )
        return (packet_writer.send_qos0 if may_drop else packet_writer.send)(packet)

    def do_write(self) -> Any:
        """A turn ends; what a socket did not take is taken afterwards."""
        packet_writers = [client.packet_writer for client in self.clients]
        are_taken = all(packet_writer.size < SURELY_TAKEN for packet_writer in packet_writers)
        pairs = [socket.socketpair() for _ in packet_writers]
        for packet_writer, (near, _) in zip(packet_writers, pairs, strict=True):
            near.setblocking(False)
            packet_writer.descriptor = near.fileno()
        left = [
            packet_writer in packet_writers and packet_writers.index(packet_writer)
            for packet_writer in self.router.send_outputs()
        ]
        got = []
        for packet_writer, (near, far) in zip(packet_writers, pairs, strict=True):
            packet_writer.descriptor = -1
            near.close()
            with far:
                got.append(
                    b"".join(iter(partial(far.recv, 1 << 20), b"")) + packet_writer.dequeue()
                )
        return got, left if are_taken else None


def all_of(records: Any) -> Any:
    """What is in stored records, looked at in every way."""
    found = [records.record(place) for place in range(len(records))]
    places = records.find(["#", "+/b", "a"], 6, 20), records.place_above(50)
    sums = records.size_above(7), records.offsets(), records.packets()
    return records.through, found, places, sums
