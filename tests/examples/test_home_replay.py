"""
The replay's clients and what they show, without a network: paho is replaced by a recorder.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from accounting import Count
from display import Display, print_reckoning
from nodes import prepare
from readings import Reading, encode
from replay import Publisher, ReplayError, Tally
from rich.console import Console

TOPIC = "home/living/temperature"
ZONES = ("", "home/kitchen", "home/living", "home/upstairs", "home/outside", "home/outside/cams")
DEADLINE = 10.0


def readings(count: int, topic: str = TOPIC) -> Iterator[Reading]:
    return (Reading(topic=topic, value=20 + n, time=f"#{n}") for n in range(count))


class Broker:
    """
    Stands where paho's client is: accepts at once, records what is published, and acknowledges
    when told to. With `eager` the acknowledgement comes before publish() has returned, as it may
    in life; with `ids` packet ids come from that list.
    """

    def __init__(self, *, eager: bool = False, ids: list[int] | None = None) -> None:
        self.published: list[tuple[int, bytes]] = []
        self.properties: list[Any] = []
        self.eager = eager
        self.ids = ids
        self.most_in_flight = 0
        self._in_flight: list[int] = []
        self._lock = threading.Lock()
        self.on_connect: Any = None
        self.on_publish: Any = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Broker:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None  # whatever else paho can do

    def loop_start(self) -> None:
        self.on_connect(self, None, None, SimpleNamespace(is_failure=False), None)

    def publish(self, topic: str, payload: bytes, qos: int, properties: Any) -> Any:
        assert qos == 1
        with self._lock:
            mid = self.ids.pop(0) if self.ids else len(self.published) + 1
            if mid in self._in_flight:
                return SimpleNamespace(mid=mid, rc=mqtt.MQTT_ERR_QUEUE_SIZE)
            self.published.append((mid, payload))
            self.properties.append(properties)
            self._in_flight.append(mid)
            self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        if self.eager:
            self.acknowledge()
        return SimpleNamespace(mid=mid, rc=mqtt.MQTT_ERR_SUCCESS)

    def acknowledge(self, count: int = 1) -> None:
        for _ in range(count):
            with self._lock:
                if not self._in_flight:
                    return
                mid = self._in_flight.pop(0)
            self.on_publish(self, None, mid, None, None)


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def started(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, **limits: int
) -> tuple[Publisher, Tally]:
    monkeypatch.setattr(mqtt, "Client", broker)
    tally = Tally()
    publisher = Publisher(tally, **limits)
    publisher.start(("127.0.0.1", 1))
    return publisher, tally


def until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# publishing


def test_an_acknowledgement_may_overtake_the_packet_id(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event
) -> None:
    publisher, tally = started(Broker(eager=True), monkeypatch)
    publisher.run(readings(300), 0, stop, DEADLINE)

    assert publisher.drain(stop) == 0
    assert tally.snapshot(ZONES).total == Count(published=300, lost=300)


@pytest.mark.parametrize("expiry", [0, 60])
def test_readings_expire_if_they_may(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event, expiry: int
) -> None:
    broker = Broker(eager=True)
    publisher, _ = started(broker, monkeypatch, expiry=expiry)
    publisher.run(readings(2), 0, stop, DEADLINE)

    found = [getattr(p, "MessageExpiryInterval", 0) for p in broker.properties]
    assert found == [expiry, expiry]


def test_the_window_is_never_exceeded(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event
) -> None:
    broker = Broker()
    publisher, _ = started(broker, monkeypatch, window=20)
    thread = threading.Thread(target=publisher.run, args=(readings(200), 0, stop, DEADLINE))
    thread.start()
    until(lambda: len(broker.published) == 20)
    while thread.is_alive():
        broker.acknowledge(7)
    broker.acknowledge(200)

    assert publisher.drain(stop) == 0
    assert (broker.most_in_flight, len(broker.published)) == (20, 200)


def test_a_packet_id_still_in_use_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event
) -> None:
    """
    After 65,535 publishes the ids begin again, while one to a zone that is away still waits.
    """
    broker = Broker(ids=[1, 2, 1, 2, 3])
    publisher, tally = started(broker, monkeypatch)
    publisher.run(readings(3), 0, stop, DEADLINE)
    broker.acknowledge(3)

    assert publisher.drain(stop) == 0
    assert [mid for mid, _ in broker.published] == [1, 2, 3]
    assert tally.lost() == [(TOPIC, 1), (TOPIC, 2), (TOPIC, 3)]


def test_publishing_pauses_when_arrivals_fall_behind(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event
) -> None:
    broker = Broker(eager=True)
    publisher, tally = started(broker, monkeypatch, max_lag=50)
    thread = threading.Thread(target=publisher.run, args=(readings(1000), 0, stop, DEADLINE))
    thread.start()
    until(lambda: tally.lag() > 50)
    arrived = 0
    while thread.is_alive() or arrived < 1000:
        for _, payload in broker.published[arrived:]:
            tally.received(TOPIC, payload)
            arrived += 1

        assert tally.lag() <= 50 + 100  # looked at every hundred readings

    publisher.drain(stop)

    assert tally.snapshot(ZONES).total == Count(published=1000, received=1000)


@pytest.mark.parametrize(
    ("broker", "said"),
    [(Broker(), "no acknowledgement"), (Broker(eager=True), "nothing arrived")],
    ids=["publisher", "subscriber"],
)
def test_a_replay_that_does_not_move_is_given_up(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event, broker: Broker, said: str
) -> None:
    publisher, _ = started(broker, monkeypatch, window=10, max_lag=50)

    with pytest.raises(ReplayError, match=said):
        publisher.run(readings(1000), 0, stop, 0.3)


def test_the_rate_is_kept(monkeypatch: pytest.MonkeyPatch, stop: threading.Event) -> None:
    publisher, _ = started(Broker(eager=True), monkeypatch)
    begun = time.monotonic()
    publisher.run(readings(21), 100, stop, DEADLINE)

    assert time.monotonic() - begun >= 0.2


def test_stop_ends_publishing_while_the_window_is_full(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event
) -> None:
    broker = Broker()
    publisher, _ = started(broker, monkeypatch, window=5)
    thread = threading.Thread(target=publisher.run, args=(readings(100), 0, stop, DEADLINE))
    thread.start()
    until(lambda: len(broker.published) == 5)
    stop.set()
    thread.join(DEADLINE)

    assert not thread.is_alive()
    assert publisher.drain(threading.Event(), patience=0.1) == 5


# counting


def test_messages_of_others_are_not_counted() -> None:
    """
    By form, by topic, or by a number that was not issued yet.
    """
    tally = Tally()
    tally.issue(TOPIC)
    mine = encode(Reading(topic=TOPIC, value=1.0, time=""), 1)
    tally.received(TOPIC, mine)
    tally.received(TOPIC, b"on")
    tally.received("home/kitchen/lamp", mine)
    tally.received(TOPIC, mine.replace(b":1,", b":999999999999,", 1))

    snapshot = tally.snapshot(ZONES)
    assert (snapshot.foreign, snapshot.total) == (3, Count(received=1))


def test_settling_waits_for_what_is_under_way_and_for_late_duplicates() -> None:
    tally = Tally()
    payload = encode(Reading(topic=TOPIC, value=1.0, time=""), tally.issue(TOPIC))
    tally.acknowledged(TOPIC, 1)
    late = [threading.Timer(delay, tally.received, (TOPIC, payload)) for delay in (0.2, 0.4)]
    for timer in late:
        timer.start()
    tally.settle(threading.Event(), patience=DEADLINE)

    assert tally.snapshot(ZONES).total == Count(published=1, received=1, duplicated=1)


def test_settling_gives_up_on_what_is_lost() -> None:
    tally = Tally()
    tally.acknowledged(TOPIC, tally.issue(TOPIC))
    tally.settle(threading.Event(), patience=0.4)

    assert tally.lost() == [(TOPIC, 1)]


# showing


def a_tally() -> Tally:
    tally = Tally()
    for topic in (TOPIC, "home/laundry/humidity", "home/outside/cams/gate/motion"):
        for value in (1.0, 20.456):
            seq = tally.issue(topic)
            tally.acknowledged(topic, seq)
            tally.received(topic, encode(Reading(topic=topic, value=value, time="noon"), seq))
    tally.acknowledged(TOPIC, tally.issue(TOPIC))
    return tally


def shown(tmp_path: Path, *, terminal: bool) -> str:
    tally, output = a_tally(), io.StringIO()
    display = Display(
        console=Console(file=output, force_terminal=terminal, width=100, height=40),
        files=prepare(tmp_path),
        look=lambda: tally.snapshot(ZONES),
        ended=lambda: ["upstairs"],
    )
    display.show()
    display.close()
    return output.getvalue()


def test_a_terminal_gets_a_table_of_the_latest_readings(tmp_path: Path) -> None:
    text = shown(tmp_path, terminal=True)

    for words in ("living", "home/living", "temperature 20.46", "home/outside/cams/gate"):
        assert words in text
    assert "temperature 1 " not in text


def test_a_pipe_gets_one_plain_line(tmp_path: Path) -> None:
    text = shown(tmp_path, terminal=False)

    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "published 7  received 6" in text
    assert "not running: upstairs" in text
    assert "home/laundry: humidity 20.46" in text


def test_the_reckoning_has_a_line_per_zone_and_one_for_all(tmp_path: Path) -> None:
    output = io.StringIO()
    print_reckoning(Console(file=output, width=60), prepare(tmp_path), a_tally().snapshot(ZONES))
    lines = [line.split() for line in output.getvalue().splitlines()]

    assert len(lines) == 8
    assert ["(root)", "house", "2", "2", "0", "0", "0"] in lines
    assert ["home/living", "living", "3", "2", "1", "0", "0"] in lines
    assert lines[-1] == ["all", "zones", "7", "6", "1", "0", "0"]
