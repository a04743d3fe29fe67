"""
What a walk through the code enters: files, classes, calls from file to file.

    with Walk() as walk:
        await publisher.publish("b/x", b"1", 1)
    walk.files

A walk counts calls of Python functions of txbroker/, by the event loop's thread and by threads that
started within `watched_threads`. Calls of a test's own clients are no part of a walk. Neither are
files that protoc wrote (`v1/`), nor methods that attrs wrote. Work that a node does each second is
none, either: how much of it a walk meets is a matter of the machine's speed.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

from txbroker.runtime.periodic import PeriodicTasks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = f"{ROOT / 'txbroker'}/"
TESTS = f"{ROOT / 'tests'}/"

_BEAT = PeriodicTasks._beat.__code__

HEAD = "walk | calls | functions | files | classes | calls across files | callbacks"


class Walk:
    """The calls of one walk, counted while the block runs."""

    _current: Walk | None = None

    def __init__(self) -> None:
        self.functions: Counter[CodeType] = Counter()
        self.entered: Counter[CodeType] = Counter()
        self.across: Counter[tuple[CodeType, CodeType]] = Counter()

    def __enter__(self) -> Self:
        Walk._current = self
        sys.setprofile(_profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        Walk._current = None

    def add(self, frame: FrameType) -> None:
        """Count the call that this frame is."""
        code, caller = frame.f_code, frame.f_back
        self.functions[code] += 1
        if caller is None or not caller.f_code.co_filename.startswith(PACKAGE):
            self.entered[code] += 1
        elif caller.f_code.co_filename != code.co_filename:
            self.across[caller.f_code, code] += 1

    @property
    def files(self) -> list[str]:
        """The files that the walk entered, below txbroker/."""
        return sorted({_file(code) for code in self.functions})

    @property
    def classes(self) -> set[tuple[str, str]]:
        """The classes whose methods ran, by file and name."""
        names = {(_file(code), _class(code)) for code in self.functions}
        return {(file, name) for file, name in names if name}

    @property
    def figures(self) -> tuple[int, ...]:
        """The columns of `HEAD`; callbacks are calls by the loop, a thread or another library."""
        return (
            self.functions.total(),
            len(self.functions),
            len(self.files),
            len(self.classes),
            self.across.total(),
            self.entered.total(),
        )

    def row(self, name: str) -> str:
        """The figures as a line of a table."""
        return f"{name} | " + " | ".join(f"{figure:,}" for figure in self.figures)

    def describe(self) -> str:
        """Each file with the functions that ran, and each call from file to file."""
        lines = []
        for file in self.files:
            here = sorted((c for c in self.functions if _file(c) == file), key=_line)
            lines.append(f"{file}: {', '.join(code.co_qualname for code in here)}")
        arrows = Counter[tuple[str, str]]()
        for (caller, code), count in self.across.items():
            arrows[_name(caller), _name(code)] += count
        lines += [f"{caller} > {code} x{count}" for (caller, code), count in sorted(arrows.items())]
        return "\n".join(lines)


@contextmanager
def watched_threads() -> Iterator[None]:
    """Let threads that start within the block take part in walks."""
    threading.setprofile(_profile)
    try:
        yield
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # as the manual says


def _profile(frame: FrameType, event: str, _argument: Any) -> None:
    walk = Walk._current
    if event == "call" and walk is not None and _counts(frame.f_code) and not _is_left_out(frame):
        walk.add(frame)


def _counts(code: CodeType) -> bool:
    file = code.co_filename
    return file.startswith(PACKAGE) and "/v1/" not in file and code.co_name != "<module>"


def _is_left_out(frame: FrameType) -> bool:
    """True if a test makes the call, or a node each second."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename.startswith(TESTS) or at.f_code is _BEAT:
            return True
        at = at.f_back
    return False


def _file(code: CodeType) -> str:
    return code.co_filename.removeprefix(PACKAGE)


def _class(code: CodeType) -> str:
    return code.co_qualname.split(".<locals>")[0].rpartition(".")[0]


def _line(code: CodeType) -> int:
    return code.co_firstlineno


def _name(code: CodeType) -> str:
    return f"{_file(code)}:{code.co_qualname}"
