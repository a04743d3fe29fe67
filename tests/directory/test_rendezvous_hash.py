"""Who keeps an id: the same everywhere, evenly, and for as long as the member is there."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txbroker.directory.rendezvous_hash import KEEPERS, RendezvousHash, majority

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12, unique=True)


@given(names, st.randoms(use_true_random=False), st.text())
def test_the_order_of_names_does_not_matter(members: list[str], random: object, name: str) -> None:
    """Every node comes to the same result."""
    shuffled = list(members)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert RendezvousHash(members).keepers(name) == RendezvousHash(shuffled).keepers(name)


@given(names, st.text())
def test_three_or_all(members: list[str], name: str) -> None:
    """As many as there are, at most three, each once."""
    keepers = RendezvousHash(members).keepers(name)

    assert min(KEEPERS, len(members)) == len(set(keepers)) == len(keepers)
    assert set(keepers) <= set(members)


@given(names, st.text(min_size=1, max_size=8), st.text())
def test_one_more_pushes_out_one_at_the_most(members: list[str], new: str, name: str) -> None:
    """And nobody but the new one keeps an id that it did not keep before."""
    before = RendezvousHash(members).keepers(name)
    after = RendezvousHash({*members, new}).keepers(name)

    assert set(after) - set(before) <= {new}


def test_it_is_the_same_in_every_process() -> None:
    """Entries on disks are found again, by any version of this program."""
    places = RendezvousHash(["attic", "cellar", "garage", "kitchen"])

    assert ("kitchen", "garage", "cellar") == places.keepers("panel")
    assert ("cellar", "kitchen", "attic") == places.keepers("panel-2")


def test_ids_are_spread_evenly() -> None:
    """Each of ten members keeps about three tenths."""
    places = RendezvousHash(f"node{n}" for n in range(10))
    counts = Counter(name for n in range(10_000) for name in places.keepers(f"client-{n}"))

    assert all(2_700 < count < 3_300 for count in counts.values())


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (3, 2)])
def test_majority(count: int, expected: int) -> None:
    """More than half."""
    assert expected == majority(count)
