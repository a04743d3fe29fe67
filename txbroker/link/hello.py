"""
Judges the first frame of a link before the frame is complete.

A Hello has the whole interest of an edge and may be long. Its token comes first: only a valid token
lets the link buffer more than a few bytes.
"""

from __future__ import annotations

import attrs
from google.protobuf.message import DecodeError

from txbroker.link.frames import LinkError
from txbroker.v1.link_pb2 import Hello, LinkFrame

LARGEST_HEAD = 4096
"""Bytes of a first frame that the link buffers before a valid token."""

_LENGTHS = 4
"""The most bytes of a frame's length."""

_HELLO_TAG = 0x0A
_VARINT, _BYTES = 0, 2
_LAST_OF_HEAD = Hello.DESCRIPTOR.fields_by_name["incarnation"].number


@attrs.frozen(kw_only=True)
class HelloHead:
    """The sender of a Hello, with its token."""

    token: bytes
    edge: str
    incarnation: int


def head_of(data: bytes) -> HelloHead | None:
    """
    Return the head of the link's first Hello; None if more bytes are needed.

    Raises `LinkError` if no link can begin with these bytes.
    """
    if data and data[0]:
        raise LinkError(f"a link begins with packet type 0, not {data[0] >> 4}")
    length, start = _varint(data, 1, _LENGTHS)
    if start is None:
        return None
    body = data[start : start + length]
    is_whole = len(body) == length
    if not is_whole and len(data) < LARGEST_HEAD:
        return None
    try:
        hello = LinkFrame.FromString(body).hello if is_whole else _beginning(body)
    except (DecodeError, IndexError) as error:
        raise LinkError("the first frame of a link is Hello, its token first") from error
    return HelloHead(token=hello.token, edge=hello.edge, incarnation=hello.incarnation)


def _beginning(body: bytes) -> Hello:
    """Return the fields up to `incarnation`, which every node writes before the long ones."""
    if body[0] != _HELLO_TAG:
        raise DecodeError("no Hello")
    _, start = _varint(body, 1)
    at = stop = start or len(body)
    while at < len(body):
        tag, after = _varint(body, at)
        if after is None or tag >> 3 > _LAST_OF_HEAD:
            break
        size, at_value = _varint(body, after)
        if at_value is None or tag & 7 not in (_VARINT, _BYTES):
            break
        at = at_value + (size if tag & 7 == _BYTES else 0)
        if at <= len(body):
            stop = at
    return Hello.FromString(body[start:stop])


def _varint(data: bytes, at: int, most: int = 10) -> tuple[int, int | None]:
    """Return the number at a position and its end; None: more bytes are needed."""
    number = 0
    for index, byte in enumerate(data[at : at + most]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 128:
            return number, at + index + 1
    if len(data) >= at + most:
        raise LinkError("a length has too many bytes")
    return 0, None
