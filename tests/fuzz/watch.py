"""
What is being tried is on the disk before it is, what disagrees stays there, and it is looked for
what is left over.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz import sanitized
from tests.fuzz.build import BATCH, BUILD, CURRENT, SMALLEST, keep
from tests.fuzz.target import Disagreement, objects_left

EACH = 200
"""Inputs after which it is looked for what was left over."""


class Watch:
    """One process's inputs, as files of this suffix: see `tests.fuzz.replay`."""

    def __init__(self, suffix: str = "") -> None:
        self._suffix = suffix
        self._inputs: list[bytes] = []
        self._file = os.open(BUILD / (CURRENT + suffix), os.O_CREAT | os.O_RDWR)
        self._smallest: int | None = None
        self.tried = 0

    @contextmanager
    def trying(self, data: bytes) -> Iterator[None]:
        """
        This input is tried meanwhile: if the process dies, it is what is in the file.

        Where the cores disagree, the first such input is kept at once, as what looks for a smaller
        one may be ended, or not find any; and then the smallest.
        """
        self._begin(data)
        try:
            yield
        except Disagreement:
            self._keep(data)
            raise

    def _keep(self, data: bytes) -> None:
        if self._smallest is None:
            kept = keep(data, self._suffix)
            print(f"fuzz: the first input on which the cores disagree is in {kept}", flush=True)
        if self._smallest is None or len(data) < self._smallest:
            self._smallest = len(data)
            (BUILD / (SMALLEST + self._suffix)).write_bytes(data)

    def _begin(self, data: bytes) -> None:
        if len(self._inputs) == EACH:
            self._look_for_leaks()
        self.tried += 1
        self._inputs.append(data)
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))

    def _look_for_leaks(self) -> None:
        """End the process where something is left over; which input it was is found later."""
        if is_something_left():
            shutil.rmtree(BATCH, ignore_errors=True)
            BATCH.mkdir(parents=True)
            for number, data in enumerate(self._inputs):
                Path(BATCH, f"{number:04}{self._suffix}").write_bytes(data)
            os._exit(1)
        self._inputs.clear()


def is_something_left() -> bool:
    """True if objects or memory of the core are left, when nothing is in use; it is printed."""
    left = objects_left()
    if left:
        print(f"left over: {len(left)} objects: {left[:3]}", file=sys.stderr)
    return bool(left) or sanitized.has_leaks()
