"""
`txbroker resolve`: the walk step by step, and the owners.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.nodes import NodeProcess, topology
from txbroker.v1.control_pb2 import ResolveReply

from .commands import as_json, failure, output, run, wrong_usage
from .conftest import House, StartFake


def walk(address: str, question: str, status: int = 0) -> dict[str, Any]:
    """What --json gives."""
    found: dict[str, Any] = as_json("resolve", address, question, status=status)
    return found


def steps(found: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Answer and zone of each step."""
    return [(step["answer"], step["zone"]) for step in found["steps"]]


ROOT = ("referral", "")
A = ("referral", "a")
AB = ("authoritative", "a/b")
B = ("authoritative", "b")

WALKS = [
    ("root", "r/x", [("authoritative", "")], [""]),
    ("root", "a/b/x", [ROOT, A, AB], ["a/b"]),
    ("root", "a/b", [ROOT, A, AB], ["a/b"]),
    ("root", "a", [ROOT, ("authoritative", "a")], ["a"]),
    ("root", "$other/x", [("authoritative", "")], [""]),
    ("root", "#", [ROOT, A, B, AB], ["", "a", "b", "a/b"]),
    ("root", "+/c/#", [ROOT, ("authoritative", "a"), B], ["", "a", "b"]),
    ("a", "a/b/x", [A, AB], ["a/b"]),
    ("a", "a/+/x", [A, AB], ["a", "a/b"]),
    # A node that covers a part only is no place to start at.
    ("ab", "a/c", [("start", "a/b"), ("authoritative", "a")], ["a"]),
    ("ab", "a/#", [("start", "a/b"), A, AB], ["a", "a/b"]),
    ("ab", "b/x", [("start", "a/b"), ROOT, B], ["b"]),
    ("ab", "#", [("start", "a/b"), ROOT, A, B, AB], ["", "a", "b", "a/b"]),
    ("edge", "r", [("start", None), ("authoritative", "")], [""]),
    ("edge", "a/b/x", [("start", None), ROOT, A, AB], ["a/b"]),
]


@pytest.mark.parametrize(
    "start, question, expected, owners", WALKS, ids=[f"{s}-{q}" for s, q, *_ in WALKS]
)
def test_walk(
    house: House,
    start: str,
    question: str,
    expected: list[tuple[str, str | None]],
    owners: list[str],
) -> None:
    """From any node to every owner, each step one zone deeper."""
    nodes = {node.name: node for node in house.nodes}
    served = {"": house.root, "a": house.a, "a/b": house.ab, "b": house.b}

    found = walk(nodes[start].grpc, question)

    assert question == found["question"] and expected == steps(found)
    assert owners == [owner["zone"] for owner in found["owners"]]
    for owner in found["owners"]:
        node = served[owner["zone"]]
        assert (node.name, node.grpc) == (owner["node"], owner["grpc"]) and owner["epoch"] >= 1
    assert nodes[start].grpc == found["steps"][0]["asked"]
    for step in found["steps"]:
        assert ["asked", "answer", "zone", "epoch", "ttl"] == list(step)
        assert step["ttl"] > 0 and (step["epoch"] is None) == (step["zone"] is None)


def test_plain_lines(house: House) -> None:
    """Steps with what they refer to, then the owners."""
    lines = output("resolve", house.edge.grpc, "a/b/x").splitlines()

    assert ["2", house.root.grpc, "referral", "(root)"] == lines[2].split()[:4]
    assert "a" == lines[2].split()[-1] and "authoritative" in lines[4]
    assert "" == lines[5] and ["a/b", "ab", house.ab.grpc] == lines[7].split()[:3]


@pytest.mark.parametrize("question", ["$SYS", "$SYS/broker/+", "$SYS/federation/root/#"])
def test_sys_is_the_asked_nodes_own(house: House, question: str) -> None:
    """One line says so."""
    assert (
        f"{question} is local to each node: b at {house.b.grpc} answers for itself\n"
    ) == output("resolve", house.b.grpc, question)
    found = walk(house.b.grpc, question)
    assert [("local", None)] == steps(found)
    assert [{"zone": None, "node": "b", "grpc": house.b.grpc, "epoch": None}] == found["owners"]


def test_a_terminal_that_cannot_show_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot show is spelled out."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")

    said = output("resolve", house.b.grpc, "$SYS/\u03a9\n")

    assert said.startswith("$SYS/\\u03a9\\n is local to each node: ")


def test_an_owner_that_is_away_is_a_step(house: House) -> None:
    """With what was believed of it; the other owners are found, and the status is 1."""
    house.b.terminate()
    try:
        found = walk(house.edge.grpc, "+/x", status=1)
        done = run("resolve", house.edge.grpc, "b/x")
    finally:
        house.b.start()
    (step,) = (step for step in found["steps"] if step["answer"] == "unreachable")
    assert (house.b.grpc, "b", None) == (step["asked"], step["zone"], step["ttl"])
    assert ["", "a"] == [owner["zone"] for owner in found["owners"]]
    assert 1 == done.returncode and "OWNER" not in done.stdout
    assert "Error: not every owner of 'b/x' could be found\n" == done.stderr
    house.wait_whole()


def test_a_parent_that_is_away_is_a_step(house: House) -> None:
    """The walk from below it begins further up."""
    house.a.terminate()
    try:
        found = walk(house.ab.grpc, "a/c", status=1)
    finally:
        house.a.start()
    unreachable = ("unreachable", "a")
    assert [("start", "a/b"), unreachable, ROOT, unreachable] == steps(found)
    assert [] == found["owners"]
    house.wait_whole()


def test_nobody_there() -> None:
    """A step like any other that fails."""
    done = run("resolve", "127.0.0.1:1", "a/x")

    assert 1 == done.returncode and "unreachable" in done.stdout
    assert 1 == len(done.stderr.splitlines())
    assert [("unreachable", None)] == steps(walk("127.0.0.1:1", "a/x", status=1))


def test_a_node_that_never_joined_knows_no_start(tmp_path: Path) -> None:
    """One line."""
    with NodeProcess(tmp_path, topology("c", zone="c", parent="127.0.0.1:1")) as node:
        said = failure("resolve", node.grpc, "c/x")
    assert said.endswith("knows no zone that covers 'c/x'; has it joined its parent?")


@pytest.mark.parametrize("apex", ["", "a", "other/x", "ab"])
def test_a_referral_that_is_not_deeper_is_refused(fake_node: StartFake, apex: str) -> None:
    """Following it might never end (rule 14)."""

    def resolve(request: Any) -> ResolveReply:
        reply = ResolveReply(answer=ResolveReply.REFERRAL, ttl=1)
        reply.zone.apex, reply.zone.epoch = "a", 1
        reply.referrals.add(apex=apex, epoch=9, node="x", grpc="127.0.0.1:1")
        return reply

    said = failure("resolve", fake_node(Resolve=resolve), "a/x")

    assert f"serves zone 'a' and refers to zone {apex!r}, which is not below it" in said


def test_a_node_that_does_not_serve_the_zone_any_more(house: House, fake_node: StartFake) -> None:
    """Its step says so, and the owner is not found."""

    def resolve(request: Any) -> ResolveReply:
        reply = ResolveReply(answer=ResolveReply.REFERRAL, ttl=1)
        reply.zone.epoch = 1
        reply.referrals.add(apex="zz", epoch=9, node="b", grpc=house.b.grpc)
        return reply

    found = walk(fake_node(Resolve=resolve), "zz/x", status=1)

    assert [("referral", ""), ("not authoritative", "b")] == steps(found)
    assert [] == found["owners"]


def test_a_stale_start_is_passed_over(house: House, fake_node: StartFake) -> None:
    """The next zone above it knows better, so the owner is found."""

    def resolve(request: Any) -> ResolveReply:
        reply = ResolveReply(answer=ResolveReply.NOT_AUTHORITATIVE, ttl=1)
        reply.lineage.add(apex="", epoch=1, node="root", grpc=house.root.grpc)
        reply.lineage.add(apex="b", epoch=1, node="a", grpc=house.a.grpc)
        return reply

    found = walk(fake_node(Resolve=resolve), "b/x")

    assert [("start", None), ("not authoritative", "a"), ROOT, B] == steps(found)
    assert ["b"] == [owner["zone"] for owner in found["owners"]]


@pytest.mark.parametrize("question", ["", "a/#/b", "a+", "x" * 65_536])
def test_a_bad_filter_is_wrong_usage(question: str) -> None:
    """One line with the rule, status 2, and nobody is asked."""
    assert "Error: FILTER: " in wrong_usage("resolve", "127.0.0.1:1", question)
