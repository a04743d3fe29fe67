"""What a peer of the gRPC port may send as headers, however its bytes come."""

from __future__ import annotations

import random

import pytest

from tests.system.http2_attacks import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    SETTINGS,
    frame,
)
from txbroker.rpc.call_headers import LARGEST_BLOCK, MOST_FRAMES, PREFACE, CallHeaders

BEGIN = PREFACE + frame(SETTINGS)
SOME = bytes(LARGEST_BLOCK // 4)


def fault_of(*pieces: bytes) -> str:
    """What is said against these bytes, read one after the other."""
    headers = CallHeaders()
    return next(filter(None, map(headers.find_fault, pieces)), "")


def test_headers_without_end_are_refused() -> None:
    """Acknowledged or not."""
    for begin in (BEGIN, BEGIN + frame(SETTINGS, ACK)):
        some = [frame(CONTINUATION, 0, 1, SOME)] * 3
        assert not fault_of(begin, frame(HEADERS, 0, 1), *some)
        assert "headers" in fault_of(begin, frame(HEADERS, 0, 1), *some, *some)


def test_a_peer_that_acknowledges_nothing_has_one_bound_for_all_headers() -> None:
    """It may acknowledge late; from then on each call has the bound for itself."""
    calls = [frame(HEADERS, END_HEADERS, stream, SOME) for stream in (1, 3, 5, 7)]
    assert "headers" in fault_of(BEGIN, *calls)
    assert not fault_of(BEGIN, *calls[:3], frame(SETTINGS, ACK), *calls)


def test_only_headers_are_bounded() -> None:
    """Data has gRPC's own flow control."""
    assert not fault_of(BEGIN, *[frame(DATA, 0, 1, bytes(16_384))] * 100)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/1.1\r\n\r\n", b"\x16\x03\x01"]
)
def test_other_protocols_are_refused_at_once(said: bytes) -> None:
    """Without a word to gRPC."""
    assert "HTTP/2" in fault_of(said)


def test_a_flood_of_frames_is_refused() -> None:
    """A thread that reads for all peers would be busy with it alone."""
    ping = frame(PING, payload=bytes(8))
    assert not fault_of(BEGIN, ping * MOST_FRAMES, ping * MOST_FRAMES)
    assert "frames" in fault_of(BEGIN, ping * (MOST_FRAMES + 1))


def test_the_pieces_in_which_bytes_come_do_not_matter() -> None:
    """The same bytes are refused, and acknowledged, at the same frame."""
    source = random.Random(7)
    for ends in (True, False):
        last = frame(CONTINUATION, END_HEADERS if ends else 0, 1, SOME)
        some = frame(CONTINUATION, 0, 1, SOME) * 2
        block = frame(HEADERS, 0, 1, b"head") + some + last
        data = BEGIN + frame(SETTINGS, ACK) + block * 2
        headers, at, fault = CallHeaders(), 0, ""
        while at < len(data) and not fault:
            size = source.choice((1, 2, 3, 8, 9, 10, 5_000))
            fault = headers.find_fault(data[at : at + size])
            at += size
        assert headers.is_begun and headers.is_acknowledged
        assert ends == (not fault)
