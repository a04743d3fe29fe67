"""The planted bugs fit the code as it is. That they are found takes minutes: see the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import conditions, history
from .mutants import Mutant, applies, copy, mutants

MUTANTS = mutants()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this repository."""
    return copy(tmp_path_factory.mktemp("mutants"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_patch_applies(mutant: Mutant, tree: Path) -> None:
    """A patch that the code has outgrown is to be planted anew."""
    assert "" == applies(mutant, tree, check=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_says_what_it_breaks(mutant: Mutant) -> None:
    """In words, and as rules of the checker."""
    assert history.__doc__ is not None
    assert mutant.text and mutant.breaks
    for rule in mutant.breaks:
        assert f"`{rule}`" in history.__doc__


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_that_a_check_finds_is_checked(mutant: Mutant) -> None:
    """Its seed says whether nodes check themselves."""
    seed = int(mutant.play[mutant.play.index("--seed") + 1])

    assert mutant.breaks != ("ended",) or conditions.draw(seed).is_checked
