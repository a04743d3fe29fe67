"""
Pages of the documentation, and running what they show.

- A fence marked `yaml` whose first line is `# NAME.yaml` is a topology file. All files of a page
  are good together, but for those marked `# NAME.yaml (wrong)`.
- A fence marked `console` is run. One bash for each page runs the lines that start with `$ `, in
  order, in a directory with the page's files. The lines below a command are what it prints, errors
  included. Runs of spaces count as one, `...` stands for any text, and a last line of it for any
  lines or none. One rate (`0.3`) is as good as another. Ports are replaced by free ones.
- After a command that starts nodes (`txbroker run ... &`) the test waits until they are ready and
  have joined, as a reader would. After `txbroker sub ... -i NAME ... &` it waits until NAME has
  subscribed.
- A command that only looks (`txbroker tree`, `resolve`, `sessions`) is run again until it prints
  what the page says. A node tells some of it once a second only.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import attrs
import yaml

from tests.support.nodes import free_port

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0  # seconds for a command
SPARK_TIMEOUT = 110.0  # for one that starts Spark

FENCE = re.compile(r"^```(\S*)$\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\S+\.yaml)( \(wrong\))?\n")
_PORT = re.compile(r"\b(?:tcp:|127\.0\.0\.1:)(\d{4,5})\b")
_SUBSCRIBES = re.compile(r"^txbroker sub 127\.0\.0\.1:(\d+) .*-i (\w+) .*&$")
_LOOKS = re.compile(r"txbroker (tree|resolve|sessions)\b(?!.*--delete)")
_RATE = re.compile(r"(?<![\d.])\d+\.\d(?![\d.])")


@attrs.frozen
class File:
    """A topology file that a page shows."""

    name: str
    is_wrong: bool
    text: str


@attrs.frozen
class Command:
    """A command of a page and what it is said to print."""

    line: str
    expected: str


def fences(page: Path, *kinds: str) -> list[str]:
    """The texts of a page's fences that are marked so."""
    return [text for kind, text in FENCE.findall(page.read_text()) if kind in kinds]


def files(page: Path) -> Iterator[File]:
    """The topology files of a page."""
    for text in fences(page, "yaml"):
        found = _FILE.match(text)
        assert found is not None, f"{page.name}: a yaml fence without its file name:\n{text}"
        yield File(found[1], found[2] is not None, text)


def commands(page: Path) -> Iterator[Command]:
    """The commands of a page, in order."""
    for text in fences(page, "console"):
        first, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
        assert not first, f"{page.name}: a console fence starts with a command:\n{text}"
        for part in parts:
            line, _, expected = part.partition("\n")
            yield Command(line, expected)


# -- running


class Shell:
    """A bash that runs one command after the other, with free ports for those of the page."""

    def __init__(self, page: Path, directory: Path) -> None:
        self._directory = directory
        self._ports = {
            port: str(free_port()) for port in sorted(set(_PORT.findall(page.read_text())))
        }
        for file in files(page):
            (directory / file.name).write_text(self._with_free_ports(file.text))
        bin_folder = str(Path(sys.executable).parent)
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=directory,
            env={**os.environ, "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._output: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_group(signal.SIGTERM)
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            pass
        self._end_group(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def run(self, line: str) -> str:
        """The output of the command, with the page's ports; waits for nodes that it starts."""
        logs = re.findall(r"^txbroker run (.*?)\s2>>?(\S+) &$", line)
        before = self._events(logs[0][1]) if logs else Counter[str]()
        done = f"--done-{next(self._numbers)}--"
        assert self._process.stdin is not None
        # The status of the command stays `$?` of the next one.
        self._process.stdin.write(
            f"{self._with_free_ports(line)}\n"
            f"{{ __status=$?; echo {done}; (exit $__status); }} 2>&1\n"
        )
        self._process.stdin.flush()
        printed = self._until(done, SPARK_TIMEOUT if "txbroker pipeline" in line else TIMEOUT)
        for names, log in logs:
            self._wait_for_nodes(names.split(), log, before)
        for port, name in _SUBSCRIBES.findall(line):
            self._wait_for_subscriber(port, name)
        for given, free in self._ports.items():
            printed = re.sub(rf"\b{free}\b", given, printed)
        return printed

    def _with_free_ports(self, text: str) -> str:
        return re.sub(r"\b\d{4,5}\b", lambda found: self._ports.get(found[0], found[0]), text)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._output.append(line)
                self._changed.notify_all()

    def _until(self, done: str, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        with self._changed:
            while f"{done}\n" not in self._output:
                left = deadline - time.monotonic()
                assert left > 0, f"no end within {timeout} s; so far:\n{''.join(self._output)}"
                self._changed.wait(left)
            end = self._output.index(f"{done}\n")
            printed, self._output[: end + 1] = self._output[:end], []
        return "".join(printed)

    def _events(self, log: str) -> Counter[str]:
        file = self._directory / log
        return Counter(
            re.findall(r'"event": "(node\.\w+|join\.granted)"', file.read_text())
            if file.exists()
            else ()
        )

    def _wait_for_nodes(self, names: list[str], log: str, before: Counter[str]) -> None:
        nodes = [
            node
            for name in names
            for node in yaml.safe_load_all((self._directory / name).read_text())
        ]
        children = sum("parent" in node for node in nodes)
        wanted = Counter({"node.ready": len(nodes), "join.granted": children})
        deadline = time.monotonic() + TIMEOUT
        while not wanted <= (found := self._events(log) - before):
            has_failed = found["node.refused"] or found["node.failed"]
            is_late = time.monotonic() > deadline
            assert not has_failed and not is_late, (self._directory / log).read_text()
            time.sleep(0.02)

    def _wait_for_subscriber(self, port: str, name: str) -> None:
        (node,) = (
            node
            for file in self._directory.glob("*.yaml")
            for node in yaml.safe_load_all(file.read_text())
            if any(f"tcp:{self._ports[port]}:" in listener for listener in node["mqtt"])
        )
        deadline = time.monotonic() + TIMEOUT
        while not any(
            row["client_id"] == name and row["subscriptions"]
            for row in json.loads(self.run(f"txbroker sessions {node['grpc']} --json"))
        ):
            assert time.monotonic() < deadline, f"{name} does not subscribe"

    def _end_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass


def is_as_said(expected: str, printed: str) -> bool:
    """Line by line; see the module's text for what may differ."""
    said, got = (
        "\n".join(" ".join(_RATE.sub("0.0", line).split()) for line in text.strip().splitlines())
        for text in (expected, printed)
    )
    whole = said.removesuffix("\n...")
    pattern = ".*".join(re.escape(part) for part in whole.split("..."))
    if whole != said:
        pattern += r"(\n.*)?"
    return re.fullmatch(pattern, got, re.DOTALL) is not None


def check_commands(page: Path, directory: Path) -> None:
    """Run every command of the page there, against real nodes; each prints what the page says."""
    with Shell(page, directory) as shell:
        for command in commands(page):
            printed = shell.run(command.line)
            deadline = time.monotonic() + TIMEOUT
            while (
                _LOOKS.match(command.line)
                and not is_as_said(command.expected, printed)
                and time.monotonic() < deadline
            ):
                printed = shell.run(command.line)
            logs = "\n".join(log.read_text()[-3000:] for log in directory.glob("*.log"))

            assert is_as_said(command.expected, printed), (
                f"$ {command.line}\nsaid:\n{command.expected}\nprinted:\n{printed}\n{logs}"
            )
