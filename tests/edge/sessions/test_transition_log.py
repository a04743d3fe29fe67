"""
A zone goes out to a node of its own and comes back, again and again, while an edge is away.

Whatever the edge missed, and in whichever order it finds its owners again, its sessions get all
that matches their filters, once, and each topic in its order.
"""

from __future__ import annotations

import random

import attrs
import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, subscribed
from tests.support.edge_bench import Client, EdgeBench
from tests.support.keeping import MemoryTable
from tests.support.recorders import OwnerRecorder, cut
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.journal_read_cache import RETRY, ReadFailure
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.model.epoch_transition import END, FOREVER, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import matches
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message

ROOT = JournalId("", 1)


class _Link(OwnerRecorder):
    """What closes a link breaks it."""

    def __init__(self, bench: EdgeBench, apex: str) -> None:
        super().__init__(bench.events, apex)
        self._bench = bench
        self._apex = apex

    def close(self, reason: str) -> None:
        super().close(reason)
        self._bench.lose(self._apex)


class World:
    """The root and the zone `a`; `bench` is an edge, `linked` are those that it reaches."""

    def __init__(self, *, is_slow: bool = False) -> None:
        """`is_slow`: sessions may read between the answer of an owner and its stream."""
        self.bench: EdgeBench = bench_of()
        self.linked = {""}
        self.epoch = 0
        self.is_out = False
        self.ends: dict[JournalId, int] = {ROOT: 0}
        self.passages = self.bench.journals.passages
        self.predecessor: LogPosition | None = None
        self.said: list[tuple[str, str]] = []
        self.count = 0
        self.came_back_at = 0
        self.is_unclaimed = False
        self.is_stale = False
        self.lingers = False
        self.is_slow = is_slow
        self.restored: set[JournalId] = set()  # parts that the zone's node still has

    @property
    def child(self) -> JournalId:
        return JournalId("a", self.epoch)

    @property
    def cuts(self) -> list[ZoneCut]:
        return [attrs.evolve(cut("a"), epoch=self.epoch)] if self.is_out else []

    # what happens

    def say(self, topic: str) -> None:
        """A message, to whoever serves the topic now."""
        part = self.child if self.is_out and topic.startswith("a/") else ROOT
        self.ends[part] += 1
        text = f"{topic} {self.count}"
        self.count += 1
        self.said.append((topic, text))
        message = Message(topic, text.encode(), 1)
        self.bench.journals.add(part, self.ends[part], message)
        is_held = self.is_unclaimed and part == ROOT and topic.startswith("a/")
        if part.zone in self.linked and not is_held:
            self._deliver(self.bench.route(part.zone), self.ends[part], message)

    def go_out(self) -> None:
        """A node takes over the zone."""
        self.epoch += 1
        self.is_out, self.lingers = True, False
        self.ends[self.child] = 0
        self.predecessor = LogPosition(ROOT, self.ends[ROOT])
        entered = LogPosition(self.child, 0)
        self.passages.append(EpochTransition(apex="a", left=self.predecessor, entered=entered))
        self._see_what_is_readable()
        if "" in self.linked:
            self.bench.edge.cuts.on_cut(self.bench.route(""), self.cuts[0])
            self._answer()

    def come_back(self, *, is_dead: bool = False, is_late: bool = False) -> None:
        """
        It gives the zone back; or an operator takes it, as the node `is_dead`. `is_late`: the root
        is heard first.
        """
        self.is_out = False
        self.restored.clear()
        self.came_back_at = self.ends[ROOT]
        self.is_unclaimed = "" in self.linked and not is_dead
        end = FOREVER if is_dead else self.ends[self.child]
        entered = LogPosition(ROOT, self.ends[ROOT])
        self.passages.append(
            EpochTransition(apex="a", left=LogPosition(self.child, end), entered=entered)
        )
        if is_dead:
            self.linked.discard("a")
            self.bench.journals.missing[self.child] = ReadFailure.CUT_OFF
            self.said = [one for one in self.said if one[1] not in self._lost()]
        else:
            self.bench.journals.closed.add(self.child)
        self.bench.journals.ends[self.child] = self.ends[self.child]
        was_linked = "a" in self.linked
        self.linked.discard("a")
        self._see_what_is_readable()
        says = [self._say_gone] if was_linked else []
        if "" in self.linked:
            root = self.bench.route("")
            says.append(lambda: self.bench.edge.cuts.on_cut_ended(root, "a", self.epoch))
        for say in reversed(says) if is_late else says:
            say()
        self._answer()

    def _say_gone(self) -> None:
        if self.bench.edge.zones.get("a") is not None:
            self.bench.edge.cuts.on_zone_end(self.bench.route("a"), is_whole=True)

    def restore(self) -> None:
        """The node of the zone is restored from a copy of all that it has."""
        before = self.child
        if "a" in self.linked:
            self.lose("a")
        self.epoch += 1
        self.ends[self.child] = 0
        self.predecessor = LogPosition(before, self.ends[before])
        left, entered = LogPosition(before, END), LogPosition(self.child, 0)
        self.passages.append(EpochTransition(apex="a", left=left, entered=entered))
        self.restored.add(before)
        self.bench.journals.closed.add(before)
        self.bench.journals.ends[before] = self.ends[before]
        self._see_what_is_readable()
        if "" in self.linked:
            self.bench.edge.cuts.on_cut(self.bench.route(""), self.cuts[0])
            self._answer()

    def lose(self, apex: str) -> None:
        """An owner cannot be reached any more."""
        self.linked.discard(apex)
        self._see_what_is_readable()
        if apex:
            self.is_stale = False
        self.bench.lose(apex)

    def start_edge_anew(self) -> None:
        """Its process was killed."""
        self.linked.clear()
        self.bench = self.bench.restart()
        self.bench.know("", *(cut.apex for cut in self.cuts))
        self._see_what_is_readable()

    def cut_silently(self) -> None:
        """The link to the child is dead, and the edge does not know."""
        self.linked.discard("a")
        self.is_stale = True
        self._see_what_is_readable()

    def notice(self) -> None:
        """Now it does."""
        if self.is_stale:
            self.is_stale = False
            route = self.bench.edge.zones.get("a")
            if route is not None and route.port is not None:
                self.bench.lose("a")

    def find(self, apex: str) -> None:
        """The edge reaches an owner again, or sees that it is none."""
        if apex:
            self.notice()
        edge, route = self.bench.edge, self.bench.edge.zones.get(apex)
        if apex in self.linked or route is None:
            return
        if not apex:
            self.is_unclaimed = False
        if apex and not self.is_out:
            self.lingers = True
            self._see_what_is_readable()
            edge.cuts.on_zone_end(route, is_whole=False)
            return
        self.linked.add(apex)
        self._see_what_is_readable()
        part = self.child if apex else ROOT
        edge.on_owner(route, part.epoch, self.predecessor if apex else None, self.passages)
        if self.is_slow:
            self.bench.settle()
        if route.position is not None and route.position.epoch != part.epoch:
            route.begin_part(part.epoch)
        if route.position is not None:
            for record in self.bench.journals.parts.get(part, []):
                if record.offset > route.position.offset:
                    self._deliver(route, record.offset, record.message)
        edge.on_online(
            route,
            _Link(self.bench, apex),
            marks={},
            cuts=[] if apex else self.cuts,
            position=StreamPosition(epoch=part.epoch, offset=self.ends[part]),
        )
        self._answer()

    # what came of it

    def told(self, *filters: str) -> dict[str, list[str]]:
        """What is to come, by topic."""
        found: dict[str, list[str]] = {"x": [], "a/x": []}
        for topic, text in self.said:
            if any(matches(topic_filter, topic) for topic_filter in filters):
                found[topic].append(text)
        return found

    def settle(self) -> None:
        """Everybody is found, and what could not be read is tried again."""
        for apex in ("", "a", "", "a"):
            self.find(apex)
        for _ in range(3):
            self.bench.clock.advance(RETRY)
            self.bench.settle()

    # internal

    def _deliver(self, route: Route, offset: int, message: Message) -> None:
        if any(matches(topic_filter, message.topic) for topic_filter in route.interest.filters):
            self.bench.edge.on_message(route, message, offset)
        else:
            route.reach(offset)

    def _see_what_is_readable(self) -> None:
        """Each owner has its own journal, and the root what came back."""
        missing = self.bench.journals.missing
        for part in self.ends:
            is_childs = part == self.child or part in self.restored
            owner = "a" if self.is_out and is_childs else ""
            if missing.get(part) is ReadFailure.CUT_OFF:
                continue
            if owner in self.linked or (owner != part.zone and self.lingers):
                missing.pop(part, None)
            else:
                missing[part] = ReadFailure.UNREACHABLE

    def _answer(self) -> None:
        root = self.bench.route("")
        if self.is_unclaimed and "" in self.linked and "a" in root.claims.apexes:
            self.is_unclaimed = False
            for record in self.bench.journals.parts.get(ROOT, []):
                if record.offset > self.came_back_at and record.message.topic.startswith("a/"):
                    self._deliver(root, record.offset, record.message)
        for route in self.bench.edge.zones:
            if route.apex in self.linked and route.claims.claiming:
                self.bench.edge.on_claimed(route, list(route.claims.claiming), lambda: None)
        for route in self.bench.edge.zones:
            for topic_filter, _ in list(route.interest.requests.values()):
                self.bench.answer(route.apex, topic_filter)

    def _lost(self) -> set[str]:
        records = self.bench.journals.parts.get(self.child, [])
        return {record.message.payload.decode() for record in records}


class Visits:
    """A client that comes to the edge of a world and leaves, with all that it has got so far."""

    def __init__(self, world: World, *filters: str) -> None:
        self.client = subscribed(world.bench, *filters)
        self.is_here = True
        self.came: list[str] = []
        self._world = world
        self._filters = filters

    def read(self) -> None:
        """The client takes what is there for it, if it is here."""
        if self.is_here:
            self.came += everything(self.client)

    def come(self) -> None:
        """The client connects again."""
        self.client = Client(self._world.bench, "c", clean=False)
        self.is_here = True

    def leave(self) -> None:
        """The client goes, if it is here."""
        self.read()
        if self.is_here:
            self.client.leave()
        self.is_here = False

    def check_end(self) -> None:
        """In the end the client has got all, each once and in order."""
        if not self.is_here:
            self.come()
        self._world.settle()
        self.read()
        assert self._world.told(*self._filters) == by_topic(self.came)
        assert {} == self.client.session.places.behind


def by_topic(texts: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"x": [], "a/x": []}
    for text in texts:
        found[text.split()[0]].append(text)
    return found


def everywhere(world: World) -> None:
    world.say("x")
    world.say("a/x")


@pytest.mark.parametrize("filters", [("#",), ("a/x",), ("x", "a/#")])
@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("order", [("", "a"), ("a", "")])
@pytest.mark.parametrize("begins_out", [True, False])
@pytest.mark.parametrize("changes", [1, 2, 3, 4])
def test_zone_changes_hands_while_the_edge_is_away(
    filters: tuple[str, ...], is_here: bool, order: tuple[str, ...], begins_out: bool, changes: int
) -> None:
    """Each part in between is read in its place."""
    world = World()
    if begins_out:
        world.go_out()
        world.find("a")
    client = subscribed(world.bench, *filters)
    everywhere(world)
    came = everything(client)
    if not is_here:
        client.leave()
    for apex in sorted(world.linked):
        world.lose(apex)
    for _ in range(changes):
        everywhere(world)
        if world.is_out:
            world.come_back()
        else:
            world.go_out()
        everywhere(world)
    for apex in order:
        world.find(apex)
    if not is_here:
        client = Client(world.bench, "c", clean=False)
    world.settle()
    everywhere(world)

    assert world.told(*filters) == by_topic(came + everything(client))
    assert {} == client.session.places.behind


def test_zone_that_was_reclaimed_and_went_out_again() -> None:
    """An edge that never followed the parent learns from the new owner what that had meanwhile."""
    world = World()
    world.go_out()
    world.find("a")
    client = subscribed(world.bench, "a/x")
    everywhere(world)
    came = everything(client)
    for apex in sorted(world.linked):
        world.lose(apex)
    world.come_back(is_dead=True)
    everywhere(world)
    world.go_out()
    everywhere(world)
    world.find("a")
    world.settle()

    assert ["a/x 1"] == came
    assert ["a/x 3", "a/x 5"] == everything(client)


@pytest.mark.parametrize("filters", [("#",), ("a/x",), ("x", "a/#")])
@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("order", [("", "a"), ("a", "")])
@pytest.mark.parametrize("lives", [1, 2, 3])
@pytest.mark.parametrize("is_anew", [False, True])
def test_node_is_restored_while_the_edge_is_away(
    filters: tuple[str, ...], is_here: bool, order: tuple[str, ...], lives: int, is_anew: bool
) -> None:
    """Again and again; each copy is of the life before. The edge may be started anew."""
    world = World()
    world.go_out()
    world.find("a")
    client = subscribed(world.bench, *filters)
    everywhere(world)
    came = everything(client)
    if not is_here or is_anew:
        client.leave()
    world.bench.settle()
    for apex in sorted(world.linked):
        world.lose(apex)
    for _ in range(lives):
        everywhere(world)
        world.restore()
        everywhere(world)
    if is_anew:
        world.start_edge_anew()
    for apex in order:
        world.find(apex)
    if not is_here or is_anew:
        client = Client(world.bench, "c", clean=False)
    world.settle()
    everywhere(world)

    came += everything(client)
    # What had no acknowledgement that is durable comes once more.
    assert world.told(*filters) == by_topic(list(dict.fromkeys(came)) if is_anew else came)
    assert {} == client.session.places.behind


def test_session_that_is_merged_follows_what_this_edge_went_through_without_it() -> None:
    """Its earlier node had not heard that the zone's node was restored: nothing is skipped."""
    world = World()
    bench = world.bench
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    world.go_out()
    world.find("a")
    client = subscribed(bench, "a/#")
    everywhere(world)
    came = everything(client)
    client.leave()
    bench.settle()
    state = transfer.freeze("c")
    assert state is not None
    transfer.release("c", b"token")
    everywhere(world)
    world.restore()
    everywhere(world)
    world.find("a")
    client = subscribed(bench, "a/#")
    everywhere(world)
    transfer.adopt("c", state, 2)
    world.settle()
    everywhere(world)

    came += everything(client)
    told = [text for texts in world.told("a/#").values() for text in texts]
    assert sorted(told) == sorted(came)
    session = client.session
    assert {} == session.places.behind
    bench.settle()
    assert [session.subscriptions.keys()] == [
        one.subscriptions.keys() for one in bench.restart().edge.clients.sessions.values()
    ]


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("seed", range(300))
def test_any_history(seed: int, is_restored: bool) -> None:
    """Links break and come back one by one, clients leave and return, as it happens."""
    rng = random.Random(seed)
    world = World(is_slow=rng.random() < 0.5)
    filters = rng.choice([("#",), ("a/x",), ("x", "a/#")])
    visits = Visits(world, *filters)
    for _ in range(rng.randrange(5, 40)):
        match rng.randrange(11 if is_restored else 10):
            case 0 | 1:
                everywhere(world)
            case 2:
                world.notice()
                if world.is_out:
                    world.come_back(is_late=rng.random() < 0.5)
                else:
                    world.go_out()
            case 8 if "a" in world.linked:
                world.cut_silently()
                everywhere(world)
                world.come_back()
                everywhere(world)
            case 9:
                world.notice()
                world._answer()
            case 10 if world.is_out:
                world.notice()
                everywhere(world)
                world.restore()
                everywhere(world)
            case 3:
                world.lose(rng.choice(sorted(world.linked))) if world.linked else None
            case 4 | 5:
                world.find(rng.choice(["", "a"]))
            case 6 if visits.is_here:
                visits.leave()
            case 6 | 7 if not visits.is_here:
                visits.come()
            case _:
                world.bench.edge.cursors.checkpoint()
                world.bench.clock.advance(RETRY)
        visits.read()
    visits.check_end()
