"""Topology files with mistakes: each mistake gets one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.config.documents import KITCHEN, ROOT, changed, write
from txbroker import config
from txbroker.model.errors import ConfigError

# -- bad files: a name, the file, the key, and words that the line has besides

BAD: list[tuple[str, str, str, list[str]]] = [
    ("empty file", "", "", ["no node in this file"]),
    ("only a comment", "# nothing\n", "", ["no node in this file"]),
    ("a list", "- node\n", "", [":1: ", "a list where a mapping"]),
    ("bad syntax", "node: [a\nzone: b\n", "", [":2: ", "not valid YAML"]),
    ("a tab", "node: a\n\tzone: b\n", "", [":2: ", "not valid YAML"]),
    ("a tag", "node: !!python/object:os.system x\n", "", [":1: ", "not valid YAML"]),
    ("a bad date", f"{KITCHEN}x: 2024-13-45\n", "", ["not usable YAML"]),
    ("deep lists", "x: " + "[" * 5000, "", ["not usable YAML"]),
    ("a control character", "node: \x07\n", "", ["not valid YAML"]),
    ("a key twice", f"{KITCHEN}node: cellar\n", "node", [":7: ", "'cellar'", "on line 1"]),
    (
        "a nested key twice",
        f"{KITCHEN}limits: {{links: 1, links: 2}}\n",
        "limits.links",
        ["on line 7"],
    ),
    ("no list", f"{KITCHEN}expiry: {{}}\n", "expiry", [":7: ", "where a list belongs"]),
    (
        "a rule without interval",
        f"{KITCHEN}expiry: [{{filter: '#'}}]\n",
        "expiry[0].after",
        [":7: ", "missing"],
    ),
    (
        "a rule with another key",
        f"{KITCHEN}expiry: [{{filter: '#', after: 1s, since: 2s}}]\n",
        "expiry[0].since",
        [":7: ", "unknown key"],
    ),
    (
        "a bad filter",
        f"{KITCHEN}expiry: [{{filter: '#', after: 1s}}, {{filter: a#, after: 1s}}]\n",
        "expiry[1].filter",
        [":7: ", "'a#'", "last level"],
    ),
    (
        "a filter of each node",
        f"{KITCHEN}expiry: [{{filter: $SYS/#, after: 1s}}]\n",
        "expiry[0].filter",
        ["own $SYS topics"],
    ),
    (
        "an interval that is too long",
        f"{KITCHEN}expiry: [{{filter: '#', after: 60000d}}]\n",
        "expiry[0].after",
        ["four bytes"],
    ),
    (
        "a filter of another zone",
        f"{KITCHEN}expiry: [{{filter: home/hall/+, after: 1s}}]\n",
        "expiry[0].filter",
        ["matches no topic of the zone", "'home/kitchen'"],
    ),
    (
        "a rule without a zone",
        f"{KITCHEN.replace('zone: home/kitchen', '')}expiry: [{{filter: '#', after: 1s}}]\n",
        "expiry[0].filter",
        ["owns no zone"],
    ),
    ("unknown key", f"{KITCHEN}zones: a\n", "zones", [":7: ", "unknown key", "did you mean zone?"]),
    ("a strange key", f"{KITCHEN}broker: false\n", "broker", ["unknown key", "known keys"]),
    ("a key of ours", f"{KITCHEN}source: x\n", "source", ["unknown key"]),
    ("a key that is a number", f"{KITCHEN}7: x\n", "7", ["unknown key"]),
    (
        "unknown limit",
        changed(KITCHEN, limits="{packets: 1}"),
        "limits.packets",
        ["limits.packet?"],
    ),
    *[
        (f"no {key}", changed(KITCHEN, **{key: None}), key, [":1: ", "this key is missing"])
        for key in ("node", "mqtt", "grpc", "data")
    ],
    *[
        (f"nothing in {key}", changed(KITCHEN, **{key: ""}), key, [":6: ", "no value"])
        for key in ("node", "zone", "parent", "mqtt", "grpc", "data")
    ],
    ("a yes for a name", changed(KITCHEN, node="yes"), "node", ["true or false", "in quotes"]),
    ("a number for a name", changed(KITCHEN, node="7"), "node", ["a number", "in quotes"]),
    ("an empty name", changed(KITCHEN, node='""'), "node", ["an empty name"]),
    ("a slash in a name", changed(KITCHEN, node="a/b"), "node", ["'a/b'", "leave out"]),
    ("a wildcard in a name", changed(KITCHEN, node="a+"), "node", ["leave out"]),
    ("a space in a name", changed(KITCHEN, node="a b"), "node", ["leave out"]),
    ("a line end in a name", changed(KITCHEN, node='"a\\nb"'), "node", ["leave out"]),
    ("a surrogate in a name", changed(KITCHEN, node='"\\ud800"'), "node", ["not valid Unicode"]),
    ("a long name", changed(KITCHEN, node="ä" * 128), "node", ["longer than 255 bytes"]),
    ("a list for a zone", changed(KITCHEN, zone="[home]"), "zone", ["a list", "in quotes"]),
    ("+ in a zone", changed(KITCHEN, zone="home/+"), "zone", ["'home/+'", "a wildcard"]),
    ("# in a zone", changed(KITCHEN, zone='"home/#"'), "zone", ["a wildcard"]),
    ("a slash first", changed(KITCHEN, zone="/home"), "zone", ["at the start", "write 'home'"]),
    ("a slash last", changed(KITCHEN, zone="home/"), "zone", ["slash", "write 'home'"]),
    ("too deep a zone", changed(KITCHEN, zone="a/" * 200 + "a"), "zone", ["than the 200 levels"]),
    ("an empty level", changed(KITCHEN, zone="a///b"), "zone", ["empty level", "write 'a/b'"]),
    ("a $ zone", changed(KITCHEN, zone="$SYS"), "zone", ["start with $"]),
    ("a NUL in a zone", changed(KITCHEN, zone='"a\\0b"'), "zone", ["null character"]),
    ("a long zone", changed(KITCHEN, zone="ä" * 32768), "zone", ["65535 bytes"]),
    ("a root with a parent", changed(KITCHEN, zone='""'), "zone", ["root zone has no parent"]),
    ("no parent", changed(KITCHEN, parent=None), "zone", ["only the root", 'zone: ""']),
    ("an edge alone", changed(KITCHEN, parent=None, zone=None), "parent", ["needs a parent"]),
    ("its own parent", changed(KITCHEN, parent="localhost:7002"), "parent", ["its own parent"]),
    ("parent on port 0", changed(KITCHEN, parent="localhost:0"), "parent", ["cannot be dialled"]),
    ("parent without port", changed(KITCHEN, parent="house"), "parent", ["no port", "host:port"]),
    ("grpc as a number", changed(KITCHEN, grpc="7001"), "grpc", ["a number", "host:port"]),
    ("grpc as minutes", changed(KITCHEN, grpc="12:30"), "grpc", ["a number", "in quotes"]),
    ("port out of range", changed(KITCHEN, grpc="a:65536"), "grpc", ["'65536' is not a port"]),
    ("port of letters", changed(KITCHEN, grpc="a:http"), "grpc", ["'http' is not a port"]),
    ("port of other digits", changed(KITCHEN, grpc="a:٧٠٠١"), "grpc", ["is not a port"]),
    ("no host", changed(KITCHEN, grpc='":7001"'), "grpc", ["no valid host"]),
    ("a URL", changed(KITCHEN, grpc="http://a:7001"), "grpc", ["more than one colon"]),
    ("bare IPv6", changed(KITCHEN, grpc="::1:7001"), "grpc", ["brackets, as in [::1]:7001"]),
    ("bad IPv6", changed(KITCHEN, grpc='"[::g]:7001"'), "grpc", ["'::g' is not an IPv6"]),
    ("bad IPv4", changed(KITCHEN, grpc="1.2.3.444:7001"), "grpc", ["is not an IPv4 address"]),
    ("a link without port", changed(KITCHEN, link="localhost"), "link", ["no port"]),
    ("advertise a port", changed(KITCHEN, advertise="a:7001"), "advertise", ["without a port"]),
    ("advertise nothing", changed(KITCHEN, advertise='""'), "advertise", ["no valid host"]),
    ("mqtt as text", changed(KITCHEN, mqtt="tcp:1884"), "mqtt", ["not a list", "[tcp:1883]"]),
    ("no listener", changed(KITCHEN, mqtt="[]"), "mqtt", ["not a list", "one or more"]),
    ("a bare port", changed(KITCHEN, mqtt="[1884]"), "mqtt", ["1884", "a number"]),
    ("a client endpoint", changed(KITCHEN, mqtt='["tls:a:1"]'), "mqtt", ["'tls' is not one of"]),
    ("stdio", changed(KITCHEN, mqtt='["stdio:"]'), "mqtt", ["'stdio' is not one of"]),
    ("mqtt port", changed(KITCHEN, mqtt='["tcp:65536"]'), "mqtt", ["65536 is not a port"]),
    ("mqtt port below", changed(KITCHEN, mqtt='["tcp:-1"]'), "mqtt", ["-1 is not a port"]),
    ("mqtt port name", changed(KITCHEN, mqtt='["tcp:mqtt"]'), "mqtt", ["not an endpoint"]),
    ("mqtt no port", changed(KITCHEN, mqtt='["tcp:"]'), "mqtt", ["not an endpoint"]),
    ("mqtt option", changed(KITCHEN, mqtt='["tcp:1:nic=a"]'), "mqtt", ["not an endpoint", "nic"]),
    (
        "no certificate",
        changed(KITCHEN, mqtt='["ssl:1:privateKey=no.pem"]'),
        "mqtt",
        ["no.pem' (No such file", "full path"],
    ),
    ("data as a number", changed(KITCHEN, data="7"), "data", ["a number", "in quotes"]),
    ("data empty", changed(KITCHEN, data='""'), "data", ["not the name of a directory"]),
    ("NUL in data", changed(KITCHEN, data='"a\\0b"'), "data", ["not the name of a directory"]),
    *[
        (f"time {value}", changed(KITCHEN, suback_wait=value), "suback_wait", ["not a time", "10s"])
        for value in (
            "soon",
            "10",
            "0.5",
            "-1",
            "-1s",
            ".inf",
            ".nan",
            "1e400",
            "2 weeks",
            "[2s]",
            "true",
            "9S",
        )
    ],
    *[
        (
            f"size {value}",
            changed(KITCHEN, limits=f"{{packet: {value}}}"),
            "limits.packet",
            ["16MiB"],
        )
        for value in ("16MB", "-1", "0", "0KiB", "1.5MiB", ".inf", "true", "lots", "9" * 30)
    ],
    *[
        (
            f"count {value}",
            changed(KITCHEN, limits=f"{{links: {value}}}"),
            "limits.links",
            ["whole"],
        )
        for value in ("0", "-1", "1.5", "many", "true")
    ],
    (
        "too large a count",
        changed(KITCHEN, limits=f"{{links: {1 << 63}}}"),
        "limits.links",
        ["at most"],
    ),
    (
        "a timeout of nothing",
        changed(KITCHEN, limits="{connect_timeout: 0s}"),
        "limits.connect_timeout",
        ["above 0"],
    ),
    (
        "too large a window",
        changed(KITCHEN, limits="{inflight: 65536}"),
        "limits.inflight",
        ["at most 65535"],
    ),
    (
        "no messages",
        changed(KITCHEN, session_limits="{messages: 0}"),
        "session_limits.messages",
        ["whole number above 0"],
    ),
    *[
        (
            f"a reserve of {value}",
            changed(KITCHEN, limits=f"{{disk_free: {value}}}"),
            "limits.disk_free",
            [words],
        )
        for value, words in (
            ("91%", "at most 90%"),
            ("1000%", "not a size"),
            ("-1%", "not a size"),
            ("5MB", "not a size"),
            ("5", "5%, 512MiB"),
            ("0.05", "5%, 512MiB"),
        )
    ],
    *[
        (f"{key} {value}", changed(KITCHEN, **{key: value}), key, ["write one of: ", options])
        for key, value, options in (
            ("durability", "disk", "sync, interval, memory"),
            ("durability", "[sync]", "sync, interval, memory"),
            ("journal", "qos1", "all, qos12, none"),
            ("unreachable", "drop", "outbox, hold"),
            ("roaming", "false", "refuse, fresh"),
        )
    ],
    ("no time between syncs", changed(KITCHEN, sync_interval="0s"), "sync_interval", ["above 0"]),
    ("an empty site", changed(KITCHEN, site='""'), "site", ["leave the key out"]),
    ("a slash in a site", changed(KITCHEN, site="a/b"), "site", ["leave out"]),
    ("unknown in retention", changed(KITCHEN, retention="{days: 7}"), "retention.days", ["age"]),
    ("limits as a number", changed(KITCHEN, limits="7"), "limits", ["a number where a mapping"]),
    ("limits of nothing", changed(KITCHEN, limits=""), "limits", ["nothing where a mapping"]),
]


@pytest.mark.parametrize(
    ("text", "key", "words"), [row[1:] for row in BAD], ids=[r[0] for r in BAD]
)
def test_a_bad_file_gets_one_line(tmp_path: Path, text: str, key: str, words: list[str]) -> None:
    """With file, key, what is wrong and a remedy."""
    (path,) = write(tmp_path, text)

    with pytest.raises(ConfigError) as caught:
        config.load_file(path)

    line = str(caught.value)
    assert line.startswith(str(path)) and "\n" not in line and len(line) < 600
    assert key == caught.value.key and (not key or f": {key}: " in line)
    assert caught.value.remedy and line.endswith(caught.value.remedy)
    for word in words:
        assert word in line


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a directory, not text: one line each."""
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    cases = [
        (tmp_path / "missing.yaml", "No such file"),
        (tmp_path, "directory"),
        (binary, "not UTF-8"),
    ]

    for path, words in cases:
        with pytest.raises(ConfigError, match=words):
            config.load_file(path)


# -- bad trees: a name, the files, the key, and words of the one line

ATTIC = changed(
    KITCHEN,
    node="attic",
    zone="home/attic",
    mqtt='["tcp:1885:interface=127.0.0.1"]',
    grpc="127.0.0.1:7003",
    data="var/attic",
)

TOGETHER: list[tuple[str, list[str], str, list[str]]] = [
    ("a name twice", [KITCHEN, changed(ATTIC, node="kitchen")], "node", ["taken by", "0.yaml"]),
    (
        "a zone twice",
        [KITCHEN, changed(ATTIC, zone="home/kitchen")],
        "zone",
        ["owned by node kitc"],
    ),
    ("two roots", [ROOT, changed(ATTIC, zone='""', parent=None)], "zone", ["owned by node house"]),
    (
        "one store",
        [KITCHEN, changed(ATTIC, data="./var/kitchen")],
        "data",
        ["used by node kitchen"],
    ),
    (
        "a store by another way",
        [KITCHEN, changed(ATTIC, data="var/attic/../kitchen")],
        "data",
        ["used by node kitchen"],
    ),
    (
        "a store in another",
        [KITCHEN, changed(ATTIC, data="var/x/../kitchen/data/attic")],
        "data",
        ["lies in the one of node kitchen", "side by side"],
    ),
    (
        "a store around another",
        [KITCHEN, changed(ATTIC, data="var")],
        "data",
        ["contains the one of node kitchen", "side by side"],
    ),
    (
        "outside the parent",
        [KITCHEN, changed(ATTIC, parent="127.0.0.1:7002")],
        "zone",
        ["outside the zone 'home/kitchen' of its parent kitchen"],
    ),
    (
        "a name that only begins alike",
        [KITCHEN, changed(ATTIC, parent="127.0.0.1:7002", zone="home/kitchenette")],
        "zone",
        ["outside the zone 'home/kitchen'"],
    ),
    (
        "a parent without a zone",
        [changed(KITCHEN, zone=None), changed(ATTIC, parent="127.0.0.1:7002")],
        "parent",
        ["parent kitchen owns no zone"],
    ),
    (
        "a ring of pure edges",
        [
            changed(KITCHEN, parent="127.0.0.1:7003", zone="a"),
            changed(ATTIC, parent="127.0.0.1:7002", zone="a/b"),
        ],
        "parent",
        ["form a ring: kitchen -> attic -> kitchen"],
    ),
    ("a port twice", [ROOT, changed(KITCHEN, mqtt="[tcp:1883]")], "mqtt", ["port 1883", "house"]),
    ("grpc twice", [ROOT, changed(KITCHEN, grpc="localhost:7001", parent="a:1")], "grpc", ["7001"]),
    ("a port twice in a node", [changed(KITCHEN, link="127.0.0.1:7002")], "link", ["already grpc"]),
    ("mqtt on grpc", [changed(KITCHEN, mqtt='["tcp6:7002"]')], "grpc", ["already mqtt"]),
    (
        "mqtt twice in a node",
        [changed(KITCHEN, mqtt='["tcp:1", "tcp:1:interface=127.0.0.1"]')],
        "mqtt",
        ["port 1 is already mqtt of node kitchen"],
    ),
]


def test_store_in_another_is_found_behind_a_link(tmp_path: Path) -> None:
    """Names alone say nothing of links; a name that only begins alike is another folder."""
    (tmp_path / "var" / "kitchen").mkdir(parents=True)
    (tmp_path / "link").symlink_to("var/kitchen")
    inside = write(tmp_path, KITCHEN, changed(ATTIC, data="link/attic"))
    _, errors = config.inspect_files(inside)
    assert ["data"] == [error.key for error in errors]

    beside = write(tmp_path, KITCHEN, changed(ATTIC, data="var/kitchenette"))
    assert 2 == len(config.load_files(beside))


@pytest.mark.parametrize(
    ("texts", "key", "words"), [row[1:] for row in TOGETHER], ids=[row[0] for row in TOGETHER]
)
def test_a_bad_tree_gets_one_line(
    tmp_path: Path, texts: list[str], key: str, words: list[str]
) -> None:
    """Files that are fine alone and not together; the same as documents of one file."""
    paths = write(tmp_path, *texts)

    nodes, errors = config.inspect_files(paths)

    assert (len(texts), [key]) == (len(nodes), sorted({error.key for error in errors}))
    for word in words:
        assert word in str(errors[0])
    assert re.match(rf"{tmp_path}/\d.yaml:\d+: {key}: [^\n]+$", str(errors[0]))
    paths[0].write_text("---\n".join(texts))
    with pytest.raises(ConfigError):
        config.load_file(paths[0])


def test_all_mistakes_are_told(tmp_path: Path) -> None:
    """One for each bad document, whatever file it is in."""
    paths = write(
        tmp_path, f"{changed(ROOT, node='a/b')}---\n{KITCHEN}", "", changed(ATTIC, zone="+")
    )

    nodes, errors = config.inspect_files(paths)

    assert (["kitchen"], ["node", "", "zone"]) == (
        [node.node for node in nodes],
        [error.key for error in errors],
    )


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    """A value that would take gigabytes to print is cut short."""
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    (path,) = write(tmp_path, "\n".join(["l0: &l0 x", *levels]))

    with pytest.raises(ConfigError, match="unknown key"):
        config.load_file(path)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=6,
)


KEYS = sorted({*config.NodeConfig.__slots__, "unknown"} - {"__weakref__", "lines"})


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_whatever_a_key_holds_the_answer_is_a_node_or_one_line(
    tmp_path: Path, key: str, value: object
) -> None:
    """No value makes the reader fail in another way."""
    document = yaml.safe_load(KITCHEN) | {key: value}
    path = tmp_path / "any.yaml"
    path.write_bytes(yaml.safe_dump(document, allow_unicode=False).encode("utf-8", "replace"))

    try:
        config.load_file(path)
    except ConfigError as error:
        assert 1 == len(str(error).splitlines())


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
)
def test_whatever_a_file_holds_the_answer_is_one_line(tmp_path: Path, raw: bytes) -> None:
    """No text makes the reader fail in another way."""
    path = tmp_path / "any.yaml"
    path.write_bytes(raw)

    with pytest.raises(ConfigError) as caught:
        config.load_file(path)

    assert 1 == len(str(caught.value).splitlines())
