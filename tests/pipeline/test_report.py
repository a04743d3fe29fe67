"""The report: its numbers are those of the rows, and nothing that a topic says becomes markup."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.workload import BEGIN, LEDGER_ARROW, Row, delivery, message, write
from txbroker.model.errors import PipelineError
from txbroker.pipeline.jobs.report import report
from txbroker.pipeline.report_page.scales import duration, number, share, size

HOSTILE = (
    "a/<script>alert(1)</script>",
    'a/"onmouseover="alert(2)',
    "a/</title></svg><img src=x>",
    "a/\u202egnp.exe",
    "a/&lt;b&gt;",
    "a/" + "long" * 500,
)
TOPICS = ("home/kitchen", "home/hall", "home/bath", "plant", *HOSTILE)
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tables, tags, attributes and texts of a page; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.pop()
        if tag == "table":
            self.tables[self.texts["caption"][-1]] = self._rows

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)
        if {"td", "th"} & set(self._open):
            self._rows[-1][-1] += data


@attrs.frozen(kw_only=True)
class Made:
    """The rows, and the pages made of them: with a ledger and without."""

    messages: list[Row]
    deliveries: list[Row]
    text: str
    page: Page
    bare: Page


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two parts with gaps, an hour of messages, and hostile topics among them."""
    folder: Path = tmp_path_factory.mktemp("report")
    dice = random.Random(5)
    kept = [n for n in range(1, 901) if not (100 <= n < 150 or n in (300, 302))]
    rows = [
        message(
            offset,
            dice.choice(TOPICS),
            zone=zone,
            epoch=epoch,
            payload=b"x" * dice.randrange(50),
            client_id=f"c{dice.randrange(9)}",
            created=BEGIN + timedelta(seconds=offset * 4 + dice.random()),
        )
        for zone, epoch, offsets in (("", 1, kept), ("home", 2, range(40, 80)))
        for offset in offsets
    ]
    made = [delivery(row, "s", "house", after=dice.lognormvariate(-5, 1)) for row in rows[::2]]
    made += [delivery(rows[0], "early", "house", after=-0.5)]
    messages = spark.read.parquet(write(folder / "messages.parquet", rows))
    ledger = spark.read.parquet(write(folder / "ledger.parquet", made, LEDGER_ARROW))
    file = report(
        messages, ledger, out=folder / "new" / "report.html", title="<T&T>", owners={"": "house"}
    )
    bare = report(messages, out=folder / "bare.html", depth=1)
    return Made(
        messages=rows,
        deliveries=made,
        text=file.read_text(),
        page=Page(file.read_text()),
        bare=Page(bare.read_text()),
    )


def test_nothing_is_fetched_and_nothing_runs(made: Made) -> None:
    """No script, no link, no address, no handler; and the browser is told so."""
    for page in (made.page, made.bare):
        assert not {"script", "link", "img", "iframe", "object", "base", "a"} & set(page.tags)
        names = {name for name, _ in page.attributes}
        assert not {"src", "href", "srcset", "data", "action"} & names
        assert not [name for name in names if name.startswith("on")]
        assert "default-src 'none'; style-src 'unsafe-inline'" in dict(
            page.attributes
        ).values() or (
            ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
        )
    assert not re.search(r"url\(|@import|https?:|//[a-z]", made.text.partition("</style>")[0])
    assert "\u202e" not in made.text


def test_topics_are_shown_as_they_are_spelled(made: Made) -> None:
    """Whatever they hold; long ones are cut."""
    shown = [row[0] for row in made.page.tables["Subtrees with most messages"][1:]]
    for topic in HOSTILE[:3] + HOSTILE[4:5]:
        assert topic.partition("\n")[0] in {*shown, *(f"{s}" for s in shown)} or any(
            topic.startswith(name) for name in shown
        )
    assert "a/\\u202egnp.exe" in shown
    assert ["<T&T>"] == made.page.texts["h1"]
    assert 200 == max(map(len, shown))


def test_traffic_is_that_of_the_rows(made: Made) -> None:
    """Each subtree of two levels, in order of size."""
    counts = Counter(subtree(row) for row in made.messages)
    table = {row[0]: row for row in made.page.tables["Subtrees with most messages"][1:]}
    keys = {(r["zone"], r["epoch"], r["offset"]): subtree(r) for r in made.messages}
    delivered = Counter(keys[d["zone"], d["epoch"], d["offset"]] for d in made.deliveries)
    for name in ("home/kitchen", "home/hall", "plant"):
        own = [row for row in made.messages if subtree(row) == name]
        assert table[name][1:7] == [
            number(counts[name]),
            share(counts[name] / len(made.messages)),
            size(sum(len(row["payload"]) for row in own)),
            number(len({row["client_id"] for row in own})),
            number(delivered[name]),
            number(delivered[name] / counts[name]),
        ]
    # The owner of the zone `home` is not known.
    assert "unknown" == table["home/kitchen"][7]
    assert made.page.texts["dd"][:2] == [
        number(len(made.messages)),
        number(len(made.messages) / span(made.messages)),
    ]


def subtree(row: Row) -> str:
    """The first two levels."""
    return "/".join(row["topic"].split("/")[:2])


def span(rows: list[Row]) -> float:
    """Seconds from the first message to the last."""
    times = [row["created"] for row in rows]
    return float((max(times) - min(times)).total_seconds())


def test_rates_are_those_of_the_rows(made: Made) -> None:
    """Half a minute each, and every message is in one."""
    rows = made.page.tables["Windows of 30 s"][1:]
    counts = Counter(int((row["created"] - BEGIN).total_seconds() // 30) for row in made.messages)

    assert len(made.messages) == sum(int(row[1]) for row in rows)
    assert [number(counts[place]) for place in range(len(rows))] == [row[1] for row in rows]
    assert [number(counts[place] / 30) for place in range(1, 9)] == [row[2] for row in rows[1:9]]
    # The gap of 50 messages: windows without any are there, too.
    assert "0" in {row[1] for row in rows}


def test_latencies_are_those_of_the_rows(made: Made) -> None:
    """Percentiles by rank; the histogram has all but what the clocks make impossible."""
    times = {(r["zone"], r["epoch"], r["offset"]): r["created"] for r in made.messages}
    seconds = sorted(
        (d["time"] - times[d["zone"], d["epoch"], d["offset"]]).total_seconds()
        for d in made.deliveries
    )
    ranks = [seconds[math.ceil(part * len(seconds)) - 1] for part in (0.5, 0.95, 0.99, 1)]
    (whole,) = [row for row in made.page.tables["Latency by subtree"] if row[0] == "all"]

    assert [number(len(seconds)), *map(duration, ranks)] == whole[1:]
    bars = [text for text in made.page.texts["title"] if text.endswith(" deliveries")]
    assert len(seconds) - 1 == sum(int(text.split()[-2]) for text in bars)
    assert any("1 deliveries seem to have been made before" in t for t in made.page.texts["p"])


def test_without_a_ledger_it_says_so(made: Made) -> None:
    """And shows no number that it does not have."""
    assert any("no delivery ledger" in text for text in made.bare.texts["p"])
    assert {"unknown"} == {row[5] for row in made.bare.tables["Subtrees with most messages"][1:]}
    assert "Latency by subtree" not in made.bare.tables


def test_gaps_are_those_of_the_rows(made: Made) -> None:
    """Between the first and the last offset of a part; what was before the first is no gap."""
    assert [
        ["(root), epoch 1", "1", "900", "52"],
        ["home, epoch 2", "40", "79", "0"],
    ] == made.page.tables["Parts"][1:]
    assert [["100", "149", "50"], ["300", "300", "1"], ["302", "302", "1"]] == [
        row[1:4] for row in made.page.tables["Largest gaps"][1:]
    ]


def test_areas_are_in_proportion(made: Made) -> None:
    """Of the tiles in a group of the tree map."""
    tiles = re.findall(
        r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="([\d.]+)" rx="3" class="tile s\d">'
        r"<title>home/(\w+): (\d+) messages",
        made.text,
    )
    ratios = [float(wide) * float(high) / int(count) for wide, high, _, count in tiles]

    assert {"kitchen", "hall", "bath"} == {name for _, _, name, _ in tiles}
    assert min(ratios) == pytest.approx(max(ratios), rel=0.02)


def test_nothing_to_report_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """And so is a place that cannot be written to."""
    nothing = spark.read.parquet(write(tmp_path / "none.parquet", []))
    some = spark.read.parquet(write(tmp_path / "some.parquet", [message(1, "a")]))

    with pytest.raises(PipelineError, match="no messages to report on"):
        report(nothing, out=tmp_path / "report.html")
    with pytest.raises(PipelineError, match=r"some.parquet.*cannot be written"):
        report(some, out=tmp_path / "some.parquet" / "report.html")
    assert "<h2>Gaps</h2>" in report(some, out=tmp_path / "one.html").read_text()
