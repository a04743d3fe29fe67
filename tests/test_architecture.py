"""
The tree polices its architecture: arrows between folders, pure cores, names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from graphlib import TopologicalSorter

import pytest

from tests.architecture import (
    ARROWS,
    PACKAGE,
    PAGE,
    arrows,
    folder_of,
    imports,
    modules,
    page,
    path_of,
    reachable,
    tree,
)

_PURE_FOLDERS = (
    "model mqtt mqtt/wire mqtt/session core delegation journal authority directory edge"
    " edge/sessions edge/routing edge/groups edge/local pipeline/planner"
)
PURE = frozenset(_PURE_FOLDERS.split())
"""Folders in which no file does I/O or reads a clock."""

_PURE_FILES = """
    link.batch_headers link.delivery_receiver link.delivery_sender link.frames link.held_frames
    link.interest_answers
    link.held_answers link.link_client link.link_hello link.link_port link.link_server
    link.owner_checks link.publish_receiver link.publish_sender link.queue_ages
    pipeline.archives.manifest pipeline.report_page.markup pipeline.report_page.page
    pipeline.report_page.treemap pipeline.source.positions pipeline.source.ranges rpc.call_headers
    rpc.link_convert
    runtime.backpressure runtime.deadlines runtime.fair_shares runtime.flush_queue
    runtime.rotation runtime.slices
"""
PURE_FILES = frozenset(f"txbroker.{name}" for name in _PURE_FILES.split())
"""Pure files of other folders."""

IMPURE_FILES = frozenset({"txbroker.pipeline.planner.planned"})
"""Files of pure folders that read or write files."""

MAY_USE_PROTOBUF = (
    "link",
    "rpc",
    "edge.sessions.stored_positions",
    "edge.sessions.session_format",
    "edge.sessions.window_format",
    "journal.delivery_ledger",
    "delegation.peer_checks",
)
CLOCKS = {"asyncio", "datetime", "random", "secrets", "select", "socket", "threading", "time"}


def is_pure(module: str) -> bool:
    """True if the module may do no I/O and read no clock."""
    if module in IMPURE_FILES:
        return False
    return module in PURE_FILES or folder_of(module) in PURE


def may_use_protobuf(module: str) -> bool:
    """True if a pure module knows messages of the wire or of files."""
    return any(
        module == f"txbroker.{name}" or module.startswith(f"txbroker.{name}.")
        for name in MAY_USE_PROTOBUF
    )


@pytest.mark.parametrize("module", modules())
def test_imports_follow_the_arrows(module: str) -> None:
    """Annotations included: whatever a file names, it has to know."""
    if module == "txbroker":
        return
    folder = folder_of(module)
    for name in imports(module):
        if name == "txbroker" or not name.startswith("txbroker.") or name.startswith("txbroker.v1"):
            continue
        assert folder_of(name) in {folder, *arrows(folder)}, f"{module} imports {name}"


def test_each_arrow_is_needed() -> None:
    """One that nobody uses any more would let it come back unseen."""
    used: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        if module == "txbroker":
            continue
        for name in imports(module):
            if name in modules() and name != "txbroker":
                used[folder_of(module)].add(folder_of(name))
    for folder in ARROWS:
        assert set(arrows(folder)) == used[folder] - {folder}, folder


def test_arrows_point_downwards() -> None:
    """A folder stands above all that it may import, so there is no circle."""
    order = list(ARROWS)
    for folder in ARROWS:
        for below in arrows(folder):
            assert order.index(below) < order.index(folder), f"{folder} -> {below}"
        assert folder not in reachable(folder)


def test_no_file_imports_itself_by_way_of_others() -> None:
    """`prepare` raises a `CycleError` that names the files."""
    known = set(modules())
    TopologicalSorter({one: known.intersection(imports(one)) - {one} for one in known}).prepare()


def test_each_folder_is_in_the_table() -> None:
    """And nothing else is."""
    assert set(ARROWS) == {folder_of(module) for module in modules() if module != "txbroker"}


def test_the_page_is_up_to_date() -> None:
    """`python -m tests.architecture` writes it."""
    assert page() == PAGE.read_text()


@pytest.mark.parametrize("module", [name for name in modules() if is_pure(name)])
def test_a_core_is_pure(module: str) -> None:
    """It imports the standard library, attrs and other cores; no clock, socket or randomness."""
    for name in imports(module):
        top = name.partition(".")[0]
        if name == "txbroker":
            continue
        if name.startswith("txbroker.v1") or top == "google":
            assert may_use_protobuf(module), f"{module} imports {name}"
        elif top == "txbroker":
            assert is_pure(name), f"{module} imports {name}, which is no core"
        else:
            pure = top in {"attr", "attrs"} or top in sys.stdlib_module_names - CLOCKS
            assert pure, f"{module} imports {name}"


def test_the_compiled_core_is_pure() -> None:
    """It imports what its reference might, and has no tables in the tree that nobody wrote."""
    text = (PACKAGE / "core" / "compiled.pyx").read_text()
    found = re.findall(r"^(?:from|import) (\S+)(?: import .*)?$", text, re.MULTILINE)

    assert {"os", "txbroker.mqtt.wire.message"} <= set(found)
    for name in found:
        assert name == "os" or is_pure(name), f"the compiled core imports {name}"


def classes() -> dict[str, list[str]]:
    """Public classes at the top of a file, by name; the reference of the core is left out."""
    found = defaultdict(list)
    for module in modules():
        if module.startswith("txbroker.core.reference."):
            continue
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return found


def test_no_class_name_is_used_twice() -> None:
    """Who reads a name has to know which one it is."""
    assert {} == {name: where for name, where in classes().items() if len(where) > 1}


def test_no_file_name_is_used_twice() -> None:
    """The same for files, but for the two cores."""
    found = defaultdict(list)
    for module in modules():
        path = path_of(module).relative_to(PACKAGE)
        if path.name != "__init__.py" and path.parts[:2] != ("core", "reference"):
            found[path.name].append(str(path))
    assert {} == {name: where for name, where in found.items() if len(where) > 1}


_WORDS = """
    accept accepted ack admission ages aio aliases answers archive archives arrow atomic audit
    authority back backpressure backup backups base batch batches boot branch cache call callers
    calls catalog catch changes channel channels charts check checked checkpoints checks child
    children claims clauses clean cli client clients codes columns commit commits committer
    compaction config conflicts connack connect connected connection connections connector control
    convert coordinator coordinators copied core counters coverage cursor cursors cut cuts data
    deadlines decoder delayed delegation delivery descriptors dialer directory discard disk display
    divergent drain durable edge effects encoder endpoints entry epoch error errors evacuation
    evidence expected expiry fair feeds fields file files filter filters flows flush folders
    following forget format formats frames framing grant group grouping groups hand handover hash
    headers heartbeat held hello history hooks inbound index inputs interest interests invariant
    java jobs join journal journals kind ledger ledgers level5 lifecycle lifetime limits link list
    listener listeners listing lived local log lookups lost low machine manager manifest map markup
    masters match matching measures member members merge message messages meta model move mqtt name
    net network newest node nodes notes numbers offset once options order outbox output owner
    ownership
    packet packets page pairs parent part parts pause payload peer peers periodic pieced pieces
    pipeline placement plan plane planned planner planning poller port ports position positions
    procedure progress properties property protocol publication publish publisher publishes pushdown
    queue quorum ranges reachability reactor read reader reason reasons received receiver reclaim
    record records recovery reference registry relays removal rendezvous renumber repair replay
    replica replicator report reporter request requests reread reservation resolution resolve
    resolver retained retention retire retirement return role rollup root rotation route router
    routing row rows rpc rules run runner runtime saver scales scheduler schema scope segment
    selector send sender sent server service session sessions set settings share shared shares
    silent sink sizes slices snapshot sockets sorted source span spark staged state status
    storage store stored stray stream streams structured subscribe subscription subscriptions
    subtree sweep sys table tables takeover tap text thread throttle time timeouts timers tokens
    tombstone topic topics traffic transfer transferred transition transport tree treemap turns
    unauthenticated unread unsent up updates upkeep value values verdicts view walk water
    watermark wills window windows wire work writer zone
"""
WORDS = frozenset(_WORDS.split())
"""Words of file names: of MQTT, DNS, Kafka, databases, Spark, and those of docs/glossary.md."""


def test_file_names_are_made_of_known_words() -> None:
    """A new word is added here when a reader of brokers knows it, or the glossary explains it."""
    for module in modules():
        for word in re.split(r"[._]", module.removeprefix("txbroker").lstrip(".")):
            assert word in WORDS or not word, f"{module}: {word}"


MOST_PARAMETERS = 6


def parameters(module: str) -> dict[str, int]:
    """How many parameters the written constructors of a module take, by class."""
    found = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    taken = each.args
                    names = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
                    found[node.name] = len(names) - 1
    return found


def test_constructors_take_few_parameters() -> None:
    """What belongs together is one value; the reference of the core has what its fast twin has."""
    crowded = {
        name
        for module in modules()
        if not module.startswith("txbroker.core.reference.")
        for name, count in parameters(module).items()
        if count > MOST_PARAMETERS
    }
    assert not crowded


def test_at_most_one_file_is_loose() -> None:
    """Every other one has a room."""
    assert ["tap.py"] == sorted(path.name for path in PACKAGE.glob("*.py") if path.stem[0] != "_")
