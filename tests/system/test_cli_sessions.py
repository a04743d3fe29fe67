"""`txbroker sessions`: who has a session at a node, and how one is ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

from tests.support import wire
from tests.support.nodes import free_port
from tests.support.rawclient import RawClient
from tests.support.rawclient5 import RawClient5

from .commands import as_json, failure, output, wait_until, wrong_usage
from .conftest import House


def sessions(house: House) -> dict[str, dict[str, object]]:
    """Those at the edge, by client id."""
    return {session["client_id"]: session for session in as_json("sessions", house.edge.grpc)}


def leave(house: House, name: str, *filters: str) -> None:
    """A session whose client is away."""
    with RawClient(house.edge.mqtt) as client:
        client.connect(name, clean=False)
        client.subscribe(*((topic_filter, 1) for topic_filter in filters))
        client.disconnect()


def test_what_is_listed(house: House) -> None:
    """Sessions of clients that are away, with what waits for them, and of those that are here."""
    leave(house, "away", "a/listed", "b/listed")
    with RawClient(house.edge.mqtt) as here, RawClient(house.root.mqtt) as pub:
        here.connect("here")
        here.subscribe(("a/listed", 1))
        pub.connect("elsewhere")
        for topic in ("a/listed", "b/listed", "a/listed"):
            pub.publish(topic, qos=1)
        here.take(2)
        pub.publish("a/listed", qos=1)
        here.take(1)

        wait_until(
            lambda: cast(float, sessions(house)["away"]["held_for"]) > 0, what="time to pass"
        )

        found = sessions(house)

        since = datetime.fromisoformat(str(found["away"].pop("away_since")))
        assert timedelta(0) <= datetime.now(UTC) - since < timedelta(seconds=60)
        common = {"client_id": "away", "clean": False, "connected": False}
        common |= {"mqtt": "3.1.1", "expiry": 7 * 86_400.0}
        held = {"held": found["away"].pop("held"), "held_for": found["away"].pop("held_for")}
        assert held["held"] > 100 and 0 < held["held_for"] < 60
        common |= {"held_known": True}
        assert common | {"subscriptions": 2, "waiting": 4, "dropped": 0} == found["away"]
        common = {"client_id": "here", "clean": True, "connected": True, "away_since": None}
        common |= {"held": 0, "held_for": 0.0, "held_known": True, "mqtt": "3.1.1", "expiry": 0.0}
        assert common | {"subscriptions": 1, "waiting": 0, "dropped": 0} == found["here"]
        assert "elsewhere" not in found
        table = [line.split() for line in output("sessions", house.edge.grpc).splitlines()]
        columns = "CLIENT MQTT STATE SINCE SUBSCRIPTIONS WAITING DROPPED HELD BYTES HELD FOR EXPIRY"
        assert columns.split() == table[0]
        assert ["away", "3.1.1", "away", f"{since:%Y-%m-%dT%H:%M}", "2", "4", "0"] == [
            cell[:16] for cell in table[1][:7]
        ]
        assert [str(held["held"]), "0:00"] == [table[1][7], table[1][8][:4]]
        assert ["7", "days,", "0:00:00"] == table[1][9:]
        assert ["here", "3.1.1", "connected", "1", "0", "0", "0"] == table[2][:7]
        assert ["ends", "at", "disconnect"] == table[2][7:]


def test_sessions_of_level_5_say_when_they_end(house: House) -> None:
    """The expiry that they asked for; without one the table and the log say what follows."""
    with RawClient5(house.edge.mqtt) as kept, RawClient5(house.edge.mqtt) as lost:
        kept.connect("kept", clean=False, expiry=90)
        mark = house.edge.mark()
        lost.connect("lost", clean=False)
        lost.ping()

        found = sessions(house)

        assert ("5.0", 90.0) == (found["kept"]["mqtt"], found["kept"]["expiry"])
        assert ("5.0", 0.0) == (found["lost"]["mqtt"], found["lost"]["expiry"])
        table = output("sessions", house.edge.grpc).splitlines()
        (kept_row,) = (row for row in table if row.startswith("kept "))
        (lost_row,) = (row for row in table if row.startswith("lost "))
        assert kept_row.endswith("  0:01:30")
        assert lost_row.endswith("  ends at disconnect: expiry 0")
    reason = "ends at disconnect: expiry 0"
    house.edge.wait_event("session.not_kept", client_id="lost", reason=reason, after=mark)
    assert not house.edge.has_event("session.not_kept", client_id="kept")


def test_a_session_is_ended(house: House) -> None:
    """With its subscriptions; the next connection finds nothing."""
    leave(house, "ended", "a/ended")

    assert "the session of client 'ended' is deleted\n" == output(
        "sessions", house.edge.grpc, "--delete", "ended"
    )

    assert "ended" not in sessions(house)
    assert failure("sessions", house.edge.grpc, "--delete", "ended").endswith(
        "no session of client 'ended' at this node"
    )
    with RawClient(house.edge.mqtt) as client:
        assert not client.connect("ended", clean=False)
    assert {"deleted": "ended"} == as_json("sessions", house.edge.grpc, "--delete", "ended")


def test_a_client_that_is_connected_is_disconnected(house: House) -> None:
    """Its will is sent, as it did not say DISCONNECT."""
    with RawClient(house.edge.mqtt) as client, RawClient(house.root.mqtt) as other:
        client.connect("here", clean=False, will=wire.Will(topic="b/will", qos=1))
        other.connect("other")
        other.subscribe(("b/will", 1))

        output("sessions", house.edge.grpc, "--delete", "here")

        client.expect_closed()
        other.expect_publish("b/will", b"gone")
        assert "here" not in sessions(house)


def test_mistakes(house: House) -> None:
    """One line each."""
    nobody = f"127.0.0.1:{free_port()}"
    assert f"{nobody} cannot be reached" in failure("sessions", nobody)
    assert f"{nobody} cannot be reached" in failure("sessions", nobody, "--delete", "x")
    assert "port 0" in wrong_usage("sessions", "127.0.0.1:0")
