"""What a member says of sessions is near what is known, and about what was asked."""

from __future__ import annotations

import pytest

from txbroker.delegation.peer_checks import AHEAD
from txbroker.directory import entry as entries
from txbroker.directory.member_checks import check_answer, check_request
from txbroker.directory.requests import (
    Answer,
    Answers,
    Claim,
    Claimed,
    Discard,
    Discarded,
    Entrust,
    Lookup,
    MovedTo,
    NotHeld,
    Offer,
    Register,
    Registered,
    Reply,
    Request,
    Supersede,
    Take,
    Taken,
)
from txbroker.model.errors import PeerError
from txbroker.mqtt.wire.packets import Will

FAR = 8 + AHEAD


def known(client_id: str) -> int:
    return 7 if client_id == "c" else 0


def entry(number: int = 7, *, persistent: bool = True, **fields: object) -> entries.DirectoryEntry:
    values = {"client_id": "c", "node": "n", "incarnation": number, "persistent": persistent}
    return entries.DirectoryEntry(**{**values, **fields})  # type: ignore[arg-type]


def register(
    *own: entries.DirectoryEntry, relayed: tuple[entries.DirectoryEntry, ...] = ()
) -> Register:
    return Register(view=b"", established=True, life=1, keeper_life=1, entries=own, relayed=relayed)


def with_will(topic: str, qos: int = 0) -> entries.DirectoryEntry:
    will = Will(topic=topic, payload=b"", qos=qos, retain=False)
    return entry(testament=entries.DirectoryWill(life=1, number=1, will=will))


def requests(number: int) -> list[Request]:
    one = entry(number)
    return [
        register(one),
        register(relayed=(one,)),
        register(entry(1, persistent=False, replaces=number)),
        Claim(view=b"", entry=one),
        Supersede(entries=(one,)),
        Take(client_id="c", incarnation=number),
        Take(client_id="c", incarnation=1, holds=number),
        Offer(client_id="c", incarnation=number),
        Entrust(client_id="c", incarnation=number),
        Discard(client_id="c", incarnation=number, through=1 << 53, age=1 << 53),
    ]


def answers(number: int) -> list[tuple[Request, Reply]]:
    one = entry(number)
    lookup = Lookup(view=b"", client_ids=("c",))
    take = Take(client_id="c", incarnation=7)
    return [
        (lookup, Answers(answers=(Answer(settled=True, entry=one),))),
        (lookup, Answers(answers=(Answer(settled=True, generation=number),))),
        (Claim(view=b"", entry=entry()), Claimed(conflict=one)),
        (register(), Registered(life=1, settled=True, conflicts=(one,))),
        (register(), Registered(life=1, settled=True, past=(one,))),
        (take, Taken(incarnation=number, token=b"", state=b"")),
        (take, MovedTo(node="n", incarnation=number)),
        (take, NotHeld(incarnation=number)),
        (Discard(client_id="c", incarnation=7), Discarded(incarnation=number)),
    ]


def test_numbers_are_near_those_that_are_known() -> None:
    """The next one has to be greater: far ahead there would be no room for it, for ever."""
    for near, far in zip(requests(FAR - 1), requests(FAR), strict=True):
        check_request(near, known)
        with pytest.raises(PeerError):
            check_request(far, known)
    for (asked, near_one), (_, far_one) in zip(answers(FAR - 1), answers(FAR), strict=True):
        check_answer(asked, near_one, known)
        with pytest.raises(PeerError):
            check_answer(asked, far_one, known)


@pytest.mark.parametrize(("topic", "qos"), [("", 0), ("a/#", 0), ("a\0", 0), ("a", 3)])
def test_a_will_is_one_that_a_client_may_have(topic: str, qos: int) -> None:
    """It would be published by this node, in a turn in which others' work is done."""
    check_request(register(with_will("a")), known)
    with pytest.raises(PeerError):
        check_request(register(with_will(topic, qos)), known)


def test_answers_are_to_what_was_asked() -> None:
    """Fewer would leave a client that connects without its CONNACK."""
    lookup = Lookup(view=b"", client_ids=("c", "d"))
    none = Answer(settled=True)
    check_answer(lookup, Answers(answers=(none, none)), known)
    for wrong in ((none,), (none, none, none), (none, Answer(settled=True, entry=entry()))):
        with pytest.raises(PeerError):
            check_answer(lookup, Answers(answers=wrong), known)


def test_an_entry_names_a_node() -> None:
    """Its name goes to terminals and logs."""
    with pytest.raises(PeerError):
        check_request(register(entry(node="n\n\u202e")), known)
