"""Who holds the disk: a journal that outgrew its size names the sessions that are behind."""

from __future__ import annotations

from pathlib import Path

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.system.commands import as_json, output, wait_until


def test_sessions_that_hold_a_journal_are_named(tmp_path: Path) -> None:
    """In the log once, in `tree -v`, in `$SYS`; and nobody is once they have all."""
    retention = {"size": "1MiB"}
    root = NodeProcess(tmp_path, topology("root", zone="", retention=retention))
    edge = NodeProcess(tmp_path, topology("edge", parent=root.grpc))
    with root, edge:
        edge.wait_event("join.granted")
        for node, client_id in ((edge, "panel"), (root, "clock")):
            with RawClient(node.mqtt) as client:
                client.connect(client_id, clean=False)
                client.subscribe(("t/#", 1))
                client.disconnect()
            publish(root, 200)
        # Less than a segment: nothing has outgrown its size before both are known.
        wait_until(lambda: held(root) == ["panel", "clock"], what="both marks are told")
        publish(root, 800)

        event = root.wait_event("journal.held", timeout=40.0)
        assert ["edge panel", "root clock"] == event["holders"]
        (row,) = as_json("sessions", edge.grpc)
        (clock,) = as_json("sessions", root.grpc)
        assert row["held"] > clock["held"] > 4_000_000 and row["held_for"] > 0
        assert event["bytes"][0] >= event["bytes"][1] > 4 * 1024 * 1024
        assert ["panel", "clock"] == held(root)
        assert "HELD BY" in output("tree", root.grpc, "-v")
        with RawClient(root.mqtt, timeout=30) as reader:  # set every 10 s
            reader.connect("reader")
            reader.subscribe(("$SYS/txbroker/journal/held/by", 0))
            reader.take_until(lambda message: message.payload == b"edge/panel root/clock")

        edge.terminate()
        (zone,) = as_json("tree", root.grpc)
        assert zone["held"] == row["held"]
        before = panel(root)["silent"]
        wait_until(lambda: panel(root)["silent"] > before, what="it is known that it is away")
        edge.start()
        edge.wait_event("join.granted")

        for node, client_id, count in ((edge, "panel", 1200), (root, "clock", 1000)):
            with RawClient(node.mqtt) as client:
                assert client.connect(client_id, clean=False)
                for _ in range(count):
                    client.acknowledge(client.expect_publish())
                client.ping()
                client.disconnect()
        wait_until(lambda: not held(root), what="nobody holds it", timeout=40.0)
        assert 1 == sum(event["event"] == "journal.held" for event in root.events)


def panel(root: NodeProcess) -> dict[str, float]:
    """What the session at the edge holds back, as its owner shows it."""
    (row,) = as_json("tree", root.grpc, "-v")
    found: dict[str, float] = next(h for h in row["held_by"] if h["client_id"] == "panel")
    return found


def held(node: NodeProcess) -> list[str]:
    """The client ids that hold the node's journal, as `tree` shows them."""
    row = as_json("tree", node.grpc, "-v")[0]
    assert bool(row["held"]) == bool(row["held_by"])
    return [one["client_id"] for one in row["held_by"]]


def publish(node: NodeProcess, count: int) -> None:
    """Messages of 10 kB."""
    with RawClient(node.mqtt) as client:
        client.connect("publisher")
        for number in range(1, count + 1):
            client.send(wire.publish("t/x", bytes(10_000), qos=1, packet_id=number))
        for _ in range(count):
            client.expect(wire.PUBACK)


def test_sessions_say_that_an_owner_is_away(tmp_path: Path) -> None:
    """What the other zones hold is shown, those that hold most first."""
    root = NodeProcess(tmp_path, topology("root", zone=""))
    owner = NodeProcess(tmp_path, topology("owner", zone="t", parent=root.grpc))
    with root, owner:
        owner.wait_event("join.granted")
        for client_id, *filters in (("both", "t/#", "u/#"), ("few", "u/#"), ("none",)):
            with RawClient(root.mqtt) as client:
                client.connect(client_id, clean=False)
                if filters:
                    client.subscribe(*((topic_filter, 1) for topic_filter in filters))
                client.disconnect()
        with RawClient(root.mqtt) as client:
            client.connect("publisher")
            for topic in ("t/x", "u/x"):
                client.publish(topic, bytes(10_000), qos=1)
        wait_until(lambda: shown(root)["both"][0] > 20_000, what="both owners say what they keep")
        assert ["both", "few", "none"] == list(shown(root))
        assert (True, 0) == (shown(root)["few"][0] > 10_000, shown(root)["none"][0])

        owner.terminate()

        assert {"both": False, "few": True, "none": True} == {
            client_id: is_known for client_id, (_, is_known) in shown(root).items()
        }
        assert "+" in output("sessions", root.grpc).splitlines()[1]


def shown(node: NodeProcess) -> dict[str, tuple[int, bool]]:
    """What each session holds back, and whether that is known."""
    found = as_json("sessions", node.grpc)
    return {row["client_id"]: (row["held"], row["held_known"]) for row in found}
