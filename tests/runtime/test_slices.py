"""Long work in slices: how much of it a turn does, in which order, and that it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from txbroker.runtime.slices import Slices


class Loop:
    """A loop whose clock stands still but for steps, each of which takes a millisecond."""

    def __init__(self, longest: float = 0.004) -> None:
        self.done: list[str] = []
        self.asked = 0
        self._now = 0.0
        self.slices = Slices(lambda: self._now, self._ask, longest)

    def steps(self, name: str, count: int) -> Iterator[None]:
        """A piece of work; what is done is noted."""
        for number in range(count):
            self.spend()
            self.done.append(f"{name}{number}")
            yield

    def spend(self, seconds: float = 0.001) -> None:
        """Time passes."""
        self._now += seconds

    def turn(self) -> list[str]:
        """The next turn, if it is asked for; what was done since the last one."""
        if self.asked:
            self.asked = 0
            self.slices.work()
        taken, self.done = self.done, []
        return taken

    def _ask(self) -> None:
        self.asked += 1


def test_small_work_is_done_at_once() -> None:
    """And its end is known to who began it."""
    loop = Loop()

    assert loop.slices.start("a", loop.steps("a", 2))
    assert (["a0", "a1"], 0) == (loop.done, len(loop.slices))


def test_turn_does_no_more_than_its_slice() -> None:
    """The rest is done in later turns, each of which is asked for once."""
    loop = Loop()

    assert not loop.slices.start("a", loop.steps("a", 10))
    assert loop.slices.is_busy("a")
    assert ["a0", "a1", "a2", "a3"] == loop.done
    loop.done.clear()
    assert loop.asked == 1
    turns = [loop.turn() for _ in range(3)]

    assert [["a4", "a5", "a6", "a7"], ["a8", "a9"], []] == turns
    assert not loop.slices.is_busy("a")


def test_slices_are_short_while_somebody_waits_for_many_turns() -> None:
    """And as long as before when nobody does, however long that was."""
    for longest, steps in ((0.004, 4), (0.002, 2)):
        loop = Loop(longest)
        loop.slices.start("a", loop.steps("a", 20))
        loop.done.clear()
        loop.slices.is_short = True
        assert [[f"a{steps}"], [f"a{steps + 1}"]] == [loop.turn(), loop.turn()]
        loop.slices.is_short = False
        first = steps + 2
        assert [f"a{number}" for number in range(first, first + steps)] == loop.turn()


def test_pieces_of_one_turn_share_its_slice() -> None:
    """Small ones, too: many of them are no less than one that is long."""
    loop = Loop()
    done = [loop.slices.start(name, loop.steps(name, 1)) for name in "abcdef"]

    assert [True] * 3 + [False] * 3 == done
    assert ["a0", "b0", "c0", "d0"] == loop.done
    loop.done.clear()
    assert ["e0", "f0"] == loop.turn()


def test_turns_that_do_little_do_not_add_up() -> None:
    """What was spent is forgotten with the turn."""
    loop = Loop()
    for _ in range(20):
        assert loop.slices.start("a", loop.steps("a", 1))
        loop.turn()


def test_owner_has_its_work_done_in_order() -> None:
    """A later piece, however small, does not overtake an earlier one."""
    loop = Loop()
    loop.slices.start("a", loop.steps("first", 6))
    loop.done.clear()

    assert not loop.slices.start("a", loop.steps("second", 1))
    assert ["first4", "first5", "second0"] == loop.turn()


def test_owners_take_turns() -> None:
    """One that has much delays another by its steps, not by its work."""
    loop = Loop()
    loop.slices.start("a", loop.steps("a", 1000))
    loop.slices.start("b", loop.steps("b", 2))
    loop.done.clear()

    assert ["a4", "b0", "a5", "b1"] == loop.turn()
    assert ["a6", "a7", "a8", "a9"] == loop.turn()


def test_cancelled_work_is_not_gone_on_with() -> None:
    """Not by its own step either."""
    loop = Loop()
    loop.slices.start("a", loop.steps("a", 10))
    loop.slices.cancel("a")
    loop.done.clear()

    def ends_itself() -> Iterator[None]:
        loop.slices.cancel("b")
        yield
        loop.done.append("too late")

    assert [] == loop.turn()
    assert loop.slices.start("b", ends_itself())
    assert ([], 0) == (loop.turn(), len(loop.slices))


def test_work_that_is_needed_is_finished() -> None:
    """All of it, now; the others have their turn."""
    loop = Loop()
    loop.slices.start("a", loop.steps("a", 10))
    loop.slices.start("a", loop.steps("more", 1))
    loop.slices.start("b", loop.steps("b", 1))
    loop.done.clear()
    loop.slices.finish("a")

    assert ["a9", "more0"] == loop.done[-2:]
    assert ["b0"] == loop.turn()[-1:]


def test_step_may_begin_more_work() -> None:
    """Which comes in its turn, for its own owner behind what that has."""
    loop = Loop()

    def begins() -> Iterator[None]:
        loop.slices.start("a", loop.steps("later", 1))
        loop.slices.start("b", loop.steps("b", 1))
        yield
        loop.done.append("rest")

    loop.slices.start("a", begins())
    loop.turn()

    assert not len(loop.slices)


def test_piece_that_raises_is_over() -> None:
    """Who began it is told; the others go on."""
    loop = Loop()

    def fails() -> Iterator[None]:
        yield
        loop.spend(0.01)
        yield
        raise ValueError("a step failed")

    loop.slices.start("a", fails())
    loop.slices.start("b", loop.steps("b", 2))
    with pytest.raises(ValueError, match="a step failed"):
        loop.turn()

    assert not loop.slices.is_busy("a")
    assert ["b0", "b1"] == loop.turn()


def test_step_that_takes_long_is_the_last_of_its_turn() -> None:
    """A turn is late by one step at the most."""
    loop = Loop()

    def slow() -> Iterator[None]:
        for number in range(3):
            loop.spend(0.005)
            loop.done.append(str(number))
            yield

    loop.slices.start("a", slow())
    first, loop.done = loop.done, []

    assert [["0"], ["1"], ["2"]] == [first, loop.turn(), loop.turn()]
