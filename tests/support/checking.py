"""
Objects of the pure core state their rules at the end of each test that has made them.

Of each kind the last one does: those before may be earlier lives of a process, with its tables.

    checked = checking(Members)         in a test module, for all of its tests
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest

from txbroker.model.invariant import Checked


def checking(*kinds: type[Any]) -> Any:
    """A fixture that each test of the module has: it checks what the test has made."""

    @pytest.fixture(autouse=True)
    def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        last: dict[type[Any], Checked] = {}
        for kind in kinds:
            monkeypatch.setattr(kind, "__init__", _noting(kind.__init__, kind, last))
        yield
        for one in last.values():
            one.check()

    return checked


def _noting(
    begin: Callable[..., None], kind: type[Any], last: dict[type[Any], Checked]
) -> Callable[..., None]:
    @wraps(begin)
    def begin_and_note(self: Any, *args: Any, **fields: Any) -> None:
        begin(self, *args, **fields)
        last[kind] = self

    return begin_and_note
