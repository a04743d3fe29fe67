"""A core in use, driven by plain steps: what it does can be compared with what another one does."""

from __future__ import annotations

import socket
from select import EPOLLIN, epoll
from typing import Any

from tests.core.cores import Client, Session, answer, pairs
from txbroker.core.reference.link import COUNT
from txbroker.mqtt.wire.framing import Framer
from txbroker.mqtt.wire.property_list import LISTED_LEVEL
from txbroker.mqtt.wire.return_codes import ProtocolViolation

NAMES = ["x", "y", "z"]
SESSIONS = {name: Session(name) for name in NAMES}
SHORTEST = 4
"""Bytes of the shortest PUBLISH of QoS 0: a length of one byte and an empty topic."""
VALUES = [None, Session("one"), Session("two")]


def answers_to(sent: bytes) -> list[bytes]:
    """What a client says to what it was sent."""
    framer = Framer(2**28)
    framer.feed(sent)
    answers = []
    try:
        for first_byte, body in framer.frames():
            qos = first_byte >> 1 & 3
            if first_byte >> 4 == 3 and qos:
                at = 2 + int.from_bytes(body[:2])
                packet_id = int.from_bytes(body[at : at + 2])
                answers.append(answer(0x40 if qos == 1 else 0x50, packet_id))
            elif first_byte == 0x62:
                answers.append(answer(0x70, int.from_bytes(body[:2])))
    except ProtocolViolation:
        pass  # other bytes were sent between packets
    return answers


class World:
    """
    An exchange, three clients and a link.

    `do` takes a step's name and arguments and returns what came of it; `look` is all that can be
    seen. Both consist of plain values that are the same for cores that do the same.
    """

    def __init__(self, core: Any, cache_limit: int) -> None:
        self.core = core
        self.calls = 0
        self.levels = dict.fromkeys(NAMES, 4)
        self.router = core.Router(self._on_output, cache_limit=cache_limit)
        self.clients = [self._client(name) for name in NAMES]
        for client in self.clients[:2]:
            client.packet_writer.open_window(5, 10**6)
        self.link = core.LinkReader(400_000)
        self.sockets = self.router.make_sockets()
        self.sockets.wire_zone(self._ask, self._leave, self._find_link)
        self.sockets.wire_owners(self._find_link)
        self.way: Any = None
        self.left: list[Any] = []
        self.to_others = self.router.make_packet_writer()
        self.sender = self.router.make_sender(self.to_others, self._head)
        self.runs: list[Any] = []
        self.targets: list[Any] = []

    def _client(self, name: str) -> Client:
        """The last one has a lasting session."""
        level = self.levels[name]
        client = Client(
            self.core, self.router, name, clean=name != "z", max_packet=400_000, level=level
        )
        client.session = SESSIONS[name]
        client.packet_writer.alias_maximum = 2 if level >= LISTED_LEVEL else 0
        client.packet_reader.leaves_text = name == "y"
        self._open(client, client.flows)
        return client

    def _open(self, client: Client, flows: Any) -> None:
        name = client.session.name
        client.packet_reader.open(
            client.session, name, flows, clean=name != "z", level=self.levels[name]
        )

    def _on_output(self) -> None:
        self.calls += 1

    def _ask(self) -> Any:
        return self.way

    def _leave(self, run: Any, left: list[Any]) -> None:
        self.left.append((self.look_at_run(run), _by_session(left)))

    def _find_link(self, key: Any) -> Any:
        return self.sender if key is VALUES[2] else None

    def _head(self, client_id: str) -> bytes:
        return client_id.encode() + b":1234"

    def do(self, step: str, *arguments: Any) -> Any:
        return getattr(self, f"do_{step}")(*arguments)

    def look(self) -> Any:
        return (
            [self._look_at(client) for client in self.clients],
            [run and self.look_at_run(run) for run in self.runs[-2:]],
            (self.link.expected, self.link.first_byte, str(self.link.fault)),
            (self.link.received, self.link.heard_at, self.sender.room, self.sender.sent),
            (self.router.received, self.router.delivered, self.router.fills, self.calls),
        )

    def _look_at(self, client: Any) -> Any:
        packet_writer, packet_reader, flows = (
            client.packet_writer,
            client.packet_reader,
            client.flows,
        )
        packet_ids = sorted(flows.packet_ids())
        return (
            (
                packet_writer.size,
                packet_writer.has_room,
                packet_writer.dropped,
                packet_writer.too_large,
                packet_writer.fills,
            ),
            (
                packet_writer.is_direct,
                packet_writer.is_shut,
                packet_writer.is_noted,
                packet_writer.is_full,
                packet_writer.is_told,
            ),
            (
                packet_writer.in_flight,
                packet_writer.waiting,
                packet_writer.lend_room,
                packet_writer.queue_has_room,
                packet_writer.is_short,
            ),
            packet_writer.first_queued(),
            (
                packet_reader.first_byte,
                str(packet_reader.fault),
                packet_reader.has_heard,
                packet_reader.has_landed,
            ),
            packet_reader.heard_at,
            (len(flows), packet_ids, [tuple(flows.get(n)) for n in packet_ids]),
        )

    def look_at_run(self, run: Any) -> Any:
        return (
            (run.raw, run.count, run.qos, run.size, run.topics(), run.packet_ids),
            (run.clients, run.places, run.edge, run.session, run.serial, run.first),
            (run.offsets and list(run.offsets), [run.offset(n) for n in range(run.count)]),
            (run.ranges(), run.last, run.client_id),
            [(run.message(n).payload, run.message(n).properties) for n in range(run.count)],
            (run.has_properties, run.expires, self._look_at_plain(run.without_properties())),
        )

    def _look_at_plain(self, run: Any) -> Any:
        """As a node gets it that knows of no properties."""
        assert not run.has_properties
        return run.raw, run.size, run.topics(), run.places, run.edge, run.offset(0), run.last

    # -- bytes

    def do_pieces(self, client: int, pieces: list[bytes], at_once: bool) -> Any:
        """Steps follow each piece, or come when all of them were fed."""
        if at_once:
            return [self.do_read(client, piece) for piece in pieces]
        for piece in pieces:
            self.clients[client].packet_reader.feed(piece)
        return self.do_read(client, b"")

    def do_read(self, client: int, data: bytes) -> Any:
        """Work all of it off, as connections do."""
        found: list[Any] = []
        one = self.clients[client]
        packet_reader = one.packet_reader
        packet_reader.feed(data)
        while True:
            frame = packet_reader.step()
            for run in (packet_reader.qos0, packet_reader.qos12):
                found.append(run and self.look_at_run(run))
                if run is not None:
                    self.runs.append(run)
            found.append(
                (frame, packet_reader.pubacks, str(packet_reader.fault), packet_reader.wants_flows)
            )
            found.append(frame is not None and packet_reader.is_padded)
            if packet_reader.wants_flows:
                self._open(one, one.flows)
            if frame is None and not packet_reader.has_more:
                return found

    def do_renew(self, client: int) -> None:
        """A new connection of the same session, with subscriptions of the one before."""
        flows = self.clients[client].flows
        one = self.clients[client] = self._client(NAMES[client])
        one.flows = flows
        self._open(one, None)
        if client != 2:
            one.packet_writer.open_window(5, 10**6)

    def do_level(self, client: int, level: int, max_packet: int) -> None:
        """The client speaks this level, and accepts packets of this size, from here on."""
        one = self.clients[client]
        self.levels[NAMES[client]] = one.packet_writer.level = level
        one.packet_writer.max_packet = max_packet
        one.packet_writer.alias_maximum = 2 if level >= LISTED_LEVEL else 0
        self.sender.has_properties = level == 5
        self._open(one, one.flows)

    def do_takes(self, client: int, takes: bool) -> None:
        self.clients[client].packet_reader.takes_qos12 = takes

    def do_link(self, expected: int, data: bytes) -> Any:
        found = []
        self.link.expected = expected
        self.link.feed(data)
        while (one := self.link.step()) is not None:
            if not isinstance(one, tuple):
                self.runs.append(one)
                one = self.look_at_run(one)
            elif not one[0] and len(one[1]) >= COUNT:
                self.link.expected = int.from_bytes(one[1][-COUNT:], "little")
            found.append(one)
        return found

    def do_bailiwick(self, change: str, apex: str) -> Any:
        getattr(self.link.bailiwick, change)(apex)
        return [self.link.bailiwick.has(topic) for topic in ["a", "a/b", "a/b/c", "ab", "b", "/"]]

    # -- sockets

    def do_know(self, count: int) -> None:
        """The header that the link has seen last may come again."""
        self.link.is_open = True
        self.link.know("n", "e", count)

    def do_forget(self) -> None:
        self.link.forget()
        self.sender.forget()

    def do_link_wait(self, data: bytes, allows: int, room: int) -> Any:
        """As `do_wait`, at an owner's or, for allows of 4 and more, an edge's end of a link."""
        if allows >= 4:
            self.link.may_take, self.link.leave = (lambda: allows > 4), self._leave
        self.link.most = self.link.received + 1000
        found = self._wait(self.link, data, allows, room)
        self.link.may_take = None
        return found, self.do_link(self.link.expected, b"")

    def do_wait(self, client: int, data: bytes, allows: int, room: int) -> Any:
        """That comes at a socket; what is not dealt with there, others work off."""
        found = self._wait(self.clients[client].packet_reader, data, allows, room)
        return found, self.do_read(client, b"")

    def _wait(self, packet_reader: Any, data: bytes, allows: int, room: int) -> Any:
        kept: list[bytes] = []
        calls = self.calls
        keep = (lambda runs: kept.extend(bytes(r.raw) for r in runs)) if allows & 1 else None
        self.way = (VALUES[1], VALUES[1], VALUES[1], keep) if allows & 2 else None
        self.sender.room = room
        self.left = []
        near, far = socket.socketpair()
        out, other = socket.socketpair()
        with near, far, out, other, epoll() as watching:
            for end in (near, out):
                end.setblocking(False)
            watching.register(near.fileno(), EPOLLIN)
            self.sockets.add(near.fileno(), packet_reader)
            self.to_others.descriptor = out.fileno()
            far.sendall(data[:100_000])
            interest = bytearray(near.fileno()) + bytes((EPOLLIN,))
            self.sockets.wait(watching, interest, 0.0, lambda: 17.0)
            self.sockets.notify_output()
            while len(data) and (rest := _rest(near)):  # of a long packet, some may be left
                packet_reader.feed(rest)
            self.to_others.descriptor = -1
            self.sockets.remove(near.fileno())
            out.close()
            sent = b"".join(iter(lambda: other.recv(1 << 20), b"")) + self.to_others.dequeue()
        # Whether outputs that nobody can write are looked at again depends on what was told.
        self.calls = calls
        return kept, self.left, sent

    def do_pings(self, client: int, pieces: list[bytes]) -> Any:
        """They come at a socket one by one; the answers go to the client, who reads them."""
        one = self.clients[client]
        found = [one.packet_writer.dequeue(), self.do_read(client, b"")]
        near, far = socket.socketpair()
        with near, far, epoll() as watching:
            near.setblocking(False)
            watching.register(near.fileno(), EPOLLIN)
            self.sockets.add(near.fileno(), one.packet_reader)
            one.packet_writer.descriptor = near.fileno()
            interest = bytearray(near.fileno()) + bytes((EPOLLIN,))
            for piece in pieces:
                far.sendall(piece)
                self.sockets.wait(watching, interest, 0.0, lambda: 17.0)
                self.sockets.notify_output()
                found.append((one.packet_reader.first_byte, one.packet_reader.heard_at))
            one.packet_writer.descriptor = -1
            self.sockets.remove(near.fileno())
            near.shutdown(socket.SHUT_WR)
            found.append(b"".join(iter(lambda: far.recv(1 << 20), b"")))
            found[-1] += one.packet_writer.dequeue()
        return found, self.do_read(client, b"")

    # -- what goes where

    def do_route(self, kind: str, apex: str, value: int) -> None:
        apexes = getattr(self.router, kind)
        if value < len(VALUES):
            apexes.set(apex, VALUES[value])
        else:
            apexes.remove(apex)

    def do_interest(self, is_on: bool, topic_filter: str, key: int) -> Any:
        if is_on:
            return self.router.interests.add(topic_filter, str(key), VALUES[key])
        return self.router.interests.remove(topic_filter, str(key))

    def do_subscribe(self, client: int, topic_filter: str, key: int, qos: int, plain: bool) -> Any:
        one = self.clients[client]
        target = self.router.make_target(one.session, topic_filter, one.packet_writer)
        target.qos, target.is_plain = qos, plain
        self.targets.append(target)
        return self.router.targets.add(topic_filter, (client, key), target)

    def do_unsubscribe(self, client: int, topic_filter: str, key: int) -> Any:
        return self.router.targets.remove(topic_filter, (client, key))

    def do_target(self, index: int, qos: int, plain: bool) -> None:
        if self.targets:
            target = self.targets[index % len(self.targets)]
            target.qos, target.is_plain = qos, plain

    # -- runs

    def _run(self, index: int) -> Any:
        return self.runs[-1 - index % len(self.runs)] if self.runs else None

    def do_place(self, index: int, first: int, edge: str) -> None:
        run = self._run(index)
        if run is not None:
            run.first, run.edge = first, edge
            run.clients, run.places = ("a", "b"), [n % 2 for n in range(run.count)]

    def do_select(self, index: int, chosen: list[int]) -> None:
        run = self._run(index)
        if run is not None:
            self.runs.append(run.select([one % run.count for one in chosen]))

    def do_cut(self, index: int, count: int) -> None:
        run = self._run(index)
        if run is not None and run.count > 1:
            self.runs += run.cut(1 + count % (run.count - 1))

    def do_rebuild(self, index: int) -> None:
        run = self._run(index)
        if run is not None:
            again = self.core.Run(run.data, run.entries, clients=("r",), serial=run.serial)
            self.runs.append(again)

    def do_split(self, index: int) -> Any:
        run = self._run(index)
        if run is None:
            return None
        parts = self.router.split(run)
        self.runs += [part for _, part in parts if part is not run]
        return [(value, part is run, part.raw) for value, part in parts]

    def do_taken(self, index: int, verdict: int) -> Any:
        run, value = self._run(index), VALUES[verdict]
        return run and (
            self.router.accepted_count(run, value),
            self.router.belongs(run, VALUES[1], value),
        )

    def do_receivers(self, index: int) -> Any:
        run = self._run(index)
        if run is None:
            return None
        parts = self.router.receivers(run)
        sole = self.router.sole_receiver(self.runs[-3:])
        return sole, [(peers, part is run, part.raw) for peers, part in parts]

    def do_fan_out(self, index: int, part: str) -> Any:
        runs, place, found = self.runs[-1 - index % 4 :], 0, []
        while place < len(runs):
            place, left = self.router.fan_out_some(runs, place, part)
            found.append((place, _by_session(left)))
        return found

    def do_matching(self, index: int, message: int, client: int) -> Any:
        run = self._run(index)
        if run is None:
            return None
        session = self.clients[client].session
        place = message % run.count
        ways = [self.router.way(run, n) for n in range(run.count)]
        found = self.router.matching(run, place, session)
        alike = [n for n, way in enumerate(ways) if way == ways[place]]
        assert all(found == self.router.matching(run, n, session) for n in alike)
        return found

    def do_answer(self, index: int, client: int, is_here: bool) -> Any:
        run = self._run(index)
        if run is None:
            return None
        one = self.clients[client]
        return one.flows.acknowledge(run, one.packet_writer if is_here else None)

    def do_lend(self, index: int, client: int, start: int, lender: int, again: bool) -> Any:
        """A part of a run is lent; what was answered, and what is not."""
        packet_writer = self.clients[client].packet_writer
        run, count = self._run(index), None
        if run is not None:
            start %= run.count
            count = packet_writer.lend_run(run, start, run.count, lender, again=again), run.is_qos1
        return count, packet_writer.unanswered(), packet_writer.dequeue_answered()

    def do_publish(self, client: int, data: bytes, part: str, is_here: bool) -> Any:
        """All that is done with what a client sends."""
        found = []
        known = len(self.runs)
        found.append(self.do_read(client, data))
        for run in self.runs[known:]:
            for route, routed in self.router.split(run):
                taken = self.router.accepted_count(routed, VALUES[1])
                edges = [(peers, one.raw) for peers, one in self.router.receivers(routed)]
                left = self.router.fan_out(routed, part)
                found.append((route, taken, edges, _by_session(left)))
            if run.qos:
                one = self.clients[client]
                if is_here:
                    found += [ids for _, ids in self.router.answer([run])]
                else:
                    found.append(one.flows.acknowledge(run, None))
        return found

    def do_acknowledge_all(self, client: int) -> Any:
        """The client answers all that it got, and gets more."""
        one = self.clients[client]
        sent = one.packet_writer.dequeue()
        answers, found = b"".join(answers_to(sent)), []
        found.append((sent, self.do_read(client, answers)))
        one.packet_writer.pump()
        return found

    # -- flows

    def do_hold(self, client: int, packet_id: int) -> None:
        self.clients[client].flows.hold(packet_id)

    def do_free(self, client: int, packet_id: int) -> None:
        self.clients[client].flows.free(packet_id)

    def do_release(self, client: int, packet_id: int) -> Any:
        one = self.clients[client]
        return one.flows.release(packet_id, one.packet_writer)

    # -- packet writers

    def do_give(
        self,
        client: int,
        how: str,
        qos: int,
        size: int,
        part: str,
        offset: int,
        properties: bytes = b"",
    ) -> Any:
        packet_writer = self.clients[client].packet_writer
        if how == "deliver_first":
            retain = bool(offset % 2)
            packet_writer.deliver_first(b"t", bytes(size), qos, size, properties, retain=retain)
            return packet_writer.drop_first(4, 3000)
        if how == "lend":
            again = bool(offset % 2)
            return packet_writer.lend(b"t", bytes(size), qos, size, properties, again=again)
        if how == "landed":
            return packet_writer.dequeue_landed()
        return getattr(packet_writer, how)(b"t", bytes(size), qos, size, part, offset, properties)

    def do_acknowledge(self, client: int, packet_ids: list[int]) -> None:
        self.clients[client].packet_writer.acknowledge(packet_ids)

    def do_pump(self, client: int) -> None:
        self.clients[client].packet_writer.pump()

    def do_receive(self, client: int, packet_id: int) -> None:
        self.clients[client].packet_writer.receive(packet_id)

    def do_complete(self, client: int, packet_id: int) -> None:
        self.clients[client].packet_writer.complete(packet_id)

    def do_send(self, client: int, size: int, may_drop: bool) -> Any:
        packet_writer = self.clients[client].packet_writer
        if may_drop:
            return packet_writer.send_qos0(bytes(max(size, SHORTEST)))
        return packet_writer.send(bytes(size))

    def do_window(self, client: int, inflight: int, memory: int) -> None:
        self.clients[client].packet_writer.open_window(inflight, memory)

    def do_state(self, client: int, is_direct: bool, is_shut: bool) -> None:
        packet_writer = self.clients[client].packet_writer
        packet_writer.is_direct, packet_writer.is_shut = is_direct, is_shut
        packet_writer.is_told = is_shut

    def do_pass_by(self, client: int, part: str | None) -> None:
        self.clients[client].packet_writer.reads = part

    def do_take(self, client: int) -> Any:
        return self.clients[client].packet_writer.dequeue()

    def do_send_some(self, client: int, size: int) -> Any:
        """A socket takes so much, at least as its buffer is large; all arrives in order."""
        packet_writer, got = self.clients[client].packet_writer, b""
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            total = packet_writer.size
            while len(got) < min(size, total):
                packet_writer.send_to(here.fileno())
                got += there.recv(min(size, total) - len(got))
            there.setblocking(False)
            while packet_writer.size or len(got) < total:
                packet_writer.send_to(here.fileno())
                try:
                    got += there.recv(1_000_000)
                except BlockingIOError:
                    pass
        return got

    def do_hurry(self, is_hurried: bool) -> None:
        self.router.hurry(is_hurried)

    def do_outputs(self) -> Any:
        places = [client.packet_writer for client in self.clients]
        taken = self.router.send_outputs(), self.router.dequeue_full()
        return [
            [packet_writer in places and places.index(packet_writer) for packet_writer in one]
            for one in taken
        ]


def _by_session(left: list[tuple[Any, range]]) -> list[tuple[Any, list[int]]]:
    """What `fan_out` left: the cores need not have the same ranges."""
    found: dict[Any, list[int]] = {}
    for session, index in pairs(left):
        found.setdefault(session, []).append(index)
    return list(found.items())


def _rest(end: socket.socket) -> bytes:
    """What has come and was not read."""
    try:
        return end.recv(1 << 20)
    except BlockingIOError:
        return b""
