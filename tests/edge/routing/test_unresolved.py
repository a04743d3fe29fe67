"""An edge whose question about a zone gets no answer: it asks again, at a steady pace, for ever."""

from __future__ import annotations

from tests.support.edge_bench import Client, EdgeBench, forget_cuts
from tests.support.recorders import ConnectorRecorder
from txbroker.edge.routing.route import Route


class Nobody(ConnectorRecorder):
    """Questions go out, one at a time for each zone, and nobody answers them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Route] = []

    def resolve(self, route: Route) -> None:
        if route.begin_question() is not None:
            self.open.append(route)


class Cold(EdgeBench):
    """An edge that knows nothing of the root's cuts; its clients publish all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.nobody = Nobody()
        self.edge._connector = self.nobody
        self.edge.publisher._connector = self.nobody
        forget_cuts(self.route(""))
        self.client = Client(self, "c")
        self.asked = 0

    def fail(self) -> None:
        """What was asked is not answered."""
        asked, self.nobody.open = self.nobody.open, []
        self.asked += len(asked)
        for route in asked:
            self.edge.on_unresolved(route)

    def pass_time(self, seconds: int, publishes: int) -> None:
        """So many publishes in each tenth of a second."""
        for _ in range(10 * seconds):
            for _ in range(publishes):
                self.client.publish("t", qos=0)
                self.fail()
            self.clock.advance(0.1)
            self.fail()


def test_it_asks_once_a_second_however_much_waits() -> None:
    """Not once for each publish, nor more and more often."""
    cold = Cold()
    cold.client.publish("t")
    cold.pass_time(5, publishes=3)
    before = cold.asked

    cold.pass_time(60, publishes=3)

    assert 55 <= cold.asked - before <= 65


def test_it_goes_on_for_hours() -> None:
    """And finds the zone when it is there."""
    cold = Cold()
    cold.client.publish("t")
    cold.pass_time(3 * 3600, publishes=0)
    before = cold.asked
    cold.pass_time(10, publishes=0)
    assert 9 <= cold.asked - before <= 11

    (route,) = cold.nobody.open or [cold.route("")]
    cold.edge.on_resolved(route, cold.route("").cut, (), 30.0)  # type: ignore[arg-type]

    assert ("connect", "") in cold.nobody.events
