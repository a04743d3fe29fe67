"""Conversations by the grammar of level 5: each packet is answered, each fault is told."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.harness import unique
from tests.support import wire5
from tests.support.rawclient import Address
from tests.support.rawclient5 import RawClient5
from tests.support.wire import DISCONNECT, PING, PINGRESP

from .grammar import CONNECT_ONLY, Sent, conversation, properties

AFTER_CLOSE = wire5.publish("y/after", b"after", qos=1, packet_id=1)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    connect=properties(CONNECT_ONLY),
    sent=conversation(),
    pieces=st.sampled_from([1, 7, 100_000]),
)
def test_conversation(
    solo: Address, connect: wire5.Properties, sent: list[Sent], pieces: int
) -> None:
    """
    Legal packets get their answers; a fault gets DISCONNECT with its reason, and ends it.

    An innocent client is served meanwhile, and hears nothing of what followed a fault.
    """
    with RawClient5(solo) as innocent, RawClient5(solo) as client:
        innocent.connect(unique("c"))
        innocent.subscribe(("y/#", 1))
        client.connect(unique("c"), properties=connect)
        fault = sent[-1].fault if sent else frozenset()
        data = b"".join(one.data for one in sent) + (AFTER_CLOSE if fault else PING)
        for start in range(0, len(data), pieces):
            client.send(data[start : start + pieces])
        wanted = Counter((one.answer, one.packet_id) for one in sent if one.answer)
        if not fault:
            wanted[PINGRESP, 0] += 1
        codes = {(one.answer, one.packet_id): one.codes for one in sent if one.answer}
        while wanted or fault:
            found = client.receive()
            if isinstance(found, wire5.Publish):
                continue
            if fault and found.kind == DISCONNECT:
                assert found.code in fault, f"{found}, expected {fault} for {sent[-1]}"
                break
            key = found.kind, found.packet_id
            assert wanted[key], f"nobody asked for {found}"
            wanted -= Counter([key])
            assert found.kind == PINGRESP or len(found.codes) == codes[key]
            assert all(code < 0x80 or code == 0x92 for code in found.codes), found
        if fault:
            client.expect_closed()
        innocent.publish("y/marker", b"marker", qos=1)
        innocent.acknowledge(innocent.expect_publish("y/marker", b"marker"))
