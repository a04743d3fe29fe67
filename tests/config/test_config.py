"""Topology files without mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.documents import KITCHEN, ROOT, changed, one, write
from txbroker import config
from txbroker.config import Address
from txbroker.config.values import ExpiryRule
from txbroker.model.errors import ConfigError


def test_every_key_of_a_full_document(tmp_path: Path) -> None:
    """Each key ends up in its attribute, in its unit."""
    node = one(
        tmp_path,
        changed(
            KITCHEN,
            mqtt="['tcp:1884', 'tcp6:1885:interface=\\:\\:1', 'unix:/run/mqtt']",
            link='"[::1]:7102"',
            advertise="kitchen.example",
            site="home",
            durability="interval",
            sync_interval="20ms",
            journal="none",
            retention="{age: 2h, size: 5MiB}",
            expiry="[{filter: home/kitchen/+/motion, after: 1h}, {filter: '#', after: 1500ms}]",
            unreachable="hold",
            roaming="fresh",
            roaming_wait="0s",
            will_after="1m",
            suback_wait="500ms",
            check_utf8="true",
            session_limits="{messages: 7}",
            limits="{connections: 1, packet: 1KiB, inflight: 2, session_memory: 3MiB, "
            "outbox: 2GiB, links: 4, cache: 5, disk_free: 12.5%, connect_timeout: 1.5m}",
        ),
    )

    expected = config.NodeConfig(
        node="kitchen",
        zone="home/kitchen",
        parent=Address("localhost", 7001),
        mqtt=("tcp:1884", "tcp6:1885:interface=\\:\\:1", "unix:/run/mqtt"),
        grpc=Address("127.0.0.1", 7002),
        link=Address("::1", 7102),
        advertise="kitchen.example",
        data=tmp_path / "var/kitchen",
        site="home",
        durability="interval",
        sync_interval=0.02,
        journal="none",
        retention=config.RetentionLimits(age=7200.0, size=5 << 20),
        expiry=(
            ExpiryRule(filter="home/kitchen/+/motion", after=3600),
            ExpiryRule(filter="#", after=2),
        ),
        unreachable="hold",
        roaming="fresh",
        roaming_wait=0.0,
        will_after=60.0,
        suback_wait=0.5,
        check_utf8=True,
        session_limits=config.SessionBounds(messages=7),
        limits=config.Limits(
            connections=1,
            packet=1024,
            inflight=2,
            session_memory=3 << 20,
            outbox=2 << 30,
            links=4,
            cache=5,
            disk_free=config.ReserveSize(share=0.125),
            connect_timeout=90.0,
        ),
        source=tmp_path / "0.yaml",
    )
    assert expected == node


def test_defaults(tmp_path: Path) -> None:
    """What the contract promises for keys that are left out."""
    node = one(tmp_path, ROOT)

    assert (None, None, None, 2.0) == (node.parent, node.link, node.advertise, node.suback_wait)
    assert ("", "sync", 0.1, "all") == (
        node.site,
        node.durability,
        node.sync_interval,
        node.journal,
    )
    assert ("outbox", "refuse", 3.0, 10.0) == (
        node.unreachable,
        node.roaming,
        node.roaming_wait,
        node.will_after,
    )
    week = 7 * 86_400.0
    assert config.RetentionLimits(age=week, size=10 << 30) == node.retention
    assert config.SessionBounds(messages=1_000_000, bytes=1 << 30, age=week) == node.session_limits
    assert (
        config.Limits(
            connections=50_000,
            packet=16 << 20,
            inflight=100,
            session_memory=8 << 20,
            outbox=1 << 30,
            links=1_000,
            cache=100_000,
            disk_free=config.ReserveSize(share=0.05),
            connect_timeout=10.0,
        )
        == node.limits
    )
    assert "127.0.0.1" == node.dial_host


def test_a_reserve_is_a_share_or_a_size_of_the_disk(tmp_path: Path) -> None:
    """A size that was meant for a large disk leaves most of a small one usable."""
    small, large = 64 << 20, 1 << 40

    def reserve(text: str) -> config.ReserveSize:
        return one(tmp_path, changed(ROOT, limits=f"{{disk_free: {text}}}")).limits.disk_free

    assert (0, 0) == (reserve("0%").of(small), reserve("0%").of(large))
    assert (small // 10, large // 10) == (reserve("10%").of(small), reserve("10%").of(large))
    assert (small // 4, 1 << 30) == (reserve("1GiB").of(small), reserve("1GiB").of(large))
    assert ("2.5%", "1024B") == (str(reserve("2.5%")), str(reserve("1KiB")))


def test_a_pure_edge_has_no_zone(tmp_path: Path) -> None:
    """An absent zone differs from the root's empty one."""
    node = one(tmp_path, changed(KITCHEN, zone=None))

    assert node.zone is None


@pytest.mark.parametrize("text", ["localhost:0", "10.0.0.1:65535", "[::1]:7001", "a-b.c_d:1"])
def test_an_address_reads_as_it_is_written(text: str) -> None:
    """Names, IPv4, IPv6 in brackets."""
    assert text == str(config.parse_address(text))


def test_many_documents_in_one_file(tmp_path: Path) -> None:
    """One node each, in order; empty documents do not count."""
    nodes = config.load_files(write(tmp_path, f"---\n{ROOT}---\n---\n{KITCHEN}---\n"))

    assert ["house", "kitchen"] == [node.node for node in nodes]


def test_select_takes_the_only_one_or_the_one_named(tmp_path: Path) -> None:
    """Without a name several are refused, with the names in the line."""
    nodes = config.load_files(write(tmp_path, f"{ROOT}---\n{KITCHEN}"))

    assert "kitchen" == config.select(nodes, "kitchen").node
    assert "house" == config.select(nodes[:1], None).node
    with pytest.raises(ConfigError, match="several nodes.*--node one of: house, kitchen"):
        config.select(nodes, None)
    with pytest.raises(ConfigError, match="'attic': no such node.*house, kitchen"):
        config.select(nodes, "attic")


GOOD_TOGETHER = {
    "two levels": [ROOT, KITCHEN],
    "a parent that is elsewhere": [KITCHEN],
    "a pure edge below the root": [ROOT, changed(KITCHEN, zone=None)],
    "the same ports on two machines": [
        changed(ROOT, grpc="10.0.0.1:7001", mqtt="[tcp:1883]"),
        changed(KITCHEN, grpc="10.0.0.2:7001", mqtt="[tcp:1883]", parent="10.0.0.1:7001"),
    ],
    "the same ports in two containers": [
        changed(ROOT, grpc="0.0.0.0:7001", advertise="a", mqtt="[tcp:1883]"),
        changed(KITCHEN, grpc="0.0.0.0:7001", advertise="b", mqtt="[tcp:1883]", parent="a:7001"),
    ],
    "one port on two loopback addresses": [
        ROOT,
        changed(KITCHEN, mqtt="['tcp:1883:interface=127.0.0.2']"),
    ],
    "free ports": [
        changed(ROOT, mqtt="['tcp:0:interface=127.0.0.1']"),
        changed(KITCHEN, mqtt="['tcp:0:interface=127.0.0.1', 'tcp:0']", link="127.0.0.1:0"),
    ],
    "a parent given by what it advertises": [
        changed(ROOT, advertise="house.example", grpc="0.0.0.0:7001"),
        changed(KITCHEN, parent="House.example:7001"),
    ],
}


@pytest.mark.parametrize("texts", GOOD_TOGETHER.values(), ids=GOOD_TOGETHER.keys())
def test_good_files_pass_together(tmp_path: Path, texts: list[str]) -> None:
    """No mistake is found where there is none."""
    nodes, errors = config.inspect_files(write(tmp_path, *texts))

    assert (len(texts), ()) == (len(nodes), errors)
