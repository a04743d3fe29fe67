"""Schedules and casts: the same for a seed, within bounds, and each episode ends."""

from __future__ import annotations

from collections import Counter

import pytest

from .cast import draw
from .rules import matches
from .schedule import FAULTS, LEAST, Round, plan
from .trees import TREES, Tree

ENDS = {
    "kill": "start",
    "power": "start",
    "stop": "start",
    "retire": "start",
    "damage": "start",
    "restore": "start",
    "reclaim": "start",
    "exchange": "mend-exchange",
    "ruin": "forget",
    "void": "start",
    "freeze": "thaw",
    "cut": "mend-cut",
    "one-way": "mend-one-way",
    "isolate": "mend-isolate",
    "unplug": "mend-unplug",
    "mute": "mend-mute",
    "deaf": "mend-deaf",
    "fill": "free",
    "away": "back",
    "stall": "go-on",
}
PAIRED = ("cut", "one-way", "isolate", "unplug", "mute", "deaf", "fill", "exchange")
PROCESSES = ("kill", "power", "stop", "freeze", "retire", "damage", "restore", "ruin", "void")
BEGINNINGS = {end: begin for begin, end in ENDS.items()}


def rounds_of(tree: Tree, seeds: range, count: int = 3) -> list[Round]:
    return [
        each
        for seed in seeds
        for each in plan(seed, tree, draw(seed, tree), FAULTS, rounds=count, length=20.0)
    ]


@pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))
def test_seed_decides_everything(tree: Tree) -> None:
    """The same seed twice, and another one."""
    first, again, other = (
        plan(seed, tree, draw(seed, tree), FAULTS, rounds=3, length=20.0) for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


@pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))
def test_processes_and_clients_have_one_episode_at_a_time(tree: Tree) -> None:
    """A node that is down is not killed again, and is up at the end; the same for clients."""
    for steps in rounds_of(tree, range(30)):
        down: set[str] = set()
        for step in steps:
            subjects = step.targets if step.verb in ("kill", "power") else step.targets[:1]
            if step.verb == "broken-retire":
                assert down.isdisjoint(step.targets), f"{step} in {steps}"
                down |= set(step.targets)
            elif step.verb == "broken-join":
                assert {step.targets[0]} == down & {*step.targets}, f"{step} in {steps}"
                down |= set(step.targets)
            elif step.verb == "reclaim":
                assert down.isdisjoint(step.targets), f"{step} in {steps}"
                down |= set(subjects)
            elif step.verb == "exchange":
                assert down.isdisjoint(step.targets), f"{step} in {steps}"
            elif step.verb in PROCESSES or step.verb in ("away", "stall"):
                assert down.isdisjoint(subjects), f"{step} in {steps}"
                down |= set(subjects)
            elif step.verb in ("start", "thaw", "back", "go-on", "forget"):
                assert down.issuperset(subjects), f"{step} in {steps}"
                down -= set(step.targets[:1])
            elif step.verb in ("roam", "hop"):
                assert down.isdisjoint(subjects), f"{step} in {steps}"

        assert not down


@pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))
def test_what_begins_ends(tree: Tree) -> None:
    """As often; losses and slow disks end with amount 0."""
    for steps in rounds_of(tree, range(30)):
        balance: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for step in steps:
            verb = BEGINNINGS.get(step.verb, step.verb)
            if verb in ("away", "stall"):
                balance[verb, step.targets[:1]] += 1 if step.verb == verb else -1
            elif verb in PAIRED:
                balance[verb, step.targets] += 1 if step.verb == verb else -1
            elif verb in ("lose", "slow"):
                balance[verb, step.targets] += 1 if step.amount else -1

            assert 0 <= step.at <= 21.0

        assert not any(balance.values()), f"{balance}\n" + "\n".join(map(str, steps))


def test_lost_nodes_take_no_part_any_more() -> None:
    """A node that goes for good is not the root, and no later step kills it, starts it or is it."""
    lost: list[str] = []
    for tree in TREES.values():
        for seed in range(30):
            cast = draw(seed, tree)
            gone: set[str] = set()
            faults = ["ruin", "kill", "retire", "reclaim", "exchange", "roam", "kill-all"]
            for steps in plan(seed, tree, cast, faults, rounds=4, length=30.0):
                for step in steps:
                    assert gone.isdisjoint(step.targets), f"{step} in {steps}"
                down: set[str] = set()
                for step in steps:
                    if step.verb in ("kill", "start", "retire", "reclaim", "exchange"):
                        assert down.isdisjoint(step.targets), f"{step} in {steps}"
                    down |= {step.targets[0]} if step.verb == "ruin" else set()
                gone |= down
            lost += gone
            assert tree.names[0] not in gone
            assert len(tree.names) - len(gone) >= min(LEAST - 1, len(tree.names))
    assert {"a", "ax", "abc", "edge"} <= set(lost)


def test_every_fault_happens() -> None:
    """In a modest number of rounds."""
    tree = TREES["chain"]
    verbs = Counter(step.verb for steps in rounds_of(tree, range(40)) for step in steps)

    assert set(FAULTS) - {"kill-all", "power-all", "split"} <= set(verbs)
    assert "enter" in verbs
    everybody = [
        step
        for steps in rounds_of(tree, range(40))
        for step in steps
        if step.targets and set(step.targets) == set(tree.names)
    ]
    assert {"kill", "power"} <= {step.verb for step in everybody}


def test_only_wanted_faults_happen() -> None:
    """A run may be limited to some."""
    tree = TREES["pair"]
    found = plan(3, tree, draw(3, tree), ["cut"], rounds=2, length=30.0)

    assert {"cut", "mend-cut", "enter"} == {step.verb for steps in found for step in steps}


@pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))
def test_filters_of_a_session_do_not_overlap(tree: Tree) -> None:
    """So one copy of each message is due."""
    for seed in range(50):
        cast = draw(seed, tree)
        topics = [*tree.topics(), *(publisher.kept for publisher in cast.publishers)]
        for subscriber in (*cast.subscribers, *cast.late):
            assert subscriber.filters
            for topic in topics:
                assert 1 >= sum(matches(text, topic) for text, _ in subscriber.filters)


@pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))
def test_topics_have_owners_everywhere(tree: Tree) -> None:
    """Every node that owns a zone owns some topic that is used."""
    owners = {tree.owner(topic) for topic in tree.topics()}

    assert {node.name for node in tree.nodes if node.zone is not None} == owners
