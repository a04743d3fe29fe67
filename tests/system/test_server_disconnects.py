"""Why a node ends the connection of a client of MQTT 5.0, as the client is told (section 3.14)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import PAYLOAD_FORMAT, SERVER_REFERENCE

from .commands import output

TEXT = [(PAYLOAD_FORMAT, 1)]


def test_clients_are_told_why_they_are_closed(tmp_path: Path) -> None:
    """Silence, another connection with the id, an operator, a payload that lies, the node's end."""
    with (
        NodeProcess(tmp_path, topology("solo", zone="", check_utf8=True)) as node,
        ExitStack() as stack,
    ):

        def client(client_id: str, **options: object) -> RawClient5:
            made = stack.enter_context(RawClient5(node.mqtt))
            made.connect(client_id, **options)
            return made

        silent = client("silent", keep_alive=1)
        earlier, _ = client("same"), client("same")
        earlier.expect_disconnect(0x8E)
        unwanted = client("unwanted", expiry=600)
        output("sessions", node.grpc, "--delete", "unwanted")
        unwanted.expect_disconnect(0x98)
        liar = client("liar")
        for qos in (1, 2):
            answer = liar.publish("t", b"\xff", qos=qos, properties=TEXT)
            assert answer is not None and answer.code == 0x99
        liar.publish("t", "ä".encode(), qos=0, properties=TEXT)
        liar.publish("t", b"\xff", qos=0, properties=TEXT)
        liar.expect_disconnect(0x99)
        silent.expect_disconnect(0x8D)
        last = client("last")
        node.terminate()
        last.expect_disconnect(0x8B)


def test_clients_of_a_node_that_retires_are_sent_to_its_heir(tmp_path: Path) -> None:
    """Their sessions are there, from the DISCONNECT on; whether the node had a zone or not."""
    with NodeProcess(tmp_path, topology("root", zone="")) as root:
        for name, keys in (("a", {"zone": "a"}), ("edge", {})):
            document = topology(name, parent=root.grpc, **keys)
            with NodeProcess(tmp_path, document) as leaving, RawClient5(leaving.mqtt) as client:
                leaving.wait_event("join.granted", 30.0)
                client.connect("c", expiry=600)
                client.subscribe(("news/#", 1))
                output("retire", leaving.grpc)
                told = client.expect_disconnect(0x9C)
                host, port = root.mqtt
                assert told[SERVER_REFERENCE] == f"{host}:{port}"
                with RawClient5(root.mqtt) as again:
                    again.connect("c", clean=False, expiry=600)
                    assert again.connack.present
                    again.publish("news/today", b"1", qos=1)
                    again.take(1)
                    again.disconnect()
                with RawClient5(root.mqtt) as last:
                    last.connect("c")
