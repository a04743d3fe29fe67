"""
Who publishes and who subscribes, as values, drawn from the seed. Pure.

A session's filters never overlap on a topic of the tree, so that one copy of each message is due.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeVar

import attrs

from .groups import PREFIX
from .rules import matches
from .trees import Tree


@attrs.frozen(kw_only=True)
class Client:
    """
    A client at its node at first. `patience` is how long a PINGRESP may take, in seconds; one that
    `wanders` tries another node when its own does not answer. `will` is the topic of its wills.
    """

    name: str
    node: str
    patience: float
    wanders: bool
    will: str = ""
    will_qos: int = 0


AnyClient = TypeVar("AnyClient", bound=Client)


@attrs.frozen(kw_only=True)
class Publisher(Client):
    """
    `topics` with their turns, `kept` one of its own for retained messages at QoS 1; `rate` messages
    a second, up to `window` of them unacknowledged; packet identifiers below `identifiers`.
    """

    topics: tuple[str, ...]
    kept: str
    rate: float
    window: int
    identifiers: int


@attrs.frozen(kw_only=True)
class Subscriber(Client):
    """(filter, QoS) pairs; `delay` is what it takes to acknowledge a message, in seconds."""

    filters: tuple[tuple[str, int], ...]
    delay: float


@attrs.frozen
class Cast:
    """All clients of a tree; those of `late` come one a round, `members` share one filter."""

    publishers: tuple[Publisher, ...]
    subscribers: tuple[Subscriber, ...]
    late: tuple[Subscriber, ...]
    members: tuple[Subscriber, ...] = ()

    @property
    def clients(self) -> tuple[Client, ...]:
        """Those that are there from the start on, and of whom a schedule speaks."""
        return (*self.publishers, *self.subscribers)


def draw(seed: int, tree: Tree, *, rate: float = 40.0, nodes: Sequence[str] = ()) -> Cast:
    """
    The cast of this seed; `rate` is what all publish together, in messages a second; `nodes` are
    those where clients may be at first, all of them by default.
    """
    rng = Random(f"{seed}/{tree.name}/cast")
    count = rng.randint(3, 4)
    cast = Cast(
        tuple(_publisher(rng, tree, f"pub-{i}", rate / count) for i in range(count)),
        tuple(_subscriber(rng, tree, f"sub-{i}", i) for i in range(rng.randint(4, 5))),
        tuple(_subscriber(rng, tree, f"late-{i}", i + 1) for i in range(2)),
    )
    cast = attrs.evolve(cast, members=_members(Random(f"{seed}/{tree.name}/group"), tree))
    cast = _with_wills(cast, tree, Random(f"{seed}/{tree.name}/wills"))
    return _only_at(cast, nodes) if nodes else cast


def _with_wills(cast: Cast, tree: Tree, rng: Random) -> Cast:
    """Each client has a topic of its own for its wills, in any zone."""

    def willed(clients: Iterable[AnyClient]) -> tuple[AnyClient, ...]:
        return tuple(
            attrs.evolve(
                client,
                will="/".join(filter(None, (rng.choice(tree.zones), f"will-{client.name}"))),
                will_qos=rng.choice((1, 2)),
            )
            for client in clients
        )

    return Cast(*map(willed, (cast.publishers, cast.subscribers, cast.late, cast.members)))


def _only_at(cast: Cast, nodes: Sequence[str]) -> Cast:
    """In turn at these nodes, and never elsewhere unless a schedule says so."""
    places = itertools.cycle(nodes)

    def moved(clients: Iterable[AnyClient]) -> tuple[AnyClient, ...]:
        return tuple(attrs.evolve(client, node=next(places), wanders=False) for client in clients)

    return Cast(*map(moved, (cast.publishers, cast.subscribers, cast.late, cast.members)))


def _client(rng: Random, tree: Tree, name: str) -> dict[str, object]:
    return {
        "name": name,
        "node": rng.choice(tree.names),
        "patience": rng.choice((3.0, 8.0)),
        "wanders": rng.random() < 0.5,
    }


def _publisher(rng: Random, tree: Tree, name: str, rate: float) -> Publisher:
    zone = rng.choice(tree.zones)
    topics = tree.topics()
    return Publisher(
        **_client(rng, tree, name),  # type: ignore[arg-type]
        topics=tuple(rng.sample(topics, rng.randint(3, min(6, len(topics))))),
        kept="/".join(filter(None, (zone, f"kept-{name}"))),
        rate=rate * rng.uniform(0.6, 1.4),
        window=rng.choice((4, 16)),
        identifiers=rng.choice((24, 300)),
    )


def _subscriber(rng: Random, tree: Tree, name: str, number: int) -> Subscriber:
    filters: list[tuple[str, int]] = []
    if number == 0:
        filters = [("#", 2)]
    candidates = _candidates(tree)
    rng.shuffle(candidates)
    for text in candidates:
        if len(filters) < 2 and not any(_overlap(tree, text, other) for other, _ in filters):
            filters.append((text, rng.choice((1, 2, 2))))
    return Subscriber(
        **_client(rng, tree, name),  # type: ignore[arg-type]
        filters=tuple(filters),
        delay=rng.choice((0.0, 0.0, 0.02)),
    )


def _members(rng: Random, tree: Tree) -> tuple[Subscriber, ...]:
    """Those of one group, whose filter spans a zone and all below it."""
    zone = rng.choice(tree.zones)
    text = PREFIX + (f"{zone}/#" if zone else "#")
    return tuple(
        Subscriber(
            **_client(rng, tree, f"member-{i}"),  # type: ignore[arg-type]
            filters=((text, 2),),
            delay=rng.choice((0.0, 0.0, 0.02)),
        )
        for i in range(3)
    )


def _candidates(tree: Tree) -> list[str]:
    """Exact ones, those of a zone and those that span zones."""
    found = ["#", "+/t0", "+/+/t1", "a/#", *tree.topics()]
    for zone in filter(None, tree.zones):
        found += [f"{zone}/#", f"{zone}/+", f"{zone}/t1"]
    return sorted(set(found))


def _overlap(tree: Tree, one: str, other: str) -> bool:
    """True if some topic of the tree, or one for retained messages, matches both."""
    kept = ["/".join(filter(None, (zone, "kept"))) for zone in tree.zones]
    spelled = [*tree.topics(), *kept]
    return any(matches(one, topic) and matches(other, topic) for topic in spelled)
