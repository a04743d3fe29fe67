"""
Requests and replies of the client directory, between the wire and plain values.

The messages of directory.proto have the names and the fields of the values. So one rule serves all
messages. A field is set from the attribute of its name, None is left out, tuples are repeated. A
test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from txbroker.config import parse_address
from txbroker.config.value_hooks import MAX_NAME_BYTES
from txbroker.directory import requests
from txbroker.directory.directory_ports import PendingPublishes, PublishOrigin
from txbroker.directory.entry import DirectoryEntry, DirectoryWill
from txbroker.directory.members import Member
from txbroker.directory.requests import Reply, Request
from txbroker.model.errors import PeerError
from txbroker.mqtt.wire.packets import Will
from txbroker.v1 import control_pb2, directory_pb2

_ELSEWHERE: dict[str, type[Any]] = {
    "DirectoryEntry": DirectoryEntry,
    "DirectoryWill": DirectoryWill,
    "Will": Will,
    "Member": Member,
    "PendingPublishes": PendingPublishes,
    "Mark": PublishOrigin,
}


def question(source: str, target: str, request: Request) -> directory_pb2.Question:
    """Encode a request of `source` to `target`."""
    message = directory_pb2.Question(source=source, target=target)
    _fill_kind(message, _REQUESTS, request)
    return message


def request_of(message: directory_pb2.Question) -> Request | None:
    """Decode a request; None: a kind that only a newer node knows."""
    kind = message.WhichOneof("kind")
    value: Request | None = None if kind is None else _value(getattr(message, kind))
    return value


def reply(node: str, answer: Reply | None) -> directory_pb2.Reply:
    """Encode a reply of `node`; None: an empty reply."""
    message = directory_pb2.Reply(node=node)
    if answer is not None:
        _fill_kind(message, _REPLIES, answer)
    return message


def answer_of(message: directory_pb2.Reply) -> Reply | None:
    """Decode a reply; None: an empty one, or a kind that only a newer node knows."""
    kind = message.WhichOneof("kind")
    value: Reply | None = None if kind is None else _value(getattr(message, kind))
    return value


def members_to_wire(members: Iterable[Member], *, complete: bool) -> control_pb2.Members:
    """Encode members for a join stream."""
    message = control_pb2.Members(complete=complete)
    for member in members:
        _fill(message.members.add(), member)
    return message


def members_from_wire(message: control_pb2.Members) -> tuple[Member, ...]:
    """Decode members, without unusable ones (see `usable`)."""
    return usable(_value(member) for member in message.members)


def usable(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return the members that a topology file could name; others are refused (protocol rule 28)."""
    return tuple(member for member in members if _is_usable(member))


def _is_usable(member: Member) -> bool:
    try:
        parse_address(member.grpc)
    except ValueError:
        return False
    return _is_name(member.name) and (not member.site or _is_name(member.site))


def _is_name(name: str) -> bool:
    is_short = 0 < len(name.encode()) <= MAX_NAME_BYTES
    return is_short and not set(name) & set("/+# ") and name.isprintable()


# -- the rule


def _class_of(name: str) -> type[Any]:
    found: type[Any] = _ELSEWHERE.get(name) or getattr(requests, name)
    return found


def _kinds(message: type[Message]) -> dict[type[Any], str]:
    """Return the field of each class that a message may carry."""
    fields = message.DESCRIPTOR.oneofs_by_name["kind"].fields
    return {
        _class_of(field.message_type.name): field.name for field in fields if field.message_type
    }


_REQUESTS = _kinds(directory_pb2.Question)
_REPLIES = _kinds(directory_pb2.Reply)


def _fill_kind(message: Message, kinds: dict[type[Any], str], value: Any) -> None:
    name = kinds.get(type(value))
    if name is None:
        raise PeerError(f"directory.proto has no kind for {type(value).__name__}")
    part = getattr(message, name)
    part.SetInParent()
    _fill(part, value)


def _fill(message: Message, value: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        found = getattr(value, field.name)
        if field.message_type is None:
            if field.is_repeated:
                getattr(message, field.name).extend(found)
            else:
                setattr(message, field.name, found)
        elif field.is_repeated:
            for one in found:
                _fill(getattr(message, field.name).add(), one)
        elif found is not None:
            part = getattr(message, field.name)
            part.SetInParent()
            _fill(part, found)


def _value(message: Message) -> Any:
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        found = getattr(message, field.name)
        if field.message_type is None:
            fields[field.name] = tuple(found) if field.is_repeated else found
        elif field.is_repeated:
            fields[field.name] = tuple(_value(one) for one in found)
        elif message.HasField(field.name):
            fields[field.name] = _value(found)
    try:
        return _class_of(message.DESCRIPTOR.name)(**fields)
    except TypeError as error:  # a required field is missing
        raise PeerError(f"an incomplete {message.DESCRIPTOR.name}") from error
