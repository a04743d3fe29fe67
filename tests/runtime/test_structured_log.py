"""
Logs: one JSON object a line off a terminal, whoever speaks.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from txbroker.runtime import structured_log

ROOT = Path(__file__).resolve().parents[2]

PLUGIN = """
from twisted.application.service import ServiceMaker
noisy = ServiceMaker("noisy", "noisy_tap", "Everything that can write to stderr.", "noisy")
"""

NOISY = """
import asyncio, logging, sys, threading, warnings
from twisted.application.service import Service
from twisted.internet import defer
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python import usage
from txbroker.runtime import structured_log
import grpc

class Options(usage.Options):
    def postOptions(self):
        structured_log.configure("kitchen")
        self.parent["logger"] = structured_log.TWISTED_OBSERVER

async def fails():
    raise RuntimeError("task")

class Noisy(Service):
    def startService(self):
        from twisted.internet import reactor
        Logger("spoken").error("by {who}", who="twisted")
        logging.getLogger("spoken").warning("by %s", "logging")
        warnings.warn("by warnings", UserWarning)
        print("by print")
        print("by print to stderr", file=sys.stderr)
        structured_log.get_logger(zone="home").info("zone.fenced", epoch=3, data=b"raw")
        defer.fail(RuntimeError("deferred"))
        self.task = asyncio.ensure_future(fails())
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        try:
            grpc.server(None).add_insecure_port("999.999.999.999:1")
        except Exception:
            pass
        try:
            reactor.listenTCP(99999, Factory())
        except Exception:
            Logger("spoken").failure("listening")
        def stop():
            self.task = None
            reactor.stop()
        reactor.callLater(0.1, stop)

def makeService(options):
    return Noisy()
"""


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def configured(**options: Any) -> io.StringIO:
    stream = io.StringIO()
    structured_log.configure("kitchen", stream=stream, **options)
    return stream


def test_off_a_terminal_an_event_is_one_json_object() -> None:
    """With event, level, time in UTC and node, and the fields given."""
    stream = configured()

    structured_log.get_logger(zone="home/kitchen").warning("zone.fenced", epoch=3)

    (event,) = lines(stream)
    stamp = datetime.fromisoformat(event.pop("time"))
    assert stamp.tzinfo == UTC and abs((datetime.now(UTC) - stamp).total_seconds()) < 60
    assert {
        "event": "zone.fenced",
        "level": "warning",
        "node": "kitchen",
        "zone": "home/kitchen",
        "epoch": 3,
    } == event


def test_a_field_that_json_cannot_say_is_still_one_line() -> None:
    """Bytes, line ends and unpaired surrogates in fields do not break the line."""
    stream = configured()

    structured_log.get_logger().info("odd", raw=b"\x00", text="a\nb\ud800", thing=object())

    (event,) = lines(stream)
    assert (repr(b"\x00"), "a\nb\ud800") == (event["raw"], event["text"])


def test_an_exception_is_a_field() -> None:
    """`exception` within an except clause puts the traceback into the object."""
    stream = configured()

    try:
        raise ValueError("no such zone")
    except ValueError:
        structured_log.get_logger().exception("walk.failed")

    (event,) = lines(stream)
    assert ("error", "ValueError: no such zone") == (event["level"], event["error"])
    assert event["traceback"].startswith("Traceback (most recent call last)")


def test_a_logger_may_be_older_than_the_configuration() -> None:
    """Module-level loggers follow a later `configure`, also a second one."""
    logger = structured_log.get_logger()
    first, second = configured(), configured()

    logger.info("link.up")

    assert (0, 1) == (len(lines(first)), len(lines(second)))


def test_on_a_terminal_lines_are_for_people() -> None:
    """Not JSON, and tracebacks below their event."""
    stream = configured(as_json=False)

    try:
        raise ValueError("no such zone")
    except ValueError:
        structured_log.get_logger().exception("walk.failed", zone="home")

    first, *rest = stream.getvalue().splitlines()
    assert "walk.failed" in first and "zone=home" in first and not first.startswith("{")
    assert "Traceback (most recent call last):" in rest


def test_debug_is_left_out() -> None:
    """The level of a node's log is info."""
    stream = configured()

    structured_log.get_logger().debug("detail")

    assert "" == stream.getvalue()


def test_a_stream_that_breaks_does_not_hurt_the_caller() -> None:
    """The reader of a node's log may go away."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        structured_log.configure("kitchen", stream=stream)
        structured_log.get_logger().info("unheard" * 3000)
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One run of real twistd whose service lets everything speak that can."""
    folder = tmp_path_factory.mktemp("noisy")
    (folder / "twisted" / "plugins").mkdir(parents=True)
    (folder / "twisted" / "plugins" / "noisy_plugin.py").write_text(PLUGIN)
    (folder / "noisy_tap.py").write_text(NOISY)
    command = [str(Path(sys.executable).with_name("twistd"))]
    command += ["--pidfile=", "--reactor=asyncio", "-n", "noisy"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRPC_")}
    environment |= {"PYTHONPATH": f"{folder}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_under_twistd_every_line_is_json(spoken: subprocess.CompletedProcess[str]) -> None:
    """Twisted, logging, warnings, print, tasks, threads: all as objects, and all on stderr."""
    assert (0, "") == (spoken.returncode, spoken.stdout)
    for line in spoken.stderr.splitlines():
        assert {"event", "level", "time", "node"} <= json.loads(line).keys(), line


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        ("twisted.log", "info", "starting up"),
        ("twisted.log", "error", "by twisted"),
        ("python.log", "warning", "by logging"),
        ("twisted.log", "warning", "by warnings"),
        ("twisted.log", "info", "by print"),
        ("twisted.log", "error", "by print to stderr"),
        ("zone.fenced", "info", '"epoch": 3'),
        ("twisted.log", "critical", "RuntimeError: deferred"),
        ("python.log", "error", "RuntimeError: task"),
        ("python.uncaught", "critical", "ZeroDivisionError"),
        ("twisted.log", "critical", "Traceback"),
    ],
)
def test_under_twistd_nothing_gets_lost(
    spoken: subprocess.CompletedProcess[str], event: str, level: str, text: str
) -> None:
    """Each of them is there, at its level."""
    found = [
        line
        for line in spoken.stderr.splitlines()
        if (json.loads(line)["event"], json.loads(line)["level"]) == (event, level) and text in line
    ]
    assert found, spoken.stderr


def test_an_uncaught_exception_is_logged() -> None:
    """One at the top of the program too, and Ctrl-C stays silent about ours."""
    program = textwrap.dedent(
        """
        from txbroker.runtime import structured_log
        structured_log.configure("kitchen")
        raise RuntimeError("top")
        """
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60
    )

    event = json.loads(done.stderr)
    assert (1, "python.uncaught", "RuntimeError: top") == (
        done.returncode,
        event["event"],
        event["error"],
    )


# -- what others cause


def test_what_others_cause_is_told_a_few_times_and_counted() -> None:
    """Again after a while, with the number of those that were not told; kinds are apart."""
    now = [0.0]
    said: list[tuple[str, dict[str, Any]]] = []
    repeated = structured_log.RepeatedEvents(lambda: now[0])

    def tell(kind: str) -> bool:
        return repeated.log(lambda event, **f: said.append((event, f)), "odd", kind=kind, peer=1)

    assert [True] * structured_log.AT_ONCE + [False] * 500 == [
        tell("a") for _ in range(structured_log.AT_ONCE + 500)
    ]
    assert tell("b")
    now[0] += structured_log.TELL_AGAIN
    assert tell("a") and tell("b")
    assert [("odd", {"peer": 1, "untold": 500}), ("odd", {"peer": 1})] == said[-2:]


def test_kinds_of_what_others_cause_are_bounded() -> None:
    """A stranger invents as many as it likes: beyond a number they are one."""
    said: list[str] = []
    repeated = structured_log.RepeatedEvents(lambda: 0.0)
    for number in range(10 * structured_log.KINDS_REMEMBERED):
        repeated.log(lambda event, **_: said.append(event), "odd", kind=str(number))
    assert structured_log.KINDS_REMEMBERED + structured_log.AT_ONCE == len(said)


def test_a_field_is_cut_to_a_line() -> None:
    """Whatever others sent."""
    out = io.StringIO()
    structured_log.configure("kitchen", stream=out)
    structured_log.get_logger().warning("odd", reason="x" * 1_000_000)
    line = out.getvalue()
    assert len(line) < 2 * structured_log.LONGEST_FIELD
    assert "(1000000 in all)" in json.loads(line)["reason"]
