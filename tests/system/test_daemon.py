"""A node as a daemon of twistd, and where twistd's log options lead its log. Real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import syslog
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from twisted.python.logfile import LogFile
from twisted.scripts._twistd_unix import ServerOptions

from tests.support.nodes import NodeProcess, parse_address, topology
from tests.support.rawclient import RawClient
from txbroker.model.errors import TxbrokerError
from txbroker.node import log_options

from .commands import environment, wait_until

Event = dict[str, Any]


def launch(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Start the node of `folder` as a daemon: what the command says once the daemon runs."""
    twistd = str(Path(sys.executable).with_name("twistd"))
    return subprocess.run(
        [twistd, "--pidfile=pid", *options, "txbroker", "--topology", "solo.yaml"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextlib.contextmanager
def daemon(folder: Path, *options: str) -> Iterator[int]:
    """The process number of a daemon; at the end it is asked to end, and has ended."""
    (folder / "solo.yaml").write_text(yaml.safe_dump(topology("solo", zone="")))
    done = launch(folder, *options)
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
    pid_file = folder / "pid"
    wait_until(pid_file.exists, what="a pid file")
    number = int(pid_file.read_text())
    try:
        yield number
    finally:
        os.kill(number, signal.SIGTERM)
        wait_until(lambda: not pid_file.exists(), what="the daemon's end")


def events(log: Path) -> list[Event]:
    """What the log says: JSON objects, and nothing else."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def ready(log: Path) -> Event:
    """The event of a node that is ready."""

    def found() -> list[Event]:
        return [event for event in events(log) if event["event"] == "node.ready"]

    wait_until(found, what=f"node.ready in {log}")
    return found()[0]


@pytest.mark.parametrize(
    "options, name",
    [
        ((), "twistd.log"),
        (("--reactor=asyncio", "--logfile=its.log"), "its.log"),
    ],
)
def test_a_daemon_serves_and_logs(tmp_path: Path, options: tuple[str, ...], name: str) -> None:
    """To the file of the option, or to twistd's own; the file is for its user alone."""
    log = tmp_path / name
    with daemon(tmp_path, *options):
        with RawClient(parse_address(ready(log)["mqtt"])) as client:
            client.connect("c")
            client.ping()
        assert 0o600 == log.stat().st_mode & 0o777
    said = events(log)
    assert any("Server Shut Down" in event.get("message", "") for event in said)
    assert not any("traceback" in event for event in said)


def test_sigusr1_rotates(tmp_path: Path) -> None:
    """As it does for each daemon of twistd: what was said is beside it, what comes is in it."""
    log = tmp_path / "twistd.log"
    with daemon(tmp_path) as number:
        ready(log)
        os.kill(number, signal.SIGUSR1)
        wait_until((tmp_path / "twistd.log.1").exists, what="a rotated log")
        ready(tmp_path / "twistd.log.1")
    assert events(log) and not any(event["event"] == "node.ready" for event in events(log))


class FileNode(NodeProcess):
    """A node in the foreground whose log goes to a file."""

    def command(self) -> list[str]:
        twistd, *rest = super().command()
        return [twistd, "--logfile=its.log", *rest]


class TwistFileNode(NodeProcess):
    """The same under `python -m twisted`."""

    def command(self) -> list[str]:
        twist = [sys.executable, "-m", "twisted", "--log-file=its.log"]
        return [*twist, "txbroker", "--topology", str(self.file)]


@pytest.mark.parametrize("kind", [FileNode, TwistFileNode])
def test_the_log_of_a_node_in_the_foreground(tmp_path: Path, kind: type[NodeProcess]) -> None:
    """Goes to the file too, and nowhere else."""
    node = kind(tmp_path, topology("solo", zone=""))
    try:
        node.start(ready=False)
        ready(tmp_path / "its.log")
        node.terminate()
    finally:
        node.close()
    assert not node.lines and not node.stdout


@pytest.mark.parametrize(
    "option, told",
    [("--logfile=-", "use --syslog"), ("--logfile=none/its.log", "'none/its.log': cannot be")],
)
def test_a_choice_that_cannot_be(tmp_path: Path, option: str, told: str) -> None:
    """Is one line on stderr, status 1, and no daemon."""
    (tmp_path / "solo.yaml").write_text(yaml.safe_dump(topology("solo", zone="")))
    done = launch(tmp_path, option)
    (line,) = done.stderr.splitlines()
    assert (1, "") == (done.returncode, done.stdout) and told in json.loads(line)["reason"]
    assert not (tmp_path / "pid").exists()


def test_the_systems_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a line an event, under the prefix of the option."""
    said: list[tuple[Any, ...]] = []
    monkeypatch.setattr(syslog, "openlog", lambda *arguments: said.append(arguments))
    monkeypatch.setattr(syslog, "syslog", lambda *arguments: said.append(arguments))
    options: Any = ServerOptions()
    options["syslog"], options["prefix"] = True, "house"
    stream = log_options.chosen(options)
    assert stream is not None and not stream.isatty()
    stream.write('{"event": "x"}\n')
    assert ["house", syslog.LOG_INFO] == [arguments[0] for arguments in said]
    assert '{"event": "x"}' == said[1][1]


def test_a_rotation_that_found_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs the lines until there is one again, and nothing else."""
    options: Any = ServerOptions()
    options["logfile"] = str(tmp_path / "its.log")
    was = signal.getsignal(signal.SIGUSR1)
    try:
        file: Any = log_options.chosen(options)
    finally:
        signal.signal(signal.SIGUSR1, was)
    with monkeypatch.context() as none_left:

        def fail(_file: LogFile) -> None:
            raise OSError("no descriptor")

        none_left.setattr(LogFile, "_openFile", fail)
        with pytest.raises(OSError):
            file.rotate()
        with pytest.raises(OSError):
            file.write("lost\n")
    file.write("kept\n")
    assert "kept\n" == (tmp_path / "its.log").read_text()
    file.close()


def test_a_daemon_without_stdout() -> None:
    """Is refused before anything is opened."""
    options: Any = ServerOptions()
    options["logfile"] = "-"
    with pytest.raises(TxbrokerError, match="no stdout"):
        log_options.chosen(options)
