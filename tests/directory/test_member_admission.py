"""Nobody is a member by the word of another node alone: it is asked first."""

from __future__ import annotations

from unittest import mock

import attrs

from tests.support.keeping import MemoryTable
from tests.support.site import Site
from txbroker.directory.member_admission import (
    AT_ONCE,
    BURST,
    FIRST_PAUSE,
    KEPT,
    RATE,
    SHARED,
    WAITING,
    MemberAdmission,
    MemberProbe,
)
from txbroker.directory.members import Member, Members
from txbroker.directory.requests import Ping


def member(name: str, version: int = 1, grpc: str = "", **fields: object) -> Member:
    return Member(name=name, grpc=grpc or f"{name}:1", site="", version=version, **fields)  # type: ignore[arg-type]


class Bench:
    """Node `a`, and who answers at which address."""

    def __init__(self) -> None:
        self.now = 0.0
        self.members = Members("a", "", MemoryTable(), is_root=True)
        self.members.announce("a:1")
        self.admission = MemberAdmission(self.members, lambda: self.now, lambda: None)
        self.there: set[str] = set()
        self.asked: list[str] = []

    def ask(self) -> list[MemberProbe]:
        due = self.admission.due()
        for asked in due:
            self.asked.append(asked.member.name)
            is_member = asked.member.name in self.there
            self.admission.answered(asked, is_member=is_member)
        return due

    def ask_all(self) -> None:
        while self.ask():
            pass

    @property
    def names(self) -> set[str]:
        return {"a", *self.members.peers()}


def test_who_answers_is_a_member() -> None:
    """Who does not, is none, and is asked again."""
    bench = Bench()
    bench.there = {"b"}
    bench.admission.store_members("child", [member("b"), member("ghost")], is_stream=True)
    assert {"a"} == bench.names
    bench.ask_all()
    assert {"a", "b"} == bench.names
    assert 1 == bench.admission.waiting
    bench.there.add("ghost")
    bench.ask_all()
    assert {"a", "b"} == bench.names
    bench.now += FIRST_PAUSE
    bench.ask_all()

    assert {"a", "b", "ghost"} == bench.names
    assert 0 == bench.admission.waiting


def test_what_is_known_needs_no_answer() -> None:
    """A removal, a version, and what the node knows of itself."""
    bench = Bench()
    bench.there = {"b"}
    bench.admission.store_members("child", [member("b")])
    bench.ask_all()
    bench.there.clear()
    told = [member("b", 2), member("a", 7, "old:1"), member("c", 3, removed=True)]
    bench.admission.store_members("child", told)
    assert 0 == bench.admission.waiting
    assert member("b", 2) == bench.members.get("b")
    assert member("a", 8) == bench.members.get("a")
    bench.admission.store_members("child", [member("b", 3, removed=True), member("c", 2)])

    assert bench.members.get("b") is None
    assert 0 == bench.admission.waiting


def test_another_address_is_asked_before_it_is_used() -> None:
    """Or a liar makes a member unreachable for all."""
    bench = Bench()
    bench.there = {"b"}
    bench.admission.store_members("child", [member("b")])
    bench.ask_all()
    bench.there.clear()
    bench.admission.store_members("liar", [member("b", 2, "nowhere:1")], is_stream=True)
    bench.ask_all()
    assert member("b") == bench.members.get("b")
    bench.there = {"b"}
    bench.now += FIRST_PAUSE
    bench.ask_all()

    assert member("b", 2, "nowhere:1") == bench.members.get("b")


def test_a_flood_keeps_nobody_else_waiting() -> None:
    """Questions are few at a time and each second, and each that tells has its turn."""
    bench = Bench()
    bench.admission.store_members("liar", (member(f"g{number}") for number in range(WAITING)))
    first = bench.admission.due()
    assert AT_ONCE == len(first)
    for asked in first:
        bench.admission.answered(asked, is_member=False)
    bench.there = {"b"}
    bench.admission.store_members("child", [member("b")], is_stream=True)
    bench.ask()
    assert {"a", "b"} == bench.names
    bench.ask_all()
    assert len(bench.asked) + AT_ONCE <= BURST
    bench.now += 1.0
    bench.asked.clear()
    bench.ask_all()

    assert RATE == len(bench.asked)


def test_there_is_room_for_those_who_tell_of_few() -> None:
    """Whoever tells of most is left out."""
    bench = Bench()
    bench.admission.store_members("liar", (member(f"g{number}") for number in range(WAITING + 5)))
    bench.there = {"b"}
    bench.admission.store_members("child", [member("b")])
    assert WAITING == bench.admission.waiting
    bench.ask()

    assert {"a", "b"} == bench.names


def test_few_members_have_one_address() -> None:
    """One server does not answer for a crowd."""
    bench = Bench()
    ghosts = [member(f"g{number}", grpc="liar:1") for number in range(10)]
    bench.there = {ghost.name for ghost in ghosts}
    bench.admission.store_members("liar", ghosts)
    bench.ask_all()
    bench.admission.store_members("liar", ghosts)

    assert SHARED == len(bench.names) - 1


def test_what_was_told_is_forgotten() -> None:
    """With the stream that told it, or some time after the call."""
    bench = Bench()
    bench.admission.store_members("stream", [member("b")], is_stream=True)
    bench.admission.store_members("call", [member("c")])
    bench.now += KEPT
    bench.ask_all()
    assert ["b"] == bench.asked
    bench.admission.forget("stream")

    assert 0 == bench.admission.waiting


def test_what_is_told_anew_is_asked_anew() -> None:
    """The answer that is on its way is about an address of before."""
    bench = Bench()
    bench.admission.store_members("child", [member("b")])
    (asked,) = bench.admission.due()
    bench.admission.store_members("child", [member("b", 2, "b:2")])
    bench.admission.answered(asked, is_member=True)
    assert {"a"} == bench.names
    bench.there = {"b"}
    bench.ask_all()

    assert bench.members.get("b") == attrs.evolve(member("b"), version=2, grpc="b:2")


def test_versions_far_above_are_not_taken() -> None:
    """One of 2^64-1 would stand for ever."""
    bench = Bench()
    bench.admission.store_members("liar", [member("b", 1 << 40)])

    assert 0 == bench.admission.waiting


def test_a_command_removes_whom_others_count() -> None:
    """At its newest record, so that the removal counts at every node."""
    bench = Bench()
    bench.there = {"b"}
    bench.admission.store_members("child", [member("b"), member("lost", 3)], is_stream=True)
    bench.admission.store_members("other", [member("lost", 5, "new:1")], is_stream=True)
    bench.ask_all()
    bench.there.clear()
    bench.admission.store_members("child", [member("b", 4, "new:1")], is_stream=True)

    for name, version in (("lost", 6), ("b", 5)):
        found = bench.admission.find(name)
        assert found is not None and found.version == version - 1
        bench.admission.remove(name)
        record = bench.members.record(name)
        assert record is not None and (record.version, record.removed) == (version, True)
    assert (0, None) == (bench.admission.waiting, bench.admission.find("nobody"))
    assert {"a"} == bench.names


def test_who_calls_is_asked_soon() -> None:
    """It was away for long, and is back; calls in its name make it no member, nor a crowd."""
    bench = Bench()
    bench.admission.store_members("child", [member("late")], is_stream=True)
    for _ in range(100):
        bench.ask()
        bench.now += FIRST_PAUSE
    asked = len(bench.asked)
    for _ in range(10):
        bench.admission.on_call("late")
        bench.admission.on_call("nobody")
        bench.ask()
    assert asked + 1 == len(bench.asked) and {"a"} == bench.names
    bench.there.add("late")
    bench.now += FIRST_PAUSE
    bench.admission.on_call("late")
    bench.ask()

    assert {"a", "late"} == bench.names


def test_a_call_of_a_member_that_has_not_answered_is_heard() -> None:
    """Though it gets no answer itself."""
    alone = Site(["a"], 1)
    alone.start(1)
    directory = alone.nodes["a"].directory
    with mock.patch.object(directory.admission, "on_call") as on_call:
        assert directory.handle("late", Ping()) is None

    on_call.assert_called_once_with("late")


def test_a_silent_member_costs_nothing_between_two_questions() -> None:
    """The caller looks in each turn of a busy node, and thousands may be silent."""
    bench = Bench()
    bench.admission.store_members("liar", [member(f"x{n}") for n in range(9)], is_stream=True)
    bench.ask_all()
    with mock.patch.object(MemberAdmission, "_in_turn", side_effect=AssertionError):
        for bench.now in (0.1, 0.2, FIRST_PAUSE - 0.01):
            assert [] == bench.ask()
    bench.there.add("y")
    bench.admission.store_members("b", [member("y")])
    bench.ask()

    assert "y" in bench.names


def test_silent_members_cost_nothing_beyond_the_rate() -> None:
    """Their turn has come, and no question may leave."""
    bench = Bench()
    invented = [member(f"x{number}") for number in range(int(BURST) + 50)]
    bench.admission.store_members("liar", invented, is_stream=True)
    bench.ask_all()
    with mock.patch.object(MemberAdmission, "_in_turn", side_effect=AssertionError):
        assert [] == bench.ask()
    bench.now += 2 / RATE

    assert 2 == len(bench.ask())


def test_a_silent_member_is_asked_when_its_time_has_come() -> None:
    """Neither before, nor long after."""
    bench = Bench()
    bench.admission.store_members("b", [member("x"), member("y")], is_stream=True)
    asked = []
    for _ in range(100):
        bench.now += 0.1
        asked += [(round(bench.now, 1), one.member.name) for one in bench.ask()]

    times = [at for at, name in asked if name == "x"]
    assert [name for _, name in asked].count("y") == len(times)
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert all(abs(gap - FIRST_PAUSE * 2**n) < 0.21 for n, gap in enumerate(gaps))
    assert len(gaps) >= 4
