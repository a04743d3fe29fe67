"""What clients are sent in a turn of the event loop, and what of it is left to later ones."""

from __future__ import annotations

from collections.abc import Callable

from txbroker.core import Router
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.sockets.poller import SocketOutputs


class Looked:
    """A connection that takes its output when it is looked at."""

    def __init__(self, router: Router) -> None:
        self.packet_writer = router.make_packet_writer()
        self.packet_writer.connection = self
        self.got = b""

    def flush(self) -> None:
        self.got += bytes(self.packet_writer.dequeue())


def test_a_crowd_gets_its_output_in_turns_of_their_own() -> None:
    """Whatever of the loop is ready comes in between; nobody has to ask for what is left."""
    later: list[Callable[[], None]] = []
    flush_queue = FlushQueue(later.append)
    outputs = SocketOutputs(flush_queue.mark_next)
    router = outputs.router = Router(lambda: flush_queue.mark_dirty(outputs))
    crowd = [Looked(router) for _ in range(1_000)]
    for one in crowd:
        one.packet_writer.send(b"1")
    flush_queue.end()
    written, turns = [sum(bool(one.got) for one in crowd)], 0
    while later:
        due, later[:] = later[:], []
        for action in due:
            action()
        turns += 1
        written.append(sum(bool(one.got) for one in crowd))

    assert written[0] < 500
    assert [b"1"] * 1_000 == [one.got for one in crowd]
    assert 2 < turns < 10
