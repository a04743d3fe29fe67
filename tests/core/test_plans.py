"""Where runs go, against a plain comparison of each topic with each filter and apex."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.cores import COMPILED, CORES, Client, Session, a_run, needs_compiled, publish
from tests.core.test_trees import LEVELS, filters, topics
from txbroker.model.topics import deepest_enclosing, matches

KINDS = ["interests", "targets", "singles", "routes", "bounds"]

changes = st.tuples(st.sampled_from(KINDS), st.booleans())


def entry_run(core: Any, names: list[str]) -> Any:
    """A run of one message to each topic, those that begin with `$` included."""
    made = a_run(core, *[publish(b"x" + name.encode()) for name in names])
    entries = [one._replace(topic=one.topic + 1) for one in made.entries]
    return core.Run(made.data, entries, clients=("me",))


class World:
    """An exchange beside what was set in it."""

    def __init__(self, core: Any, limit: int) -> None:
        self.core = core
        self.router = core.Router(lambda: None, cache_limit=limit)
        self.client = Client(core, self.router)
        self.known: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}

    def change(self, kind: str, name: str, *, is_set: bool) -> None:
        """Set or remove one of the five."""
        place, known = getattr(self.router, kind), self.known[kind]
        keys = {"interests": (name,), "singles": ("it",), "targets": (self.client.session,)}
        key = keys.get(kind, ())
        if not is_set:
            known.pop(name, None)
            place.remove(name, *key)
            return
        known[name] = Session(name)
        if kind == "targets":
            self.client.subscribe(name)
        elif key:
            place.add(name, *key, known[name])
        else:
            place.set(name, known[name])

    def check(self, names: list[str]) -> None:
        """A run with these topics goes where each of them does."""
        router, run = self.router, entry_run(self.core, names)
        routes, bounds = (
            [self.known[kind].get(deepest_enclosing(name, self.known[kind])) for name in names]
            for kind in ("routes", "bounds")
        )
        for route, part in router.split(run):
            assert [n for n, to in zip(names, routes, strict=True) if to is route] == part.topics()
        verdicts = [
            None if any(matches(one, name) for one in self.known["singles"]) else at
            for name, at in zip(names, bounds, strict=True)
        ]
        alike = [*(at is verdicts[0] for at in verdicts), False]
        assert alike.index(False) == router.accepted_count(run, verdicts[0])
        are_alike = all(at is routes[0] for at in routes) and alike.index(False) == len(names)
        assert are_alike == router.belongs(run, routes[0], verdicts[0])
        got = {peer.name: part.topics() for peers, part in router.receivers(run) for peer in peers}
        wanted = {
            one: found
            for one in self.known["interests"]
            if (found := [name for name in names if matches(one, name)])
        }
        assert wanted == got
        delivered = router.delivered
        assert [] == router.fan_out(run, None)
        are_wanted = [any(matches(one, name) for one in self.known["targets"]) for name in names]
        assert sum(are_wanted) == router.delivered - delivered


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(CORES),
    st.sampled_from([0, 3, 1000]),
    st.lists(
        st.tuples(changes, filters, topics, st.lists(topics, min_size=1, max_size=8)), max_size=12
    ),
)
def test_runs_go_where_each_of_their_topics_does(
    core: Any, limit: int, steps: list[tuple[tuple[str, bool], str, str, list[str]]]
) -> None:
    """Whatever was set and removed before, and whatever topics came before."""
    world = World(core, limit)
    for (kind, is_set), topic_filter, apex, names in steps:
        world.change(kind, apex if kind in ("routes", "bounds") else topic_filter, is_set=is_set)
        world.check(names)
        world.check(names[::-1])


@needs_compiled
def test_topics_that_no_filter_tells_apart_take_no_room() -> None:
    router = COMPILED.Router(lambda: None, cache_limit=10)
    for topic_filter in ("a/+/b", "a/c/#", "+/d"):
        router.interests.add(topic_filter, "1", Session("one"))
    levels = [*LEVELS, *[f"new {number}" for number in range(50)]]
    names = [f"a/{one}/b" for one in levels] + [f"a/c/{one}/{one}" for one in levels]
    for _ in range(2):
        assert router.receivers(entry_run(COMPILED, names))
    assert 0 == router.forgotten
