"""
docs/conformance.md is complete and true.
"""

from __future__ import annotations

import re
from collections import Counter

from .level5_statements import LEVEL5_STATEMENTS
from .statements import STATEMENTS
from .table import DOCUMENT, LEVEL5_TITLE, NOT_COVERED, level5_tests, render, tests

# How many statements appendix B has in each section.
_COUNTS = """
    1.5.3=3 2.2.2=2 2.3.1=7 3.1.0=2 3.1.2=24 3.1.3=11 3.1.4=5 3.2.0=1 3.2.2=6 3.3.1=12 3.3.2=3
    3.3.4=1 3.3.5=2 3.6.1=1 3.8.1=1 3.8.3=4 3.8.4=6 3.9.3=2 3.10.1=1 3.10.3=2 3.10.4=6 3.12.4=1
    3.14.1=1 3.14.4=3 4.1.0=2 4.3.1=1 4.3.2=2 4.3.3=2 4.4.0=1 4.5.0=2 4.6.0=6 4.7.1=3 4.7.2=1
    4.7.3=4 4.8.0=2 6.0.0=4 7.0.0=2 7.1.1=1 7.1.2=1
"""
_LEVEL5_COUNTS = """
    1.5.4=3 1.5.5=1 1.5.7=1 2.1.3=1 2.2.1=6 2.2.2=1 3.1.0=2 3.1.2=30 3.1.3=12 3.1.4=6 3.2.0=2
    3.2.2=22 3.3.1=13 3.3.2=20 3.3.4=10 3.4.2=3 3.5.2=3 3.6.1=1 3.6.2=3 3.7.2=3 3.8.1=1 3.8.3=5
    3.8.4=8 3.9.2=2 3.9.3=2 3.10.1=1 3.10.3=2 3.10.4=6 3.11.2=2 3.11.3=2 3.12.4=1 3.14.0=1
    3.14.1=1 3.14.2=4 3.14.4=3 3.15.1=1 3.15.2=3 4.1.0=2 4.2.0=1 4.3.1=1 4.3.2=5 4.3.3=13 4.4.0=2
    4.5.0=2 4.6.0=6 4.7.0=1 4.7.1=2 4.7.2=1 4.7.3=4 4.8.2=6 4.9.0=3 4.12.0=7 4.12.1=2 4.13.1=1
    4.13.2=1 6.0.0=4
"""
ROW = re.compile(r"^\| (MQTT-\S+) \| (.+) \| (server|both|client|websocket) \| (.+) \|$", re.M)


def numbered(counts: str) -> set[str]:
    """The identifiers of sections with so many statements each, numbered through from 1."""
    sections = (pair.split("=") for pair in counts.split())
    return {
        f"MQTT-{section}-{number}"
        for section, count in sections
        for number in range(1, int(count) + 1)
    }


def rows(part: int = 0) -> dict[str, tuple[str, str, str]]:
    """The tables as they stand in a part of the file: id to statement, who, where."""
    found = ROW.findall(DOCUMENT.read_text().split(LEVEL5_TITLE)[part])
    assert len({row[0] for row in found}) == len(found), "an id has two rows"
    return {number: (text, who, where) for number, text, who, where in found}


def test_list_of_statements_is_complete() -> None:
    """Each section's statements are numbered through from 1, as many as there are."""
    assert numbered(_COUNTS) == set(STATEMENTS)


def test_level_5_list_of_statements_is_complete() -> None:
    """Appendix B has 251; section 2.2.1 has no first one."""
    expected = numbered(_LEVEL5_COUNTS) - {"MQTT-2.2.1-1"}

    assert expected == set(LEVEL5_STATEMENTS)
    assert 251 == len(expected)


def test_level_5_table_is_true() -> None:
    """It has every statement; tests are there and marked; what no test shows says so."""
    table, there = rows(1), level5_tests()
    for number, (_, who, where) in table.items():
        named = re.findall(r"`([^`]+::[^`]+)`", where)
        assert all(number in there[name] for name in named), number
        if not named and who in ("server", "both"):
            assert where == (LEVEL5_STATEMENTS[number].remark or NOT_COVERED), number
    for name, numbers in there.items():
        assert len(set(numbers)) == len(numbers), f"{name} names one twice"
        assert all(f"`{name}`" in table[number][2] for number in numbers), name

    assert set(table) == set(LEVEL5_STATEMENTS)


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
