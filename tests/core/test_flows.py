"""Packet ids of a client's own publishes."""

from __future__ import annotations

from typing import Any

from tests.core.cores import a_client, answer, both, publish


@both
def test_answers_leave_in_the_order_of_the_run(core: Any) -> None:
    client = a_client(core)
    client.step(b"".join(publish(b"t", b"", qos, n) for n, qos in ((5, 1), (3, 2), (9, 1))))
    run = client.packet_reader.qos12

    assert (3, [3, 5, 9]) == (len(client.flows), sorted(client.flows.packet_ids()))
    assert (2, run.serial, False) == client.flows.get(3)
    assert [] == client.flows.acknowledge(run, client.packet_writer)

    assert answer(0x40, 5) + answer(0x50, 3) + answer(0x40, 9) == client.packet_writer.dequeue()
    assert (1, [3]) == (len(client.flows), client.flows.packet_ids())
    assert (2, run.serial, True) == client.flows.get(3)
    assert client.flows.release(3, client.packet_writer)
    assert client.flows.release(4, client.packet_writer)
    assert answer(0x70, 3) + answer(0x70, 4) == client.packet_writer.dequeue()
    assert (0, None) == (len(client.flows), client.flows.get(3))


@both
def test_what_a_run_has_no_longer_is_told(core: Any) -> None:
    client = a_client(core)
    client.step(publish(b"t", b"", 1, 1) + publish(b"t", b"", 1, 2) + publish(b"t", b"", 1, 3))
    run = client.packet_reader.qos12
    client.flows.hold(1)
    client.flows.acknowledge(run.select([1]), None)
    client.step(publish(b"t", b"", 1, 2))

    assert [1, 2] == client.flows.acknowledge(run, client.packet_writer)
    assert answer(0x40, 3) == client.packet_writer.dequeue()
    assert [] == client.flows.acknowledge(client.packet_reader.qos12, None)
    assert 0 == len(client.flows)


@both
def test_a_held_packet_id_is_free_only_when_that_is_said(core: Any) -> None:
    flows, packet_writer = core.Flows(), a_client(core).packet_writer
    flows.hold(7)

    assert not flows.open_flow(7, 1, 1)
    assert not flows.release(7, packet_writer)
    flows.free(7)
    flows.free(8)
    assert flows.open_flow(7, 1, 1)
    assert not flows.open_flow(7, 1, 1)
    flows.free(7)
    assert 1 == len(flows)
    flows.hold(7)
    flows.hold(7)
    assert (0, [], None, b"") == (
        len(flows),
        flows.packet_ids(),
        flows.get(7),
        packet_writer.dequeue(),
    )


@both
def test_all_packet_ids_may_be_in_use(core: Any) -> None:
    flows = core.Flows()

    for packet_id in range(1, 65_536):
        assert flows.open_flow(packet_id, 1 + packet_id % 2, packet_id)
    assert list(range(1, 65_536)) == sorted(flows.packet_ids())
    assert all(flows.get(n).serial == n for n in range(1, 65_536))
    assert not any(flows.open_flow(n, 1, 1) for n in range(1, 65_536))
    for packet_id in range(65_535, 0, -1):
        flows.hold(packet_id)
        flows.free(packet_id)
    assert 0 == len(flows)
