"""The end of a node's roles: the order of its steps, and what a failure between two leaves."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from txbroker.delegation.hand_back_child import RetireError
from txbroker.delegation.procedure import (
    AskParentStatus,
    AwaitCondition,
    AwaitStored,
    LeaveMembers,
    LogEvent,
    MoveSessions,
    ParentStatus,
)
from txbroker.delegation.retirement import Retirement, UnfinishedWork


class LeavingNode:
    """A pure edge with one publish under way."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.messages = {"zone": 1}
        self.wills = 0
        self.sessions = 3
        self.members = {"root"}

    def turn_clients_away(self, elsewhere: str) -> None:
        self.done.append(f"turned away to {elsewhere}")

    def unfinished(self) -> UnfinishedWork:
        return UnfinishedWork(messages=dict(self.messages), wills=self.wills)

    def is_member(self, node: str) -> bool:
        return node in self.members

    def resign(self) -> None:
        self.done.append("resigned")

    def undo(self) -> None:
        self.done.append("stays")


class Shell:
    """Carries the steps out, until the step `fails_at`."""

    def __init__(self, node: LeavingNode, fails_at: int = 0) -> None:
        self.node = node
        self.fails_at = fails_at
        self.steps = 0
        self.left = self.reason = ""
        self.is_earlier = self.is_stuck = False

    def run(self, procedure: Generator[Any, Any, None]) -> None:
        try:
            step = next(procedure)
            while True:
                self.steps += 1
                if self.steps == self.fails_at:
                    step = procedure.throw(ConnectionError("lost"))
                else:
                    step = procedure.send(self.do(step))
        except StopIteration:
            pass

    def do(self, step: object) -> object:
        if not isinstance(step, LogEvent):
            self.node.done.append(type(step).__name__)
        match step:
            case AwaitCondition(condition=condition):
                if not self.is_stuck:
                    self.node.messages.clear()
                return condition()
            case MoveSessions(heir=heir):
                assert heir == "root"
                return self.left
            case AskParentStatus():
                return ParentStatus(node="root", is_earlier=self.is_earlier, mqtt="root:1883")
            case LeaveMembers(node="edge"):
                return self.reason
        return None


ORDER = [
    AskParentStatus.__name__,
    "turned away to root:1883",
    AwaitCondition.__name__,
    AwaitStored.__name__,
    MoveSessions.__name__,
    AwaitStored.__name__,
    "resigned",
    AwaitStored.__name__,
    LeaveMembers.__name__,
]


def leave(shell: Shell, *children: str) -> None:
    """Retire the pure edge `edge` from its parent `root`."""
    shell.run(Retirement(shell.node).leave_tree("edge", "root:1", children))


def test_all_that_others_need_is_safe_before_the_next_step() -> None:
    """The sessions leave when the publishes have, the membership when the sessions have."""
    node = LeavingNode()
    leave(Shell(node))
    assert node.done == ORDER


def test_a_failure_between_any_two_steps_lets_the_node_stay() -> None:
    """Whatever has moved is safe at its new place."""
    node = LeavingNode()
    shell = Shell(node)
    leave(shell)
    for fails_at in range(1, shell.steps):
        node = LeavingNode()
        with pytest.raises(RetireError, match="root:1 cannot be reached: lost"):
            leave(Shell(node, fails_at))
        assert node.done[-1] == "stays"
        assert node.done[:-1] == ORDER[: len(node.done) - 1]


def test_publishes_that_do_not_advance_end_the_retirement() -> None:
    """The operator hears which zone's node is away."""
    node = LeavingNode()
    shell = Shell(node)
    shell.is_stuck = True
    with pytest.raises(RetireError, match="1 messages for zone 'zone' wait here"):
        leave(shell)
    assert "MoveSessions" not in node.done and node.done[-1] == "stays"


def test_wills_count_as_publishes() -> None:
    """A will that is not published yet would be lost with the node's data."""
    node = LeavingNode()
    node.messages, node.wills = {}, 2
    shell = Shell(node)
    shell.is_stuck = True
    with pytest.raises(RetireError, match="2 wills"):
        leave(shell)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"left": "session 'x' waits"}, "session 'x' waits; see `txbroker sessions`"),
        ({"reason": "no"}, "no"),
        ({"is_earlier": True}, "earlier txbroker"),
    ],
)
def test_what_the_parent_says_ends_the_retirement(change: dict[str, Any], reason: str) -> None:
    """And the node is a member again."""
    node = LeavingNode()
    shell = Shell(node)
    for name, value in change.items():
        setattr(shell, name, value)
    with pytest.raises(RetireError, match=reason):
        leave(shell)
    assert node.done[-1] == "stays"


def test_a_parent_that_is_no_member_is_no_heir() -> None:
    """Its answer comes before the first join."""
    node = LeavingNode()
    node.members.clear()
    with pytest.raises(RetireError, match="not joined"):
        leave(Shell(node))


def test_an_edge_with_children_does_not_leave() -> None:
    """They would lose their parent; nothing has happened yet."""
    node = LeavingNode()
    with pytest.raises(RetireError, match="'a' has joined here"):
        leave(Shell(node), "b", "a")
    assert node.done == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_owner_asks_where_clients_go(is_lost: bool) -> None:
    """Its parent's name is known; without an answer clients are turned away all the same."""
    node = LeavingNode()
    shell = Shell(node, fails_at=2 if is_lost else 0)

    shell.run(Retirement(node).leave("root"))

    assert f"turned away to {'' if is_lost else 'root:1883'}" in node.done
    assert MoveSessions.__name__ in node.done
