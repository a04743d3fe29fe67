"""Every question and answer of the directory passes the wire unchanged."""

from __future__ import annotations

import typing
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txbroker.delegation.peer_checks import MOST_NUMBER, check
from txbroker.directory.members import Member
from txbroker.directory.requests import Register, Reply, Request
from txbroker.directory.rpc import directory_convert as wire
from txbroker.model.errors import PeerError
from txbroker.v1 import directory_pb2

REQUESTS = typing.get_args(Request)
REPLIES = typing.get_args(Reply)

text = st.text(max_size=10)
number = st.integers(0, 2**64 - 1)
small = st.integers(0, 65_535)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that stands in a request."""
    if kind in (str, bytes, bool, int):
        return {str: text, bytes: st.binary(max_size=10), bool: st.booleans(), int: number}[kind]
    if typing.get_origin(kind) is tuple:
        (inner, _) = typing.get_args(kind)
        return st.lists(small if inner is int else values(inner), max_size=3).map(tuple)
    if type(None) in typing.get_args(kind):
        (inner,) = [one for one in typing.get_args(kind) if one is not type(None)]
        return st.none() | values(inner)
    hints = typing.get_type_hints(kind)
    fields = {field.name: values(hints[field.name]) for field in attrs.fields(kind)}
    if "qos" in fields:
        fields["qos"] = st.integers(0, 2)
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_question_passes(kind: Any) -> None:
    """As it was, with who asks and who is meant."""

    @given(values(kind))
    def passes(value: Any) -> None:
        message = wire.question("a", "b", value)
        again = directory_pb2.Question.FromString(message.SerializeToString())

        assert ("a", "b") == (again.source, again.target)
        assert value == wire.request_of(again)

    passes()


def test_the_numbers_of_lists_and_batches_are_not_refused() -> None:
    """They begin with the life of a process, which is drawn."""
    batch = Register(
        view=b"", established=True, life=1, keeper_life=1, number=MOST_NUMBER, sync=MOST_NUMBER
    )
    check(wire.question("a", "b", batch))


@pytest.mark.parametrize("kind", REPLIES, ids=lambda kind: kind.__name__)
def test_an_answer_passes(kind: Any) -> None:
    """As it was, with who answers."""

    @given(values(kind))
    def passes(value: Any) -> None:
        message = wire.reply("b", value)
        again = directory_pb2.Reply.FromString(message.SerializeToString())

        assert again.node == "b"
        assert value == wire.answer_of(again)

    passes()


def test_no_answer_passes() -> None:
    """A node that is no member gets an answer without a kind."""
    assert wire.answer_of(wire.reply("b", None)) is None


def test_what_a_newer_node_asks_is_nothing() -> None:
    """Unknown kinds are left out by protobuf."""
    assert wire.request_of(directory_pb2.Question(source="a")) is None


def test_an_incomplete_part_is_refused() -> None:
    """A claim without its entry, say."""
    message = directory_pb2.Question(claim=directory_pb2.Question.Claim(view=b"v"))

    with pytest.raises(PeerError):
        wire.request_of(message)


@given(values(Member))
def test_a_member_passes_if_it_may_be_one(member: Member) -> None:
    """Names and addresses that no topology file may have are left out."""
    good = attrs.evolve(member, name="porch", grpc="127.0.0.1:7001", site="house")
    bad = attrs.evolve(good, name="po/rch"), attrs.evolve(good, grpc="nowhere")

    assert (good,) == wire.members_from_wire(wire.members_to_wire([good, *bad], complete=True))
