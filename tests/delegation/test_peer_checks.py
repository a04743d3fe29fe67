"""What another node says is checked before it is used: each text and number of each message."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tests.support.recorders import cut
from txbroker.delegation.delegation_table import Delegation, DelegationState
from txbroker.delegation.peer_checks import (
    AHEAD,
    ANY,
    MOST_NUMBER,
    MOST_TEXT,
    check,
    check_below,
    check_filters,
    check_marks_above,
    check_near,
    check_part,
    check_passages,
    check_predecessor,
    check_reached,
    check_subtree,
    check_topics,
    marks_within,
)
from txbroker.delegation.zone_snapshot import mark_of_will
from txbroker.edge.sessions.session_format import check_move
from txbroker.model.epoch_transition import END, FOREVER, EpochTransition
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.rpc.link_convert import cut_to_wire
from txbroker.rpc.zone_convert import checked_snapshot
from txbroker.v1 import control_pb2, directory_pb2, link_pb2, state_pb2, types_pb2

FILES = (control_pb2, directory_pb2, link_pb2, types_pb2)
MESSAGES = sorted(
    f"{file.DESCRIPTOR.package}.{name}"
    for file in FILES
    for name in file.DESCRIPTOR.message_types_by_name
)


def made(name: str) -> Message:
    """An empty message of that type."""
    pool = control_pb2.DESCRIPTOR.pool
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


Path = tuple[FieldDescriptor, ...]


def paths(kind: Descriptor, depth: int = 0) -> list[Path]:
    """The way to each field of a message, and to those of the messages in it."""
    found: list[Path] = []
    for field in kind.fields:
        if field.message_type is None:
            found.append((field,))
        elif depth < 3 and not field.message_type.GetOptions().map_entry:
            found += [(field, *rest) for rest in paths(field.message_type, depth + 1)]
    return found


def with_value(name: str, path: Path, value: Any) -> Message:
    """A message with this value at the end of the path."""
    top = owner = made(name)
    for field in path[:-1]:
        inner = getattr(owner, field.name)
        owner = inner.add() if field.is_repeated else inner
        owner.SetInParent()
    last = path[-1]
    if last.is_repeated:
        getattr(owner, last.name).append(value)
    else:
        setattr(owner, last.name, value)
    return top


@pytest.mark.parametrize("name", MESSAGES)
def test_each_text_and_number_of_each_message_is_checked(name: str) -> None:
    """A new field is checked the day it is there."""
    for path in paths(made(name).DESCRIPTOR):
        field = path[-1]
        if field.type == FieldDescriptor.TYPE_STRING:
            fine, bad = "x" * MOST_TEXT, "ü" * (MOST_TEXT // 2 + 1)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
            fine, bad = MOST_NUMBER - 1, MOST_NUMBER
        elif field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
            fine, bad = 0, -1
        else:
            continue
        if field.full_name in ANY:
            check(with_value(name, path, MOST_NUMBER))
            continue
        check(with_value(name, path, fine))
        with pytest.raises(PeerError, match=f"{field.full_name}: "):
            check(with_value(name, path, bad))


def test_numbers_are_near_what_is_known() -> None:
    """One of 2^62 would lock others out for ever."""
    check_near("version", 7 + AHEAD, 7)
    with pytest.raises(PeerError, match="more than 2\\^32 above 7"):
        check_near("version", 8 + AHEAD, 7)


@pytest.mark.parametrize(
    "apex", ["home", "home2/x", "", "other", "homes", "home/+", "home/", "$SYS"]
)
def test_cuts_lie_strictly_below_their_zone(apex: str) -> None:
    """A living sibling's zone was delegated to a liar."""
    fine = cut("home/garage", 2)
    check_below("home", (fine,))
    with pytest.raises(PeerError):
        check_below("home", (fine, cut(apex, 2)))
    for subtree in (
        DelegationState(delegations=(Delegation(cut=fine, below=(cut(apex, 2),)),)),
        DelegationState(delegations=(Delegation(cut=cut(apex, 2)),)),
        DelegationState(reclaimed=(cut(apex, 2),)),
        DelegationState(epochs={apex: 3}),
    ):
        with pytest.raises(PeerError):
            check_subtree("home", subtree, known)


def test_a_cut_has_an_epoch_and_is_told_once() -> None:
    """Whatever follows from it would be wrong."""
    for cuts in ((cut("home/a", 0),), (cut("home/a", 1), cut("home/a", 2))):
        with pytest.raises(PeerError):
            check_below("home", cuts)


@pytest.mark.parametrize("topic", ["other/x", "", "home/#", "home/\0", "homes"])
def test_topics_are_of_the_zone(topic: str) -> None:
    """Retained messages of a zone that is given back."""
    check_topics("home", ("home", "home/x"))
    with pytest.raises(PeerError):
        check_topics("home", ("home/x", topic))


def test_topics_and_filters_have_few_levels() -> None:
    """`limits.levels`, wherever they come from; the line names the key."""
    deep = "/".join("z" * 201)
    check_topics("z", [deep[:-2]])
    check_filters([f"{deep[:-4]}/#"])
    with pytest.raises(PeerError, match=r"limits\.levels here"):
        check_topics("z", [deep])
    with pytest.raises(PeerError, match=r"limits\.levels here"):
        check_filters([f"{deep[:-2]}/#"])


def edge_interest(edge: str = "e", *filters: str) -> control_pb2.Snapshot:
    return control_pb2.Snapshot(
        interests=[control_pb2.EdgeInterest(edge=edge, incarnation=1, filters=filters)]
    )


@pytest.mark.parametrize(
    "part",
    [
        control_pb2.Snapshot(retained=[control_pb2.Retained(topic="/".join("z" * 201))]),
        control_pb2.Snapshot(retained=[control_pb2.Retained(topic="other")]),
        control_pb2.Snapshot(retained=[control_pb2.Retained(topic="z/a", properties=b"\x23\0\1")]),
        control_pb2.Snapshot(retained=[control_pb2.Retained(topic="other", cleared=True)]),
        control_pb2.Snapshot(delegations=[cut_to_wire(cut("other"))]),
        control_pb2.Snapshot(delegations=[cut_to_wire(cut("z"))]),
        edge_interest("", "z/#"),
        edge_interest("e\n", "z/#"),
        edge_interest("e", "/".join("+" * 201)),
        edge_interest("e", "z/#/z"),
    ],
)
def test_a_snapshot_is_checked(part: control_pb2.Snapshot) -> None:
    """On its way to a child and back."""
    checked_snapshot(edge_interest("e", "z/#"), "z")
    with pytest.raises(PeerError):
        checked_snapshot(part, "z")


@pytest.mark.parametrize("text", ["/".join("z" * 201), "a/#/b"])
def test_a_session_that_moves_is_checked(text: str) -> None:
    """Filters and topics."""
    session = state_pb2.StoredSession(subscriptions=[state_pb2.StoredSubscription(filter=text)])
    move = state_pb2.SessionMove(session=session.SerializeToString())
    with pytest.raises(PeerError):
        check_move(move.SerializeToString())
    window = state_pb2.StoredWindow(flows=[state_pb2.StoredFlow(topic=text)])
    move = state_pb2.SessionMove(window=window.SerializeToString())
    with pytest.raises(PeerError):
        check_move(move.SerializeToString())
    check_move(b"")


def test_properties_of_messages_that_move_are_checked() -> None:
    """A client would end its connection for a topic alias that it never offered."""
    for properties, is_fine in ((b"\x01\x01", True), (b"\x23\x00\x01", False)):
        flow = state_pb2.StoredFlow(topic="a", properties=properties)
        window = state_pb2.StoredWindow(flows=[flow]).SerializeToString()
        move = state_pb2.SessionMove(window=window).SerializeToString()
        with nullcontext() if is_fine else pytest.raises(PeerError, match="properties"):
            check_move(move)


def test_a_node_that_gives_its_zone_back_tells_of_its_own_streams() -> None:
    """A mark of the parent's zone had its publishes taken for repeats."""
    will = ("whose", 3, 7)
    marks = {("e", 1, zone, 5): 9 for zone in ("", "home", "home/x", "homes", "other")}
    marks |= {mark_of_will(will): 1, mark_of_will(will, "home/x"): 1, mark_of_will(will, "b"): 1}

    assert {
        ("e", 1, "home", 5): 9,
        ("e", 1, "home/x", 5): 9,
        mark_of_will(will, "home"): 1,
        mark_of_will(will, "home/x"): 1,
    } == marks_within("home", marks)


@pytest.mark.parametrize(
    ("epoch", "offset", "is_fine"),
    [(3, 7, True), (3, 8, False), (4, 0, False), (2, END, True), (1, FOREVER, True)],
)
def test_no_passage_leads_to_a_place_that_is_still_to_come(
    epoch: int, offset: int, is_fine: bool
) -> None:
    """Sessions would wait there for ever."""
    place, below = LogPosition(JournalId("", epoch), offset), LogPosition(JournalId("home", 1), 1)
    for left, entered in ((place, below), (below, place)):
        transition = EpochTransition(apex="home", left=left, entered=entered)
        if is_fine:
            check_reached([transition], LogPosition(JournalId("", 3), 7))
        else:
            with pytest.raises(PeerError, match="ahead of zone"):
                check_reached([transition], LogPosition(JournalId("", 3), 7))


def known(apex: str) -> int:
    """The epochs of zones that a node knows."""
    return {"": 3, "home": 7}.get(apex, 0)


def subtrees(epoch: int) -> list[DelegationState]:
    """What comes with the zone `home`, with the epoch wherever there is one."""
    one, other = LogPosition(JournalId("", 1), 9), LogPosition(JournalId("home", epoch), 0)
    below = cut("home/x", epoch=epoch)
    return [
        DelegationState(delegations=(Delegation(cut=below),)),
        DelegationState(
            delegations=(Delegation(cut=cut("home/x"), below=(cut("home/x/y", epoch),)),)
        ),
        DelegationState(epochs={"home/x": epoch}),
        DelegationState(reclaimed=(below,)),
        DelegationState(passages=(EpochTransition(apex="home", left=one, entered=other),)),
        DelegationState(passages=(EpochTransition(apex="home", left=other, entered=one),)),
    ]


@pytest.mark.parametrize("which", range(6))
def test_epochs_that_come_with_a_zone_are_near_the_known_ones(which: int) -> None:
    """The next epoch is above all that were told: there would be none."""
    check_subtree("home", subtrees(AHEAD)[which], known)
    subtree = subtrees(AHEAD + 8)[which]
    with pytest.raises(PeerError, match="which is known"):
        check_subtree("home", subtree, known)
    if subtree.passages:
        with pytest.raises(PeerError, match="which is known"):
            check_passages("home", subtree.passages, known)


@pytest.mark.parametrize(
    ("zone", "epoch", "is_fine"),
    [
        ("", 1, True),
        ("", AHEAD + 3, True),
        ("", AHEAD + 4, False),
        ("", 0, False),
        ("home", 6, True),
        ("home", 7, False),
        ("home/x", 1, False),
        ("other", 1, False),
    ],
)
def test_a_part_goes_on_from_one_that_can_have_led_to_it(
    zone: str, epoch: int, is_fine: bool
) -> None:
    """Of its zone or of one around it, at an epoch that there may have been."""
    part, before = JournalId("home", 7), LogPosition(JournalId(zone, epoch), 5)
    if is_fine:
        check_predecessor(part, before, known)
        check_part(part, part, before, known)
    else:
        with pytest.raises(PeerError):
            check_predecessor(part, before, known)
        with pytest.raises(PeerError):
            check_part(part, part, before, known)


@pytest.mark.parametrize(
    ("incarnation", "topic_filter"), [(2 * AHEAD + 1, "home/#"), (1, "other/#"), (1, "homes")]
)
def test_what_edges_want_of_a_zone_is_of_that_zone(incarnation: int, topic_filter: str) -> None:
    """And of a life that there may be."""
    for value, wanted in ((1, "+/x"), (incarnation, topic_filter)):
        told = control_pb2.EdgeInterest(edge="e", incarnation=value, filters=[wanted])
        snapshot = control_pb2.Snapshot(interests=[told])
        if wanted == "+/x":
            checked_snapshot(snapshot, "home")
        else:
            with pytest.raises(PeerError):
                checked_snapshot(snapshot, "home")


def test_a_parent_tells_no_mark_of_a_stream_to_the_childs_own_zone() -> None:
    """The child would take a publish for one that it has."""
    will = mark_of_will(("owner", 1, 2))
    check_marks_above("home/loft", [(("e", 1, "", 1), 5), (("e", 1, "home", 1), 5), (will, 1)])
    for zone in ("home/loft", "home/loft/shed"):
        with pytest.raises(PeerError):
            check_marks_above("home/loft", [(("e", 1, zone, 1), 5)])
