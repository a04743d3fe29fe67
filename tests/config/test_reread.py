"""A topology file that is read again while the node runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.documents import KITCHEN, ROOT, changed, one, write
from txbroker import config
from txbroker.model.errors import ConfigError


def test_limits_that_changed_count_at_once(tmp_path: Path) -> None:
    """Of other keys only their names are told; their values stay as they were."""
    before = one(tmp_path, changed(KITCHEN, limits="{links: 7, packet: 1KiB}", journal="none"))
    write(
        tmp_path,
        changed(
            KITCHEN,
            limits="{packet: 2KiB, disk_free: 1%}",
            session_limits="{age: 1h}",
            retention="{size: 1MiB}",
            suback_wait="5s",
            expiry="[{filter: home/+/motion, after: 1h}, {filter: home/kitchen/door, after: 2s}]",
            hold_first="[home/+/motion, home/kitchen/door]",
        ),
    )

    found = config.reread(before)

    assert {
        "limits.packet": "2048",
        "limits.links": "1000",
        "limits.disk_free": "1%",
        "session_limits.age": "3600.0",
        "retention.size": "1048576",
        "expiry": "home/+/motion: 3600s, home/kitchen/door: 2s",
        "hold_first": "home/+/motion, home/kitchen/door",
    } == found.changed
    assert ("journal", "suback_wait") == found.restart_needed
    assert (2048, 3600.0, 1 << 20, [3600, 2], 2) == (
        found.config.limits.packet,
        found.config.session_limits.age,
        found.config.retention.size,
        [rule.after for rule in found.config.expiry],
        len(found.config.hold_first),
    )
    assert ("none", 2.0) == (found.config.journal, found.config.suback_wait)


def test_nothing_changed(tmp_path: Path) -> None:
    """Comments and other nodes do not count."""
    before = config.select(config.load_files(write(tmp_path, f"{ROOT}---\n{KITCHEN}")), "kitchen")
    (tmp_path / "0.yaml").write_text(f"# new\n{changed(ROOT, journal='none')}---\n{KITCHEN}")

    found = config.reread(before)

    assert (before, {}, ()) == (found.config, found.changed, found.restart_needed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(KITCHEN, limits="{packet: 16MB}"), "not a size"),
        (changed(KITCHEN, node="pantry"), "no such node"),
        ("", "no node in this file"),
    ],
)
def test_a_file_that_went_bad_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """In one line."""
    before = one(tmp_path, KITCHEN)
    write(tmp_path, text)

    with pytest.raises(ConfigError, match=words):
        config.reread(before)
