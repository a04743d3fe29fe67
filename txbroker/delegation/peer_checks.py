"""
Checks all that another node sends before use: lengths, numbers, places in the tree.

A check refuses a lie whole (protocol rule 28). Three lies did harm before: one client id of 70,000
bytes stopped an owner's commits. A cut outside a child's zone took the zone of a living sibling. A
version of 2^64-1 ended all later joins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from txbroker.core import StoredRecords
from txbroker.delegation.delegation_table import DelegationState
from txbroker.delegation.zone_snapshot import MarkKey, ZoneSnapshot, mark_of_will, will_of_mark
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.share_name import shared_subscription
from txbroker.model.topics import (
    TopicError,
    is_within,
    may_match_within,
    validate_apex,
    validate_topic_filter,
    validate_topic_name,
)
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.fields import check_levels
from txbroker.mqtt.wire.property_list import are_plain
from txbroker.mqtt.wire.return_codes import ProtocolViolation

MOST_TEXT = 65_535
"""The most bytes of any text: the longest string of MQTT."""

MOST_NUMBER = 1 << 62
"""The bound of every number: a counter that starts below it has room for as many numbers again."""

NODES = 10_000
"""The most nodes of a tree."""

AHEAD = 1 << 32
"""The most that an epoch, a version or an incarnation may lie above the known one."""

ANY = frozenset(
    {
        "txbroker.v1.Question.Register.number",
        "txbroker.v1.Question.Register.sync",
        "txbroker.v1.SeekRequest.time",
    }
)
"""Fields without a bound: the names of a batch and of a sync, and a time that a reader seeks."""

_SHOWN = 60
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):[0-9]{1,5}")
_NUMBERS = frozenset(
    {
        FieldDescriptor.CPPTYPE_UINT64,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_INT32,
    }
)


def check(message: Message) -> None:
    """Check the texts and numbers of a message, at any depth; raises `PeerError`."""
    is_small = message.ByteSize() <= MOST_TEXT  # no text of a small message is too long
    for field, found in message.ListFields():
        values = found if field.is_repeated else (found,)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if not is_small:
                check_texts(field.full_name, map(str, (*found, *found.values())))
        elif field.message_type is not None:
            for value in values:
                check(value)
        elif field.type == field.TYPE_STRING:
            if not is_small:
                check_texts(field.full_name, values)
        elif field.cpp_type in _NUMBERS and field.full_name not in ANY:
            for value in values:
                if not 0 <= value < MOST_NUMBER:
                    raise PeerError(f"{field.full_name}: {value} is no number below 2^62")


def check_texts(what: str, texts: Iterable[str]) -> None:
    """Check some texts; raises `PeerError`."""
    for text in texts:
        if len(text) * 4 > MOST_TEXT and len(text.encode()) > MOST_TEXT:
            raise PeerError(f"{what}: a text of {len(text)} characters is too long")


def check_near(what: str, number: int, known: int) -> None:
    """Refuse a number that is too far above the known one; raises `PeerError`."""
    if number > known + AHEAD:
        raise PeerError(f"{what}: {number} is more than 2^32 above {known}, which is known")


def check_below(apex: str, cuts: Iterable[ZoneCut]) -> None:
    """Refuse cuts that do not lie strictly below the apex, and duplicates; raises `PeerError`."""
    known: set[str] = set()
    for cut in cuts:
        _check_cut(apex, cut)
        if cut.apex in known:
            raise PeerError(f"zone {_short(cut.apex)} is told twice")
        known.add(cut.apex)


def check_above(zone: str | None, cuts: Iterable[ZoneCut]) -> None:
    """
    Refuse a lineage that does not enclose `zone` (None: a pure edge's); raises `PeerError`.

    Each cut must lie within the cut before it, the root's first.
    """
    above: str | None = None
    for cut in cuts:
        if above is None:
            check_cut(cut)
        else:
            _check_cut(above, cut)
        if zone is not None:
            _check_inside(cut.apex, zone)
        above = cut.apex


def check_ended(zone: str | None, ended: Mapping[str, int]) -> None:
    """Refuse ends of the root zone, and of zones that do not enclose `zone`; raises `PeerError`."""
    for apex in ended:
        _check_inside("", apex)
        if zone is not None:
            _check_inside(apex, zone)


def check_epochs(told: Iterable[tuple[str, int]], known: Callable[[str], int]) -> None:
    """
    Refuse epochs of zones that are too far above the `known` ones; raises `PeerError`.

    A zone's next epoch is greater than any that a node reports, so one lie would use up all epochs.
    """
    for apex, epoch in told:
        check_near(f"epoch of zone {_short(apex)}", epoch, known(apex))


def epochs_of(subtree: DelegationState) -> list[tuple[str, int]]:
    """Return every zone and epoch that a subtree names."""
    cuts = [cut for entry in subtree.delegations for cut in (entry.cut, *entry.below)]
    return [*((cut.apex, cut.epoch) for cut in cuts), *subtree.epochs.items()]


def check_snapshot(apex: str, snapshot: ZoneSnapshot) -> None:
    """Check a part of a zone's state during a handover; raises `PeerError`."""
    check_topics(apex, (message.topic for message in snapshot.retained))
    check_topics(apex, snapshot.cleared)
    check_properties(message.properties for message in snapshot.retained)
    check_below(apex, snapshot.delegations)
    for interest in snapshot.interests:
        check_name(interest.edge)
        # an incarnation is at most a number of seconds since 1970
        check_near("incarnation", interest.incarnation, AHEAD)
        check_filters(interest.filters)
        for topic_filter in interest.filters:
            if not may_match_within(topic_filter, apex):
                raise PeerError(f"{_short(topic_filter)} matches nothing in zone {_short(apex)}")


def check_marks_above(apex: str, marks: Iterable[tuple[MarkKey, int]]) -> None:
    """
    Check the marks that a parent tells its child of zone `apex`; raises `PeerError`.

    The child alone knows what it accepted of streams to its own zone.
    """
    for key, _ in marks:
        if will_of_mark(key) is None and is_within(key[2], apex):
            raise PeerError(f"a parent has no mark of a stream to zone {_short(key[2])}")


def marks_within(apex: str, marks: Mapping[MarkKey, int]) -> dict[MarkKey, int]:
    """
    Return the marks that a node may report when the node gives its zone back.

    Marks of streams to that zone and to zones below it count. The node also has marks of other
    zones, which came with its zone. This node knows those marks better: the child never accepted a
    publish of such streams. A mark of a will counts for topics of the child's zone only.
    """
    found = {}
    for key, sequence in marks.items():
        will, zone = will_of_mark(key), key[2]
        if is_within(zone, apex):
            found[key] = sequence
        elif will is not None:
            found[mark_of_will(will, apex)] = sequence
    return found


def check_reached(transitions: Iterable[EpochTransition], own: LogPosition) -> None:
    """
    Refuse transitions that lead to or from a future position of the own zone; raises `PeerError`.

    A session would wait at such a position. `own` is the zone's last position.
    """
    for transition in transitions:
        for place in (transition.left, transition.entered):
            is_own = place.part.zone == own.part.zone
            if is_own and (place.part.epoch, place.offset) > (own.part.epoch, own.offset):
                zone = _short(own.part.zone)
                raise PeerError(f"a passage of {_short(transition.apex)} is ahead of zone {zone}")


def check_name(name: str) -> None:
    """Refuse a name that no topology file may give to a node; raises `PeerError`."""
    if not name or set(name) & set("/+# ") or not name.isprintable():
        raise PeerError(f"{_short(name)} is no node name; it has no spaces and no / + #")


def check_names(names: Collection[str]) -> None:
    """Refuse names as `check_name` does, and more of them than a tree has nodes."""
    if len(names) > NODES:
        raise PeerError(f"{len(names)} nodes are more than {NODES}")
    for name in names:
        check_name(name)


def check_address(address: str) -> None:
    """Refuse an address that no node can dial; raises `PeerError`."""
    if not _ADDRESS.fullmatch(address) or not address.isprintable():
        raise PeerError(f"{_short(address)} is no address; it has a host and a port")


def check_cut(cut: ZoneCut) -> None:
    """Refuse a zone without epoch, node or address; raises `PeerError`."""
    _check_apex(cut.apex)
    if not cut.epoch or not cut.node:
        raise PeerError(f"zone {_short(cut.apex)} is told without its epoch or its node")
    check_name(cut.node)
    check_address(cut.grpc)


def check_subtree(apex: str, subtree: DelegationState, known: Callable[[str], int]) -> None:
    """
    Check the delegations that move along with a zone; raises `PeerError`.

    `known`: see `check_epochs`.
    """
    check_below(apex, (entry.cut for entry in subtree.delegations))
    for entry in subtree.delegations:
        check_below(entry.cut.apex, entry.below)
    for cut in subtree.reclaimed:
        _check_cut(apex, cut)
    for below in subtree.epochs:
        _check_inside(apex, below)
    check_epochs(epochs_of(subtree), known)
    check_epochs(((cut.apex, cut.epoch) for cut in subtree.reclaimed), known)
    check_passages(apex, subtree.passages, known)


def check_passages(
    apex: str, transitions: Iterable[EpochTransition], known: Callable[[str], int]
) -> None:
    """
    Refuse transitions that do not touch the zone of this apex; raises `PeerError`.

    Both ends of a transition must lie in zones that enclose its topics. `known`: see
    `check_epochs`.
    """
    for transition in transitions:
        if not transition.affects(apex):
            raise PeerError(
                f"a passage of {_short(transition.apex)} is told with zone {_short(apex)}"
            )
        for place in (transition.left, transition.entered):
            if not is_within(transition.apex, place.part.zone):
                zone = _short(place.part.zone)
                raise PeerError(f"topics of {_short(transition.apex)} are no part of zone {zone}")
            check_epochs((place.part,), known)


def check_part(
    given: JournalId, part: JournalId, before: LogPosition | None, known: Callable[[str], int]
) -> None:
    """
    Refuse a part of a journal that cannot belong to a zone that is given back; raises `PeerError`.

    `given` is the zone's last part: the part must lie within its zone, and at no later epoch.
    `before` is the part's predecessor, which must be able to lead to the part. `known`: see
    `check_epochs`.
    """
    check_parts(given.zone, (part,))
    if part.zone == given.zone and part.epoch > given.epoch:
        raise PeerError(f"zone {_short(part.zone)} has had no epoch {part.epoch}")
    if before is not None:
        check_predecessor(part, before, known)


def check_predecessor(part: JournalId, before: LogPosition, known: Callable[[str], int]) -> None:
    """
    Refuse a predecessor that cannot have led to this part; raises `PeerError`.

    `known`: see `check_epochs`.
    """
    zone, epoch = before.part
    if not is_within(part.zone, zone) or (part.zone == zone and part.epoch <= epoch):
        raise PeerError(f"no part of zone {_short(zone)} leads to {_short(part.zone)}")
    if not epoch:
        raise PeerError(f"a part of zone {_short(zone)} has no epoch")
    check_epochs((before.part,), known)


def check_parts(apex: str, parts: Iterable[JournalId]) -> None:
    """Refuse journal parts of zones that are not at or below the apex; raises `PeerError`."""
    for zone, epoch in parts:
        if zone != apex:
            _check_inside(apex, zone)
        if not epoch:
            raise PeerError(f"a part of zone {_short(zone)} has no epoch")


def check_ended_parts(apex: str, parts: Iterable[JournalId], last: Callable[[str], int]) -> None:
    """
    Refuse parts of zones below the apex at future epochs; raises `PeerError`.

    Otherwise a reader would take the zone's future records for the records of such a part.
    """
    for zone, epoch in parts:
        if zone != apex and epoch > last(zone):
            raise PeerError(f"zone {_short(zone)} has had no epoch {epoch}")


def check_topics(apex: str, topics: Iterable[str]) -> None:
    """Refuse invalid topics, and topics outside the apex; raises `PeerError`."""
    for topic in topics:
        _check_name(topic, validate_topic_name)
        if not is_within(topic, apex):
            raise PeerError(f"topic {_short(topic)} is not of zone {_short(apex)}")


def check_properties(properties: Iterable[bytes]) -> None:
    """Refuse properties that no client may get; raises `PeerError`."""
    if not all(map(are_plain, properties)):
        raise PeerError("properties that no message has")


def check_records(apex: str, stored: StoredRecords) -> None:
    """Refuse records whose topics are not the zone's; raises `PeerError`."""
    if apex:
        is_lie = len(stored.find((f"{apex}/#",), 0, len(stored))) < len(stored)
    else:
        is_lie = bool(stored.find(("$SYS/#",), 0, 1))
    if is_lie:
        raise PeerError(f"records of topics that are not of zone {_short(apex)}")


def check_filters(filters: Iterable[str]) -> None:
    """Refuse invalid filters; raises `PeerError`."""
    for topic_filter in filters:
        _check_name(topic_filter, validate_topic_filter)


def check_groups(texts: Iterable[str]) -> None:
    """Refuse texts that are not the whole filter of a shared subscription; raises `PeerError`."""
    for text in texts:
        try:
            found = shared_subscription(text)
        except TopicError as error:
            raise PeerError(f"{_short(text)}: {error}") from None
        if found is None:
            raise PeerError(f"{_short(text)} is no shared subscription")
        _check_name(text, validate_topic_filter)
        _check_name(found[1], validate_topic_filter)


def _check_name(text: str, validate: Callable[[str], None]) -> None:
    try:
        validate(text)
        check_levels(text)
    except TopicError as error:
        raise PeerError(f"{_short(text)}: {error}") from None
    except ProtocolViolation as error:
        raise PeerError(f"{_short(text)}: {error} Raise limits.levels here.") from None


def _check_cut(apex: str, cut: ZoneCut) -> None:
    check_cut(cut)
    _check_strictly_below(apex, cut.apex)


def _check_inside(apex: str, below: str) -> None:
    _check_apex(below)
    _check_strictly_below(apex, below)


def _check_apex(apex: str) -> None:
    try:
        validate_apex(apex)
    except TopicError as error:
        raise PeerError(f"zone {_short(apex)}: {error}") from None


def _check_strictly_below(apex: str, below: str) -> None:
    if below == apex or not is_within(below, apex):
        raise PeerError(f"zone {_short(below)} does not lie below {_short(apex)}")


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
