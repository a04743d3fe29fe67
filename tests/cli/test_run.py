"""
`txbroker run`: the processes it starts, and how they end together.

The wrapper is real and so are its processes; what runs in them is a stand-in for a node, because
only their signals and exit codes matter here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from txbroker.cli.run import command
from txbroker.config import load_file

REPOSITORY = Path(__file__).resolve().parents[2]

# A node's name says how it behaves; it leaves its process id, and its last words, in the folder.
STAND_IN = """
import os, pathlib, signal, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def stop(*_):
    (folder / f"{name}.stopped").touch()
    os._exit(0)
signal.signal(signal.SIGHUP, lambda *_: (folder / f"{name}.reloaded").touch())
signal.signal(signal.SIGTERM, signal.SIG_IGN if name.startswith("deaf") else stop)
print("out", name, flush=True)
print("err", name, file=sys.stderr, flush=True)
(folder / f"{name}.new").write_text(str(os.getpid()))
os.rename(folder / f"{name}.new", folder / f"{name}.pid")
while not (folder / "go").exists():
    time.sleep(0.01)
if name.startswith("fails"):
    os._exit(7)
if name.startswith("retires"):
    os._exit(0)
if name.startswith("dies"):
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    time.sleep(60)
"""

WRAPPER = """
import sys
from txbroker.cli import main, run
run.command = lambda node: [sys.executable, sys.argv[1], node.node, sys.argv[2]]
run.GRACE = float(sys.argv[3])
main(["run", *sys.argv[4:]])
"""


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """True if the process runs; one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class Wrapper:
    """`txbroker run` of these nodes, ready when each has said its process id."""

    def __init__(self, folder: Path, *nodes: str, grace: float = 4.5, **popen: object) -> None:
        self.folder = folder
        self.nodes = nodes
        (folder / "stand_in.py").write_text(STAND_IN)
        for number, node in enumerate(nodes):
            (folder / f"{node}.yaml").write_text(
                f"node: {node}\nparent: 127.0.0.1:7000\nmqtt: [tcp:{1884 + number}]\n"
                f"grpc: 127.0.0.1:{7001 + number}\ndata: var/{node}\n"
            )
        files = [str(folder / f"{node}.yaml") for node in nodes]
        stand_in = [str(folder / "stand_in.py"), str(folder), str(grace)]
        (folder / "wrapper.py").write_text(WRAPPER)
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "wrapper.py"), *stand_in, *files],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            **popen,  # type: ignore[call-overload]
        )
        wait_until(lambda: self.process.poll() is not None or self._started())
        assert self.process.poll() is None, self.process.communicate()
        self.pids = [int((folder / f"{node}.pid").read_text()) for node in nodes]

    def _started(self) -> bool:
        return all((self.folder / f"{node}.pid").exists() for node in self.nodes)

    def go(self) -> None:
        """Let the nodes do what their names say."""
        (self.folder / "go").touch()

    def stopped(self) -> set[str]:
        """The nodes that got SIGTERM and ended of it."""
        return {path.stem for path in self.folder.glob("*.stopped")}

    def end(self) -> int:
        """The exit status, when all children are gone too."""
        status = self.process.wait(20)
        assert not any(alive(pid) for pid in self.pids)
        return status


@pytest.fixture
def wrappers() -> Iterator[list[Wrapper]]:
    """Wrappers in this list are killed after the test, and their nodes with them."""
    started: list[Wrapper] = []
    yield started
    for wrapper in started:
        wrapper.process.kill()
        wrapper.process.communicate()
        wait_until(lambda pids=wrapper.pids: not any(alive(pid) for pid in pids))  # type: ignore[misc]


@pytest.fixture
def start(tmp_path: Path, wrappers: list[Wrapper]) -> Callable[..., Wrapper]:
    """Start `txbroker run` of nodes with these names."""

    def starter(*nodes: str, **options: object) -> Wrapper:
        wrappers.append(Wrapper(tmp_path, *nodes, **options))  # type: ignore[arg-type]
        return wrappers[-1]

    return starter


def test_the_command_line_of_a_node(tmp_path: Path) -> None:
    """The documented one."""
    file = tmp_path / "edge.yaml"
    file.write_text(
        "node: edge\nparent: a:7001\nmqtt: [tcp:1884]\ngrpc: 127.0.0.1:7002\ndata: var/edge\n"
    )
    (config,) = load_file(file)

    twistd, *arguments = command(config)

    assert Path(twistd).name == "twistd"
    assert ["--pidfile=", "--reactor=asyncio", "-n", "txbroker"] == arguments[:4]
    assert ["--topology", str(file), "--node", "edge"] == arguments[4:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_with_status_0(start: Callable[..., Wrapper], number: int) -> None:
    """Each with SIGTERM; what they print passes through."""
    wrapper = start("one", "two")

    wrapper.process.send_signal(number)

    assert 0 == wrapper.end()
    assert {"one", "two"} == wrapper.stopped()
    out, err = wrapper.process.communicate()
    assert ["out one", "out two"] == sorted(out.splitlines())
    assert ["err one", "err two"] == sorted(err.splitlines())


def test_a_signal_counts_where_it_was_ignored(start: Callable[..., Wrapper]) -> None:
    """A shell starts its background jobs with SIGINT ignored."""
    wrapper = start("one", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))

    wrapper.process.send_signal(signal.SIGINT)

    assert 0 == wrapper.end()


def test_a_failure_stops_the_others(start: Callable[..., Wrapper]) -> None:
    """And its status is the command's."""
    wrapper = start("fails", "two", "three")

    wrapper.go()

    assert 7 == wrapper.end()
    assert {"two", "three"} == wrapper.stopped()


def test_a_node_that_is_killed_is_a_failure(start: Callable[..., Wrapper]) -> None:
    """The status is that of shells: 128 and the signal."""
    wrapper = start("dies", "two")

    wrapper.go()

    assert 128 + signal.SIGKILL == wrapper.end()
    assert {"two"} == wrapper.stopped()


def test_a_node_that_retires_leaves_the_others_running(start: Callable[..., Wrapper]) -> None:
    """Its status is 0, and so the rest goes on until asked to stop."""
    wrapper = start("retires", "two")

    wrapper.go()
    wait_until(lambda: not alive(wrapper.pids[0]))
    wait_until(lambda: not Path(f"/proc/{wrapper.pids[0]}").exists())  # the wrapper took note

    assert alive(wrapper.pids[1])
    wrapper.process.terminate()
    assert 0 == wrapper.end()


def test_all_retired_is_the_end(start: Callable[..., Wrapper]) -> None:
    """With status 0 and nothing left to wait for."""
    wrapper = start("retires1", "retires2")

    wrapper.go()

    assert 0 == wrapper.end()


def test_a_node_that_does_not_stop_is_killed(start: Callable[..., Wrapper]) -> None:
    """After the grace time, and the status tells."""
    wrapper = start("deaf", "two", grace=0.3)

    wrapper.process.terminate()

    assert 1 == wrapper.end()
    assert {"two"} == wrapper.stopped()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_nodes_do_not_outlive_a_wrapper_that_is_killed(start: Callable[..., Wrapper]) -> None:
    """Not even deaf ones."""
    wrapper = start("deaf", "two")

    wrapper.process.kill()

    wait_until(lambda: not any(alive(pid) for pid in wrapper.pids))


def test_bad_files_start_nothing(tmp_path: Path) -> None:
    """The mistakes are printed, and the status is 1."""
    file = tmp_path / "bad.yaml"
    file.write_text("node: a\n")

    done = subprocess.run(
        [sys.executable, "-m", "txbroker.cli", "run", str(file)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (1, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(f"{file}:1: mqtt: None: this key is missing")
    assert 1 == len(done.stderr.splitlines())


def test_sighup_goes_to_every_node(start: Callable[..., Wrapper], tmp_path: Path) -> None:
    """And ends nobody."""
    wrapper = start("a", "b")

    wrapper.process.send_signal(signal.SIGHUP)

    wait_until(lambda: {"a", "b"} == {path.stem for path in tmp_path.glob("*.reloaded")})
    wrapper.process.terminate()
    assert 0 == wrapper.end()
