"""The states of a route, and who may write what it keeps."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txbroker
from tests.support.recorders import OwnerRecorder
from txbroker.edge.routing.cut_map import CutChanges
from txbroker.edge.routing.owner_interest import OwnerInterest
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.publish_queue import PublishQueue, WaitingBytes
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.route_state import (
    CONNECTED,
    SERVED_HERE,
    TRANSITIONS,
    RouteEvent,
    RouteState,
    after,
)
from txbroker.edge.routing.zone_claims import StreamPosition, ZoneClaims
from txbroker.model.errors import InvariantBroken
from txbroker.mqtt.wire.message import Message

ROOT = Path(txbroker.__file__).parent
PARTS = (Route, PublishQueue, ZoneClaims, OwnerInterest)


def new_route() -> Route:
    return Route("z", None, WaitingBytes(), CutChanges())


def apply(route: Route, event: RouteEvent) -> None:
    """What the edge calls for this event."""
    match event:
        case RouteEvent.CONNECT:
            route.connect(OwnerRecorder([], "z"), StreamPosition(epoch=1, offset=0))
        case RouteEvent.END:
            route.end_part(1)
        case RouteEvent.DIAL:
            route.dial()
        case RouteEvent.REST:
            route.rest()
        case RouteEvent.FAIL:
            route.fail()
        case RouteEvent.LOSE:
            route.lose()
        case RouteEvent.SERVE:
            route.serve()
        case RouteEvent.LEAVE:
            route.leave()


@given(st.lists(st.sampled_from(RouteEvent), max_size=30))
def test_route_has_a_port_in_the_connected_states_alone(events: list[RouteEvent]) -> None:
    """Whatever comes, in any order; what the table lacks changes nothing."""
    route = new_route()
    for event in events:
        before = route.state
        is_listed = (before, event) in TRANSITIONS
        if event is RouteEvent.END and route.port is None:
            is_listed = True  # the part is over; the connection is not concerned
        if is_listed:
            apply(route, event)
        else:
            with pytest.raises(InvariantBroken):
                apply(route, event)
            assert before is route.state

        route.check()
        assert (route.state in CONNECTED) == (route.port is not None)
        assert (route.state in SERVED_HERE) == route.is_local


def test_every_state_is_reached_and_left() -> None:
    """From idle, and back to idle."""
    reached = {RouteState.IDLE}
    for _ in RouteState:
        reached |= {new for (old, _), new in TRANSITIONS.items() if old in reached}
    ending = {RouteState.IDLE}
    for _ in RouteState:
        ending |= {old for (old, _), new in TRANSITIONS.items() if new in ending}

    assert set(RouteState) == reached == ending


@pytest.mark.parametrize("state", sorted(CONNECTED, key=lambda one: one.value))
def test_no_attempt_begins_while_there_is_a_port(state: RouteState) -> None:
    """Two links of one route would number the same publishes."""
    with pytest.raises(InvariantBroken):
        after(state, RouteEvent.DIAL)


def test_operators_hear_of_four_states() -> None:
    """As docs/operations.md lists them."""
    assert {"idle", "connecting", "online", "unreachable"} == {one.told for one in RouteState}


def test_what_is_sent_to_the_own_zone_is_not_kept() -> None:
    """The zone itself acknowledges; a link's owner may be lost."""
    kept = []
    for is_local in (False, True):
        route = new_route()
        if is_local:
            route.serve()
        apply(route, RouteEvent.CONNECT)
        assert route.send(Publication(Message("z/x", b"", 1)))
        kept.append(len(route.queue.sent))

    assert [1, 0] == kept


def written(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are assigned or deleted, on another object than `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not is_own:
                yield node


def fields() -> set[str]:
    """The fields of a route and of its parts that are not private by name."""
    found: set[str] = set()
    for part in PARTS:
        for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(part) or part))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return {name for name in found if not name.startswith("_")}


def test_nobody_else_writes_a_field_of_a_route() -> None:
    """Each has one file that writes it; the others ask the route."""
    own = {Path(inspect.getfile(part)) for part in PARTS}
    names = {"is_clear", "claiming", "read", "queue", "interest", "claims"}
    strange = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path in ROOT.rglob("*.py")
        if path not in own
        for node in written(ast.parse(path.read_text()))
        if node.attr in names or (node.attr.startswith("_") and is_of_route(node.value))
    ]

    assert names <= fields()
    assert [] == strange


def test_nobody_else_looks_at_a_private_field_of_a_route() -> None:
    """They are named in their own file alone."""
    own = {Path(inspect.getfile(part)) for part in PARTS}
    strange = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path in ROOT.rglob("*.py")
        if path not in own
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and is_of_route(node.value)
    ]

    assert [] == strange


def is_of_route(value: ast.expr) -> bool:
    """True if the expression is named as a route, or as a part of one."""
    name = ast.unparse(value)
    return name in {"route", "below", "above", "self._route"} or name.endswith(
        (".queue", ".interest", ".claims")
    )
