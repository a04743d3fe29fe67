"""`txbroker pipeline`: mistakes in one line, and a job that is told to end."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.nodes import ROOT, NodeProcess, topology
from txbroker import pipeline as package
from txbroker.cli import main
from txbroker.cli.progress import ProgressReporter
from txbroker.model.errors import PipelineError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("archive --archive x", "--root is missing; see --help"),
        ("archive --root h:1", "--archive is missing; see --help"),
        ("archive --root h --archive x", "HOST:PORT: 'h': "),
        ("archive --root h:1 --archive x --filter a/#/b", "FILTER: 'a/#/b': The wildcard #"),
        ("archive --root h:1 --archive x --keep 5", "TIME: '5': not a time; write a number"),
        ("archive --root h:1 --archive x --keep a/=5d", "ZONE: 'a/': An apex neither"),
        ("archive --root h:1 --archive x --keep-ledger 5", "TIME: '5': not a time; write a number"),
        (
            "archive --root h:1 --archive x --master lokal",
            "URL: 'lokal': no Spark master; local[N]",
        ),
        ("audit --json", "--root or --archive is missing; say where the messages are"),
        ("rollup --out x", "--archive or --root is missing; say what to roll up"),
        ("rollup --archive x", "--out is missing; see --help"),
        ("rollup --archive x --out y --publish", "--publish: --root is missing"),
        ("rollup --archive x --out y --from 2026-03-01", "TIME: '2026-03-01': write date, time"),
        ("replay --archive x", "--root is missing; say where to publish"),
        ("replay --archive x --root h:1 --speed 0", "N: '0': write how many times as fast"),
        ("replay --archive x --root h:1 --prefix a/+", "TOPIC: 'a/+': A topic name has no"),
    ],
)
def test_wrong_usage_is_one_line(arguments: str, said: str) -> None:
    """With status 2, before Spark is started."""
    done = CliRunner().invoke(main, ["pipeline", *arguments.split()])

    assert 2 == done.exit_code
    assert done.stderr.startswith(f"Error: {said}")
    assert 1 == len(done.stderr.splitlines())


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are there, and say how to get it."""
    monkeypatch.setattr(package, "EXTRA", ("pyspark", "no_such_module"))
    done = CliRunner().invoke(
        main, ["pipeline", "archive", "--root", "127.0.0.1:1", "--archive", "x"]
    )

    said = "Error: the pipeline needs no_such_module; run: pip install 'txbroker[pipeline]'\n"
    assert (1, said) == (done.exit_code, done.stderr)
    with pytest.raises(PipelineError, match="needs no_such_module"):
        package.archive  # noqa: B018
    with pytest.raises(AttributeError):
        package.no_such_job  # noqa: B018


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:7077"])
def test_without_a_spark_master(address: str) -> None:
    """In a moment, before there is any Spark."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    done = CliRunner().invoke(
        main,
        ["pipeline", "archive", *f"--root h:1 --archive x --master spark://{address}".split()],
    )

    assert 1 == done.exit_code
    assert 1 == len(done.stderr.splitlines())
    assert done.stderr.startswith(f"Error: spark://{address}: no Spark master answers (")


def test_without_a_spark_master_at_a_port_that_cannot_be() -> None:
    """Whoever listens at the port that its lower 16 bits make is not asked."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1] + 65_536}"
        done = CliRunner().invoke(
            main,
            ["pipeline", "archive", *f"--root h:1 --archive x --master spark://{address}".split()],
        )

    assert (1, f"Error: spark://{address}: no Spark master answers (ports end at 65535)") == (
        done.exit_code,
        done.stderr.partition(";")[0],
    )


def test_jobs_are_functions_of_the_package() -> None:
    """Whatever was imported before."""
    import txbroker.pipeline.jobs.archive
    import txbroker.pipeline.jobs.replay
    import txbroker.pipeline.jobs.rollup  # noqa: F401

    assert all(callable(getattr(package, name)) for name in package.__all__)


@pytest.mark.timeout(300)
def test_a_job_runs_on_until_it_is_told(tmp_path: Path) -> None:
    """It copies what comes, ends on SIGTERM with status 0, and its log is JSON but for Spark's."""
    (tmp_path / "node").mkdir()
    with NodeProcess(tmp_path / "node", topology("solo", zone="")) as node:
        host, port = node.mqtt
        arguments = ["pub", f"{host}:{port}", "-t", "home/a", "-m", "1", "-q", "1"]
        assert 0 == CliRunner().invoke(main, arguments).exit_code
        command = [sys.executable, "-m", "txbroker.cli", "pipeline", "archive", "--master"]
        command += ["local[1]", "--root", node.grpc, "--archive", "history"]
        job = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            manifest = tmp_path / "history" / "_manifest" / f"{1:020}.json"
            deadline = time.monotonic() + 150
            while not manifest.exists():
                assert job.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            job.send_signal(signal.SIGTERM)
            out, err = job.communicate(timeout=60)
        finally:
            job.kill()
            job.wait()

    assert (0, "1 messages archived in history\n") == (job.returncode, out), err
    events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert ("pipeline.batch", 1, "info", "pipeline archive") in {
        (e["event"], e.get("rows"), e["level"], e["node"]) for e in events
    }


def read_to_end(descriptor: int) -> str:
    """What a terminal has shown, as it is closed now."""
    shown = b""
    with suppress(OSError):
        while piece := os.read(descriptor, 65_536):
            shown += piece
    os.close(descriptor)
    return shown.decode()


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line with a count, no log."""
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with ProgressReporter("replay") as report:
            report("begin", {"messages": 1500})
            report("acknowledged", {"messages": 1234})
        terminal.flush()
    shown = read_to_end(leader)

    assert "replay" in shown
    assert "1,234 messages" in shown
    assert "{" not in shown
