"""Who is there: a union by versions, the same everywhere, kept."""

from __future__ import annotations

from unittest import mock

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checking import checking
from tests.support.keeping import MemoryTable
from txbroker.delegation.peer_checks import AHEAD
from txbroker.directory.members import LIMIT, RECORDS, REMOVED, SLICE, Member, Members

checked = checking(Members)


def member(name: str, version: int = 1, **fields: object) -> Member:
    return Member(name=name, grpc=f"{name}:1", site="", version=version, **fields)  # type: ignore[arg-type]


def members(name: str = "a", *others: Member, table: MemoryTable | None = None) -> Members:
    made = Members(name, "", table or MemoryTable(), is_root=True)
    made.announce(f"{name}:1")
    made.merge(others)
    return made


def test_a_node_that_was_never_told_knows_nothing() -> None:
    """Until its parent has told it all."""
    node = Members("b", "", MemoryTable(), is_root=False)
    node.announce("b:1")
    assert not node.is_joined
    node.merge([member("a")])
    assert not node.is_joined
    node.merge_list([member("a")])

    assert node.is_joined
    assert node.peers() == ("a",)


def test_it_is_remembered() -> None:
    """Over a restart, with what was learnt."""
    table = MemoryTable()
    node = Members("b", "", table, is_root=False)
    node.announce("b:1")
    node.merge_list([member("a")])
    node.settle()
    again = Members("b", "", table, is_root=False)

    assert (node.all, node.view) == (again.all, again.view)
    assert again.is_joined and again.is_settled and again.was_settled


def test_the_greater_version_counts() -> None:
    """A new address wins wherever it comes first."""
    old, new = member("b", 1), attrs.evolve(member("b", 2), grpc="b:2")
    for order in ((old, new), (new, old)):
        node = members("a", *order)

        assert node.get("b") == new


@pytest.mark.parametrize("is_list", [False, True])
def test_a_version_far_above_is_not_taken(is_list: bool) -> None:
    """Nothing could ever supersede one of 2^64-1; what is told beside it counts."""
    node = members("a", member("b", 1))
    merge = node.merge_list if is_list else node.merge
    merge([member("b", 2**64 - 1), member("c", 2**64 - 1), member("d", 7)])
    merge([member("b", 1 + AHEAD), member("c", 3)])

    versions = {one.name: one.version for one in node.all if one.name != "a"}
    assert {"b": 1 + AHEAD, "c": 3, "d": 7} == versions


def test_a_node_is_right_about_itself() -> None:
    """Whatever others remember of an earlier life of it, with an empty disk, say."""
    node = members("a", attrs.evolve(member("a", 7), grpc="old:1"))

    assert node.get("a") == attrs.evolve(member("a", 8), grpc="a:1")


def test_a_new_address_is_a_new_version() -> None:
    """The same address is not."""
    table = MemoryTable()
    members("a", table=table)
    same = Members("a", "", table, is_root=True)
    same.announce("a:1")
    moved = Members("a", "", table, is_root=True)
    moved.announce("a:2")

    assert [1, 2] == [node.all[0].version for node in (same, moved)]


def test_a_removed_member_is_gone_until_it_comes_back() -> None:
    """It keeps nothing any more, and a late word of its old self changes nothing."""
    node = members("a", member("b"), member("c"))
    node.settle()
    before = node.view
    assert node.remove("b")
    assert not node.remove("b")
    node.merge([member("b")])

    assert node.get("b") is None
    assert ("c",) == node.peers()
    assert before != node.view
    assert not node.is_settled and node.was_settled
    node.merge([member("b", 3)])
    assert before == node.view


def test_one_more_leaves_a_node_settled() -> None:
    """It keeps a part of what it kept."""
    node = members("a")
    node.settle()
    node.merge([member("b")])

    assert node.is_settled


def test_sites_keep_apart() -> None:
    """A view is that of a site; another site's members are known, and keep nothing here."""
    node = members("a", member("b"), attrs.evolve(member("x"), site="far"))

    assert ("far",) == node.sites()
    assert {"a", "b"} == set(node.keepers("id"))
    assert ("x",) == node.keepers("id", "far")
    assert node.view == members("b", member("a")).view


def test_news_are_told_once() -> None:
    """Each change, but not to whom it came from."""
    node, source = members("a", member("b")), object()
    news, told = node.news_since(0)
    assert {"a", "b"} == {one.name for one in news}
    assert ((), told) == node.news_since(told)
    node.merge([member("b", 2)], source)
    assert ((), told + 1) == node.news_since(told, source)

    assert ((member("b", 2),), told + 1) == node.news_since(told)


def test_who_was_wrong_about_a_node_hears_what_is_right() -> None:
    """Or a member that was forgotten never comes back."""
    node, source = members("a"), object()
    _, told = node.news_since(0)
    node.merge([member("a", 5, removed=True)], source)
    news, _ = node.news_since(told, source)

    assert [member("a", 6)] == list(news)


def test_many_news_are_told_in_slices() -> None:
    """The oldest first; a change meanwhile comes last."""
    node = members("a", *(member(f"n{number}") for number in range(2 * SLICE)))
    heard: list[str] = []
    told = 0
    while not node.is_told(told):
        news, told = node.news_since(told)
        assert len(news) <= SLICE
        if not heard:
            node.merge([member("n0", 2)])
        heard += [one.name for one in news]

    assert ["n0", "n0"] == [name for name in heard if name == "n0"]
    assert heard[-1] == "n0"
    assert len(heard) == 2 * SLICE + 2


def test_who_is_told_hears_of_the_first_word_of_a_parent_without_news() -> None:
    """Children of this node may conclude something only from then on."""
    node = Members("b", "", MemoryTable(), is_root=False)
    node.announce("b:1")
    node.merge([member("a")])
    heard: list[bool] = []
    node.when_changed(lambda: heard.append(node.is_joined))
    node.merge_list([member("a")])

    assert [True] == heard


def test_there_is_a_limit() -> None:
    """Beyond it, nobody is taken in; removed ones do not count, and only so many are remembered."""
    node = members("a", *(member(f"n{number}") for number in range(LIMIT + 5)))
    assert len(node.all) == LIMIT
    assert node.left_out == 6
    node.remove("n0")
    node.merge([member("late")])
    assert node.get("late") is not None
    node.merge([member("later"), member("n0", 3)])
    assert node.get("later") is None and node.get("n0") is None
    table = MemoryTable()
    node = members("a", *(member(f"n{n}", removed=True) for n in range(REMOVED + 5)), table=table)

    node.merge(member(f"here{number}") for number in range(LIMIT + 5))
    assert len(node.all) == RECORDS
    again = Members("a", "", table, is_root=True)
    assert len(node.removed) == len(again.removed) == REMOVED
    assert "n0" not in again.removed and f"n{REMOVED + 4}" in again.removed


versions = st.builds(
    Member,
    name=st.sampled_from(["b", "c", "d"]),
    grpc=st.sampled_from(["x:1", "x:2"]),
    site=st.sampled_from(["", "far"]),
    version=st.integers(1, 3),
    removed=st.booleans(),
)


@given(st.lists(versions, max_size=8), st.lists(versions, max_size=8))
def test_merging_is_a_union(one: list[Member], other: list[Member]) -> None:
    """In any order and however often: all come to know the same."""
    first, second = members("a", *one, *other), members("a", *other, *one, *other)

    assert set(first.all) == set(second.all)
    assert first.view == second.view


def test_one_less_leaves_a_node_unsettled_also_after_a_crash() -> None:
    """The mark goes before the record of who left: a crash between the two must not leave it."""
    table = MemoryTable()
    node = members("a", member("b"), table=table)
    node.settle()
    whole = dict(table.items())
    with mock.patch.object(table, "put") as put:
        node.remove("b")
    written: list[tuple[bytes, bytes]] = [call.args for call in put.call_args_list]

    for count in range(1, len(written) + 1):
        left = MemoryTable()
        for key, value in (*whole.items(), *written[:count]):
            left.put(key, value)
        again = Members("a", "", left, is_root=True)
        assert (False, True) == (again.is_settled, again.was_settled)
    assert again.is_removed("b")
