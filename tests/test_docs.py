"""
The documentation is true: what it shows is run (`tests/support/pages.py` has the conventions), what
it links to is there. The pipeline's pages are run in tests/pipeline.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attrs
import pytest
import yaml
from click.testing import CliRunner

from tests.faults import history
from tests.support.pages import FENCE, ROOT, check_commands, fences, files
from txbroker.cli import main

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Its path in this repository."""
    return str(page.relative_to(ROOT))


RUN_HERE = [page for page in PAGES if "pipeline" not in name_of(page)]

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_MERMAID = {"flowchart", "sequenceDiagram", "stateDiagram-v2"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [p for p in RUN_HERE if fences(p, "console")], ids=name_of)
def test_commands_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    """Every command of every console fence, against real nodes."""
    check_commands(page, tmp_path)


@pytest.mark.parametrize("page", [p for p in PAGES if fences(p, "yaml")], ids=name_of)
def test_topology_files_are_good(page: Path, tmp_path: Path) -> None:
    """Those of a page together; the wrong ones are wrong."""
    shown = list(files(page))
    for file in shown:
        (tmp_path / file.name).write_text(file.text)
    good = [str(tmp_path / file.name) for file in shown if not file.is_wrong]
    if good:
        done = CliRunner().invoke(main, ["check", *good])
        assert (0, "") == (done.exit_code, done.stderr)
    for file in shown:
        if file.is_wrong:
            done = CliRunner().invoke(main, ["check", *good, str(tmp_path / file.name)])
            assert 1 == done.exit_code


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_fences_are_closed_and_known(page: Path) -> None:
    """Each opening fence has its end and a kind that somebody reads; Mermaid names its diagram."""
    marks = [line for line in page.read_text().splitlines() if line.startswith("```")]

    assert len(marks) == 2 * len(FENCE.findall(page.read_text())), "a fence is not closed"
    assert {kind for kind, _ in FENCE.findall(page.read_text())} <= {
        "console",
        "mermaid",
        "python",  # tests/pipeline/test_programs.py runs these
        "text",
        "yaml",
    }
    for text in fences(page, "mermaid"):
        first, *rest = text.splitlines()
        assert first.split()[0] in _MERMAID
        for opening, closing in ("[]", "()", "{}"):
            assert text.count(opening) == text.count(closing), text
        assert rest and all(line.startswith("    ") for line in rest), text
        if first == "sequenceDiagram":
            assert not set(";#") & set(text), f"these end a message's text:\n{text}"


def anchors(page: Path) -> set[str]:
    """What links to a page may point at: its headings, the way that forges make anchors of them."""
    prose = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Files and headings of this repository; addresses elsewhere are not asked."""
    for link in _LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page

        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_that_are_named_exist(page: Path) -> None:
    """`tests/...py`, with `::name` or not; `::name` alone is of the file that was named last."""
    file = None
    for name, function in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", page.read_text()):
        if name:
            file = ROOT / name
            assert file.exists(), f"{page.name} names {name}"
        if function:
            assert file is not None, f"{page.name} names ::{function}, of no file"
            assert re.search(rf"def {function}\(", file.read_text()), f"{file}::{function}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_that_are_named_exist(page: Path) -> None:
    """`folder/name.py`, with its folders from below `txbroker/`, or less of them."""
    modules = [str(file) for file in (ROOT / "txbroker").rglob("*.py")]
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text()):
        known = (ROOT / name).exists() or any(one.endswith(f"/{name}") for one in modules)
        assert known, f"{page.name} names {name}"


def test_rules_that_are_named_exist() -> None:
    """Those of the fault harness, in guarantees.md: rule `name`, rules `name`, `name`."""
    assert history.__doc__ is not None
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"\brules? (`\w+`(?:, `\w+`)*)", page)

    assert named
    for rule in re.findall(r"`(\w+)`", " ".join(named)):
        assert f"- `{rule}`: " in history.__doc__, rule


def cited(text: str) -> set[int]:
    """The numbers in `rule 3`, `rules 3 and 5`, `rules 3, 5 and 7`, over line ends, too."""
    found = re.findall(r"\b[Rr]ules?\s+(\d+(?:(?:,|\s+and)\s+\d+)*)", re.sub(r"\n\W*", " ", text))
    return {int(number) for numbers in found for number in re.findall(r"\d+", numbers)}


def test_citations_of_rules_are_found() -> None:
    """In each form that comments have."""
    assert {3} == cited("(protocol rule 3)")
    assert {3, 5} == cited("rules 3 and 5)")
    assert {3, 5, 17} == cited("Rules 3, 5 and 17")
    assert {3} == cited("    # as the\n    # rule\n    # 3 says")
    assert not cited("the rule of 3, ruled 4, a rule")


def test_every_rule_that_is_cited_exists() -> None:
    """docs/protocol.md has each rule that code, tests and `.proto` files cite, once."""
    page = (ROOT / "docs" / "protocol.md").read_text()
    rules = [int(number) for number in re.findall(r"^(\d+)\. \*\*", page, re.MULTILINE)]

    assert sorted(set(rules)) == rules
    for folder in ("txbroker", "tests", "proto"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".pyi", ".pyx", ".pxd", ".proto", ".h", ".c"}:
                if file == Path(__file__):
                    continue
                missing = cited(file.read_text()) - set(rules)
                assert not missing, f"{file.relative_to(ROOT)} cites rules {missing}"


def test_every_rule_names_code_that_exists() -> None:
    """The modules in brackets behind a rule of docs/protocol.md."""
    page = (ROOT / "docs" / "protocol.md").read_text()
    for module in re.findall(r"`([\w/]+\.py)`", page):
        assert (ROOT / "txbroker" / module).exists(), f"protocol.md names {module}"


def test_the_change_that_contributing_walks_through_is_real() -> None:
    """Each file of its table has the key, and the committer the line that is undone for a test."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    walk = page.partition("## One change")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `([\w/.]+)` \|", walk, re.MULTILINE)
    (line,) = re.findall(r"Undo the decisive line \(`(.*)`\)", walk)

    assert 8 == len(files)
    for name in set(files) - {"CHANGELOG.md"}:
        assert "sync_interval" in (ROOT / name).read_text(), name
    assert line in (ROOT / "txbroker" / "storage" / "committer.py").read_text()


def test_every_decision_is_listed_and_complete() -> None:
    """The index has each page once; each page has its date, and what would change it."""
    folder = ROOT / "docs" / "decisions"
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    listed = re.findall(r"^\| \[([\w-]+\.md)\]", (folder / "README.md").read_text(), re.MULTILINE)

    assert sorted(pages) == sorted(listed)
    for name in pages:
        text = (folder / name).read_text()
        for part in (
            r"\*\*Question\.\*\*",
            r"\*\*Alternatives\*\*",
            r"\*\*Figures\*\*",
            r"\*\*Decision\*\* \(\d{4}-\d\d-\d\d\)\.",
            r"\*\*What would change it\.\*\*",
        ):
            assert re.search(rf"^{part}", text, re.MULTILINE), f"{name} lacks {part}"


def test_pages_that_code_names_exist() -> None:
    """`docs/...md` in a docstring or comment."""
    for file in sorted((ROOT / "txbroker").rglob("*.py")):
        for page in re.findall(r"\bdocs/[\w/.-]+\.md\b", file.read_text()):
            assert (ROOT / page).exists(), f"{file.relative_to(ROOT)} names {page}"


@pytest.mark.parametrize(
    "module",
    ["runtime/sockets/poller.py", "storage/log.py"]
    + [
        "storage/committer.py",
        "core/__init__.py",
        "link/__init__.py",
        "pipeline/report_page/charts.py",
    ],
)
def test_parts_made_by_hand_name_their_decision(module: str) -> None:
    """Who would replace one by a library finds what was measured."""
    text = ast.get_docstring(ast.parse((ROOT / "txbroker" / module).read_text()))

    assert text is not None
    assert re.search(r"^(Measured|Weighed) .*: docs/decisions/[\w-]+\.md\.$", text, re.MULTILINE)


def test_every_log_event_is_explained() -> None:
    """docs/operations.md has each event that the code logs above the level debug."""
    explained = (ROOT / "docs" / "operations.md").read_text()
    logged = re.compile(
        r"(?:log\.(?:info|warning|error|critical)|[rR]eporter\.event|yield from (?:report|warn))"
        r"\(\s*\"([a-z_.]+)\""
    )
    for file in sorted((ROOT / "txbroker").rglob("*.py")):
        for event in logged.findall(file.read_text()):
            assert f"`{event}`" in explained, f"{file.relative_to(ROOT)} logs {event}"


def test_every_counter_is_explained() -> None:
    """docs/operations.md has each counter that the code adds to."""
    explained = (ROOT / "docs" / "operations.md").read_text()
    added = re.compile(r"counters\.add\(\s*(\"[a-z_.0-9]+\"[^)]*)\)")
    for file in sorted((ROOT / "txbroker").rglob("*.py")):
        for arguments in added.findall(file.read_text()):
            for counter in re.findall(r"\"([a-z_.0-9]+)\"", arguments):
                assert f"`{counter}`" in explained, f"{file.relative_to(ROOT)} counts {counter}"


def test_every_key_is_explained() -> None:
    """docs/topology.md has each key, and the default of each limit as it stands in the code."""
    from txbroker.config.value_hooks import CONVERTER
    from txbroker.config.values import NOT_KEYS, Limits, NodeConfig, RetentionLimits, SessionBounds

    explained = (ROOT / "docs" / "topology.md").read_text()
    for values in (NodeConfig, Limits, RetentionLimits, SessionBounds):
        for field in attrs.fields(values):
            if field.name not in NOT_KEYS:
                assert f"| `{field.name}` |" in explained, field.name
    for values in (Limits, RetentionLimits, SessionBounds):
        for field in attrs.fields(values):
            default = r"`?(\{[^}]*\}|[\w%]+)`?"
            found = re.search(
                rf"^\| `{field.name}` \|[^|]*\| {default} \|", explained, re.MULTILINE
            )
            assert found is not None, field.name
            documented = CONVERTER.structure(yaml.safe_load(found[1]), field.type)
            assert documented == field.default, field.name
