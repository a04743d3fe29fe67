"""A node is lost while a session moves away from it: a clean session ends the copy, too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.directory.scenarios import connect, id_kept_by, site
from tests.support.site import Node, Site
from txbroker.directory.connected_clients import REMEMBERED
from txbroker.directory.discard_record import ANY, PendingDiscard
from txbroker.directory.requests import Discard, Release
from txbroker.model.machine_time import UNKNOWN

AWAY = 30.0
"""Seconds for which the node with the copy is cut off: it hears late of the loss."""

FEW = 4
"""Questions to members that have no copy, and say so."""

A_WHILE = 60.0
"""Seconds: more than a pending discard takes."""


def lose_holder(whole: Site, client_id: str) -> None:
    """The session is on its way from d to b when d dies: b never hears whether it was released."""
    connect(whole, "d", client_id).lost(is_will_due=False)
    whole.run(1.0)
    send = whole.send

    def lose(source: Node, target: str, request: Any, answered: Any) -> None:
        if isinstance(request, Release):
            whole.nodes["d"].kill()
        send(source, target, request, answered)

    whole.send = lose  # type: ignore[method-assign]
    moving = whole.nodes["b"].connect(client_id)
    whole.run_until(lambda: not whole.nodes["d"].is_up)
    moving.lost(is_will_due=False)


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_copy_from_a_lost_holder_ends_with_the_session(
    is_forgotten: bool, is_cut_off: bool
) -> None:
    """The lost node is forgotten before the clean session begins, or after that."""
    whole = site("abcde")
    client_id = id_kept_by(whole, but_not="b")
    lose_holder(whole, client_id)
    if is_cut_off:
        whole.isolate("b")
    members = whole.nodes["a"].directory.members
    if is_forgotten:
        members.remove("d")
        whole.run(0.5)
    clean = connect(whole, "c", client_id, clean=True)
    clean.lost(is_will_due=False)
    members.remove("d")
    whole.run(AWAY)
    whole.heal()
    whole.run(A_WHILE)

    assert clean.present is False
    assert [] == whole.holders(client_id)
    assert not whole.nodes["b"].directory.ownership.arriving
    assert not len(whole.nodes["c"].directory.clearings)
    asked = [target for _, target, request in whole.calls if isinstance(request, Discard)]
    assert asked.count("a") + asked.count("e") <= FEW


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_copy_from_a_lost_holder_stays_without_a_clean_session(is_forgotten: bool) -> None:
    """A discard of another id asks for that id only."""
    whole = site("abcde")
    client_id = id_kept_by(whole, but_not="b")
    lose_holder(whole, client_id)
    if is_forgotten:
        whole.nodes["a"].directory.members.remove("d")
    connect(whole, "c", f"{client_id}-other", clean=True).lost(is_will_due=False)
    whole.nodes["a"].directory.members.remove("d")
    whole.run(A_WHILE)

    assert ["b"] == whole.holders(client_id)


@pytest.mark.parametrize("is_pending", [False, True])
def test_pending_discard_closes_no_connection(is_pending: bool) -> None:
    """Any member may be asked for a copy, long after the client went on there."""
    whole = site("abc")
    connection = connect(whole, "b", clean=True)
    whole.run(REMEMBERED + 1.0)
    due = PendingDiscard(generation=1 if is_pending else ANY)
    request = due.request("x", 1, UNKNOWN)
    whole.nodes["b"].directory.handle("a", request)

    assert connection.is_open is is_pending
