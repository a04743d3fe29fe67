"""A root that hears of another one before it: whom it answers until it starts again."""

from __future__ import annotations

from typing import Any

import attrs

from txbroker.delegation.grant_state import KnownRoot
from txbroker.delegation.state.lost_root import LostRoot
from txbroker.v1 import control_pb2

SAYS = control_pb2.ReadRequest(root=control_pb2.Root(zone="", epoch=1, identity="lost"))


@attrs.define
class Standing:
    """Of a root at its epoch, which it changes at once, and uses from its next start on."""

    epoch: int = 1
    renumbering: tuple[str, ...] = ()
    zone: str = ""
    root: KnownRoot | None = None
    may_renumber: bool = True

    def known_epoch(self, zone: str) -> int:
        return self.epoch

    def is_reused(self, told: KnownRoot) -> bool:
        return told.epoch >= self.epoch

    def renumber(self, told: KnownRoot) -> None:
        self.epoch = told.epoch + 1
        self.renumbering = ("old",)


def test_a_root_answers_nobody_before_it_has_started_again() -> None:
    """It still serves at the epoch that the lost one used."""
    restarts: list[str] = []
    standing: Any = Standing()
    lost_root = LostRoot(standing, restart=lambda: restarts.append("now"))
    answers = [lost_root.judge("b", SAYS) for _ in range(2)]
    standing.renumbering = ()
    after = lost_root.judge("b", SAYS)

    assert 2 * ["the root has lost its disk and takes a new epoch"] == answers
    assert (None, ["now"]) == (after, restarts)
