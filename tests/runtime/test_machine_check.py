"""What a machine lacks is said in one line at the start; of some things a node makes no use."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.faults.disks import compiler
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from txbroker import tap
from txbroker.runtime import machine_check

SOURCE = Path(__file__).parents[1] / "support" / "lacking.c"


def test_this_machine_lacks_nothing() -> None:
    """Nor does 64-bit ARM, whose numbers are alike."""
    assert machine_check.missing() is None


@pytest.mark.parametrize(
    "what, told",
    [
        ({"platform": "darwin"}, "Linux"),
        ({"bits": 32}, "64-bit system"),
        ({"byte_order": "big"}, "64-bit ARM"),
    ],
)
def test_what_a_machine_lacks(
    what: dict[str, object],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Is one line, with the remedy, before the topology file is looked at."""
    line = machine_check.missing(**what)  # type: ignore[arg-type]
    assert line is not None and told in line
    monkeypatch.setattr(tap, "missing", lambda: line)
    options: Any = tap.Options()  # type: ignore[no-untyped-call]
    with pytest.raises(SystemExit) as ended:
        options.parseOptions(["--topology", str(tmp_path / "none.yaml")])
    assert 1 == ended.value.code
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded."""
    library = tmp_path_factory.mktemp("lacking") / "lacking.so"
    command = [str(compiler()), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
    return library


def lacking(tmp_path: Path, library: Path, *names: str, **more: str) -> NodeProcess:
    """A root whose system does not know these calls."""
    env = more | {
        "LD_PRELOAD": str(library),
        "LACKING": f",{','.join(names)},",
        "LACKING_FOLDER": str(tmp_path),
    }
    return NodeProcess(tmp_path, topology("solo", zone=""), env=env)


@pytest.mark.parametrize("name", ["flock", "fdatasync", "fsync"])
def test_what_a_file_system_lacks(tmp_path: Path, library: Path, name: str) -> None:
    """Is one line, with folder, call and remedy; nothing is taken before."""
    node = lacking(tmp_path, library, name).start(ready=False)
    assert 1 == node.wait(60.0), node.tail()
    (line,) = [event["reason"] for event in node.events if event["event"] == "node.refused"]
    for word in (str(node.data), f"({name})", "set `data` to a folder on a local disk"):
        assert word in line
    assert "Traceback" not in "".join(node.lines)


def test_a_state_in_doubt_ends_a_node(tmp_path: Path, library: Path) -> None:
    """
    The folder of a state that has its name already cannot be synced: the root ends, with a line,
    and does not deny in memory what its next start finds on the disk.
    """
    since = tmp_path / "since"
    root = lacking(tmp_path, library, "fsync", LACKING_SINCE=str(since))
    child = NodeProcess(tmp_path, topology("child", zone="child", parent=root.grpc))
    with root:
        with RawClient(root.mqtt) as client:  # logs have their files, and these their names
            client.connect("c", clean=False)
            client.publish("t", b"x", qos=1)
        since.touch()
        child.start()
        assert 1 == root.wait(60.0), root.tail()
        (line,) = [event["reason"] for event in root.events if event["event"] == "node.refused"]
        assert "state.json: not known whether it was written" in line
        assert "Traceback" not in "".join(root.lines)
        since.unlink()
        root.start()
        with child:
            child.wait_event("join.granted", zone="child")


def test_what_a_node_does_without(tmp_path: Path, library: Path) -> None:
    """Memory maps of its files, space taken ahead, writes past the cache: nothing is lost."""
    node = lacking(tmp_path, library, "mmap", "posix_fallocate", "pwritev2")
    with node:
        with RawClient(node.mqtt) as client:
            client.connect("c", clean=False)
            client.subscribe(("t", 2))
        with RawClient(node.mqtt) as client:
            client.connect("p")
            for qos in (1, 2):
                client.publish("t", b"x" * 100_000, qos=qos, retain=True)
        node.kill()
        node.start()
        with RawClient(node.mqtt) as client:
            assert client.connect("c", clean=False)
            assert [1, 2] == [message.qos for message in client.take(2)]
            client.ping()
