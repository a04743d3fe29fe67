"""
Statements of the protocol rules that a `check` method makes.

A class that owns the state of a rule has a method `check`, one statement a line. A check changes
nothing and calls nobody: the models, the simulations and a node with `TXBROKER_CHECK=1` run it. A
statement is about what this node has decided itself, as far as that goes. A statement may rest on
the word of another node. Then the check that refuses a lie (rule 28) comes before.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol, runtime_checkable

from txbroker.model.errors import InvariantBroken


@runtime_checkable
class Checked(Protocol):
    """State that a rule of docs/protocol.md speaks about."""

    def check(self) -> None:
        """State each rule that this object keeps; raises `InvariantBroken`."""


def holds(owner: object, rule: int, words: str, is_so: object, *values: object) -> None:
    """Raise `InvariantBroken` unless the statement is true; `values` are shown with it."""
    if not is_so:
        raise InvariantBroken(owner, rule, words, values)


def ordered(owner: object, rule: int, words: str, *values: int) -> None:
    """Raise `InvariantBroken` if one of the values, named by `words`, is below the one before."""
    if any(after < before for before, after in pairwise(values)):
        raise InvariantBroken(owner, rule, words, values)
