"""
docs/conformance.md is complete and true.
"""

from __future__ import annotations

import re
from collections import Counter

from .statements import STATEMENTS
from .table import DOCUMENT, render, tests

# How many statements appendix B has in each section.
_COUNTS = """
    1.5.3=3 2.2.2=2 2.3.1=7 3.1.0=2 3.1.2=24 3.1.3=11 3.1.4=5 3.2.0=1 3.2.2=6 3.3.1=12 3.3.2=3
    3.3.4=1 3.3.5=2 3.6.1=1 3.8.1=1 3.8.3=4 3.8.4=6 3.9.3=2 3.10.1=1 3.10.3=2 3.10.4=6 3.12.4=1
    3.14.1=1 3.14.4=3 4.1.0=2 4.3.1=1 4.3.2=2 4.3.3=2 4.4.0=1 4.5.0=2 4.6.0=6 4.7.1=3 4.7.2=1
    4.7.3=4 4.8.0=2 6.0.0=4 7.0.0=2 7.1.1=1 7.1.2=1
"""
SECTIONS = {section: int(n) for section, n in (pair.split("=") for pair in _COUNTS.split())}
ROW = re.compile(r"^\| (MQTT-\S+) \| (.+) \| (server|both|client|websocket) \| (.+) \|$", re.M)


def rows() -> dict[str, tuple[str, str, str]]:
    """The table as it stands in the file: id to statement, who, where."""
    found = ROW.findall(DOCUMENT.read_text())
    assert len({row[0] for row in found}) == len(found), "an id has two rows"
    return {number: (text, who, where) for number, text, who, where in found}


def test_list_of_statements_is_complete() -> None:
    """Each section's statements are numbered through from 1, as many as there are."""
    expected = {
        f"MQTT-{section}-{number}"
        for section, count in SECTIONS.items()
        for number in range(1, count + 1)
    }

    assert set(STATEMENTS) == expected


def test_table_has_every_statement() -> None:
    """No id is missing, none is made up."""
    assert set(rows()) == set(STATEMENTS)


def test_every_server_statement_names_a_test() -> None:
    """Except those that cannot apply, which say so."""
    for number, (_, who, where) in rows().items():
        if who in ("server", "both"):
            assert "::test_" in where or where.startswith("not applicable: "), number


def test_named_tests_exist_and_are_marked() -> None:
    """A test that the table names is there and names the statement itself."""
    there = tests()
    for number, (_, _, where) in rows().items():
        for name in re.findall(r"`([^`]+::[^`]+)`", where):
            assert number in there.get(name, []), f"{number}: {name}"


def test_marked_tests_are_in_the_table() -> None:
    """And every mark names a statement that exists."""
    table = rows()
    for name, numbers in tests().items():
        assert max(Counter(numbers).values(), default=1) == 1, f"{name} names one twice"
        for number in numbers:
            assert f"`{name}`" in table[number][2], f"{number}: {name}"


def test_table_is_current() -> None:
    """Written by `python -m tests.conformance.table` after the last change."""
    assert DOCUMENT.read_text() == render()
