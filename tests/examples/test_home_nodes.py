"""
The six topology files, and their processes: with a stand-in for twistd that a test writes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import nodes
import pytest
import yaml
from nodes import NAMES, Home, NodeError, NodeFile, prepare

from txbroker.config import load_files

HERE = Path(__file__).resolve().parents[2] / "examples" / "home_topology"
READY = 'print(\'{"event": "node.ready"}\\n{"event": "join.granted"}\', flush=True)'
FAILED = 'print(\'{"event": "node.refused", "level": "error", "reason": "mqtt: port in use"}\')'


def documents(directory: Path = HERE) -> dict[str, dict[str, object]]:
    return {name: yaml.safe_load((directory / f"{name}.yaml").read_text()) for name in NAMES}


# the files


def test_the_tree_is_three_levels_deep_and_has_one_root() -> None:
    found = documents()
    by_address = {found[name]["grpc"]: name for name in NAMES}
    parents = {name: by_address.get(found[name].get("parent")) for name in NAMES}

    expected = {
        "house": None,
        "kitchen": "house",
        "living": "house",
        "upstairs": "house",
        "outside": "house",
        "cams": "outside",
    }

    assert parents == expected


def test_no_address_or_data_directory_is_used_twice() -> None:
    used = [
        value
        for document in documents().values()
        for value in (*document["mqtt"], document["grpc"], document["link"], document["data"])
    ]

    assert len(set(used)) == len(used) == 24


def test_only_loopback_is_opened() -> None:
    for document in documents().values():
        assert all(text.endswith(":interface=127.0.0.1") for text in document["mqtt"])
        assert all(document[key].startswith("127.0.0.1:") for key in ("grpc", "link"))


def test_the_files_are_valid_together(tmp_path: Path) -> None:
    for directory in (HERE, prepare(tmp_path, 21_000)[0].path.parent):
        loaded = load_files([directory / f"{name}.yaml" for name in NAMES])

        assert [node.node for node in loaded] == list(NAMES)


def test_a_run_uses_copies_with_the_same_content(tmp_path: Path) -> None:
    files = prepare(tmp_path)

    assert documents(tmp_path) == documents()
    assert [file.path.parent for file in files] == [tmp_path] * 6
    assert files[0].is_root
    assert not any(file.is_root for file in files[1:])


def test_all_ports_move_together(tmp_path: Path) -> None:
    files = prepare(tmp_path, 21_000)
    moved = documents(tmp_path)

    assert [file.mqtt for file in files] == [("127.0.0.1", 21_000 + n) for n in range(6)]
    assert [moved[name]["link"] for name in NAMES] == [f"127.0.0.1:{21_020 + n}" for n in range(6)]
    assert moved["living"]["parent"] == moved["house"]["grpc"] == "127.0.0.1:21010"
    assert moved["cams"]["parent"] == moved["outside"]["grpc"] == "127.0.0.1:21014"


# the processes


def run_instead(monkeypatch: pytest.MonkeyPatch, script: Callable[[NodeFile], str]) -> None:
    def line(file: NodeFile) -> list[str]:
        return [sys.executable, "-c", script(file)]

    monkeypatch.setattr(nodes, "launch_line", line)


def test_nodes_are_ready_and_then_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, lambda file: f"import time; {READY}; time.sleep(60)")
    with Home(prepare(tmp_path), tmp_path / "logs") as home:
        assert home.start(threading.Event())
        assert home.ended() == []

    assert [process.status for process in home.processes] == [-15] * 6


def test_a_node_that_does_not_start_is_named_in_one_line_and_the_others_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(file: NodeFile) -> str:
        if file.name == "living":
            return f"import sys; {FAILED}; print('bye'); sys.exit(1)"
        return f"import time; {READY}; time.sleep(60)"

    run_instead(monkeypatch, script)
    home = Home(prepare(tmp_path), tmp_path / "logs")
    with pytest.raises(NodeError) as caught, home:
        home.start(threading.Event())

    assert str(caught.value) == ("living did not start (status 1): mqtt: port in use")
    assert all(process.status is not None for process in home.processes)


def test_a_node_that_is_never_ready_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, lambda file: "import time; time.sleep(60)")
    monkeypatch.setattr(nodes, "READY_TIMEOUT", 0.5)
    with (
        pytest.raises(NodeError, match=r"^house is not ready after .*: it said nothing$"),
        Home(prepare(tmp_path), tmp_path / "logs") as home,
    ):
        home.start(threading.Event())


def test_a_node_that_does_not_listen_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    run_instead(monkeypatch, lambda file: f"{deaf}; {READY}; time.sleep(60)")
    monkeypatch.setattr(nodes, "STOP_TIMEOUT", 0.3)
    with Home(prepare(tmp_path), tmp_path / "logs") as home:
        assert home.start(threading.Event())
        begun = time.monotonic()

    assert time.monotonic() - begun < 50
    assert [process.status for process in home.processes] == [-9] * 6


def test_a_stop_during_the_start_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, lambda file: "import time; time.sleep(60)")
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with Home(prepare(tmp_path), tmp_path / "logs") as home:
        assert not home.start(stop)
