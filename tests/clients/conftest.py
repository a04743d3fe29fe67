"""Three real nodes for stock clients, and mqtt.js."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology

MQTTJS = Path(__file__).with_name("mqttjs")


@pytest.fixture(scope="package")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    """A root and two children, each joined."""
    folder = tmp_path_factory.mktemp("clients")
    root = NodeProcess(folder, topology("root", zone=""))
    children = [
        NodeProcess(folder, topology(name, zone=name, parent=root.grpc)) for name in ("a", "b")
    ]
    with root, children[0], children[1]:
        for child in children:
            child.wait_event("join.granted")
        yield {"root": root, "a": children[0], "b": children[1]}


@pytest.fixture(scope="session")
def mqttjs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mqtt.js, installed by npm into a temporary folder."""
    folder = tmp_path_factory.mktemp("mqttjs")
    for file in MQTTJS.iterdir():
        shutil.copy(file, folder)
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
