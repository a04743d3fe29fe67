"""
SHELL: writes the report, one HTML file about an archive or about any message rows.

`report_measures.py` counts, `charts.py` draws, `page.py` lays the page out. This module decides on
the contents and their wording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.inputs import Rows, history
from txbroker.pipeline.jobs.report_measures import (
    Latencies,
    Latency,
    Measures,
    MissingOffsets,
    TimeWindow,
    measure,
    third_of_decade,
)
from txbroker.pipeline.report_page.charts import (
    Bar,
    Group,
    Line,
    Tile,
    Track,
    bars,
    time_lines,
    tracks,
    tree_map,
)
from txbroker.pipeline.report_page.markup import Html
from txbroker.pipeline.report_page.page import PageSection, figure, folded, page, table
from txbroker.pipeline.report_page.scales import duration, number, share, size

ROWS = 50
"""Lines of a table of subtrees."""


def report(
    messages: Rows,
    ledger: Rows | None = None,
    *,
    out: Path | str,
    title: str = "Message traffic",
    depth: int = 2,
    owners: Mapping[str, str] | None = None,
) -> Path:
    """
    Write the report to the file `out`; return its path.

    `messages`, `ledger`, `depth` and `owners` are those of `traffic`. Raises `PipelineError` if
    there are no messages, or if the file cannot be written.
    """
    rows, made = history(messages, ledger)
    text = render(measure(rows, made, depth=depth, owners=owners), title)
    file = Path(out)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PipelineError(
            f"{file}: cannot be written: {error.strerror}; name another file"
        ) from None
    return file


def render(measures: Measures, title: str) -> Html:
    """Return the page."""
    totals = measures.totals
    subtitle = f"{totals.first:%Y-%m-%d %H:%M:%S} to {totals.last:%Y-%m-%d %H:%M:%S} UTC"
    seconds = max((totals.last - totals.first).total_seconds(), 0.001)
    facts = [
        ("Messages", number(totals.messages)),
        ("Messages a second", number(totals.messages / seconds)),
        ("Payload", size(totals.bytes)),
        ("Publishers", number(totals.publishers)),
        ("Topics", number(totals.topics)),
        ("Zones", number(totals.zones)),
    ]
    if measures.latencies is not None:
        whole = measures.latencies.whole
        facts.append(("Deliveries", number(whole.count if whole else 0)))
    sections = [_traffic(measures), _rates(measures), _latencies(measures.latencies)]
    return page(title, subtitle, facts, [*sections, _gaps(measures)])


# -- traffic


def _traffic(measures: Measures) -> PageSection:
    shown = measures.subtrees
    text = (
        "Messages by subtree of topics: the larger the area, the more messages. "
        f"{number(len(shown))} subtrees, those with most messages"
        if measures.others[0]
        else "Messages by subtree of topics: the larger the area, the more messages."
    )
    parts = [figure("Messages by subtree", tree_map("Messages by subtree", _groups(measures)))]
    columns = ["Subtree", "Messages", "Share", "Payload", "Publishers"]
    columns += ["Deliveries", "Fan-out", "Between nodes"]
    rows = [
        [
            row["subtree"] or "(no level)",
            number(row["messages"]),
            share(row["messages"] / measures.totals.messages),
            size(row["bytes"]),
            number(row["publishers"]),
            _or_unknown(row["deliveries"], number),
            _or_unknown(row["fan_out"], number),
            _or_unknown(row["cross_share"], share),
        ]
        for row in shown
    ]
    parts.append(table("Subtrees with most messages", columns, rows[:ROWS]))
    if len(rows) > ROWS:
        parts.append(folded("More subtrees", table("More subtrees", columns, rows[ROWS:])))
    if measures.others[0]:
        count, messages, payload = measures.others
        text += (
            f"; {number(count)} others have {number(messages)} messages, {size(payload)}, together."
        )
    return PageSection(heading="Traffic", text=text, parts=parts)


def _or_unknown(value: float | None, spell: Callable[[float], str]) -> str:
    return "unknown" if value is None else spell(value)


def _groups(measures: Measures) -> list[Group]:
    """Group the tiles by the first level in which subtrees differ."""
    names = [row["subtree"].split("/") for row in measures.subtrees]
    common = 0
    while all(len(name) > common + 1 and name[common] == names[0][common] for name in names):
        common += 1
    groups: dict[str, list[Tile]] = {}
    for row, name in zip(measures.subtrees, names, strict=True):
        part = share(row["messages"] / measures.totals.messages)
        tile = Tile(
            label=row["subtree"],
            value=row["messages"],
            details=(f"{number(row['messages'])} messages, {part}", number(row["messages"])),
        )
        groups.setdefault("/".join(name[: common + 1]), []).append(tile)
    found = [Group(label=label, tiles=tiles) for label, tiles in groups.items()]
    count, messages, _ = measures.others
    if messages:
        detail = f"{number(messages)} messages, {share(messages / measures.totals.messages)}"
        rest = Tile(label=f"{number(count)} others", value=messages, details=(detail,))
        found.append(Group(label="others", tiles=[rest]))
    return found


# -- rates


def _rates(measures: Measures) -> PageSection:
    starts = [moment.start for moment in measures.moments]
    published, delivered, payload = (
        Line(
            label=label,
            values=[
                moment.rate(count) for moment, count in zip(measures.moments, counts, strict=True)
            ],
        )
        for label, counts in (
            ("published", [moment.messages for moment in measures.moments]),
            ("delivered", [moment.deliveries for moment in measures.moments]),
            ("payload", [moment.bytes for moment in measures.moments]),
        )
    )
    lines = [published] if measures.latencies is None else [published, delivered]
    each = duration(measures.window)
    windows = table(
        f"Windows of {each}",
        ["From", "Messages", "Messages a second", "Payload", "Deliveries"],
        [_moment_row(moment) for moment in measures.moments],
    )
    parts = [
        figure(
            "Messages a second",
            time_lines("Messages a second over time", starts, lines, number),
            [line.label for line in lines],
        ),
        figure(
            "Payload a second",
            time_lines("Payload a second over time", starts, [payload], size, height=180.0),
        ),
        folded(f"Every window of {each}", windows),
    ]
    text = (
        f"Means of windows of {each}, by the time at which the owner received the message; "
        "a window has no rate where more than half of it lies before the first message or after "
        "the last."
    )
    if measures.latencies is not None:
        text += " Deliveries count where their message does."
    return PageSection(heading="Rates", text=text, parts=parts)


def _moment_row(moment: TimeWindow) -> list[str]:
    return [
        f"{moment.start:%Y-%m-%d %H:%M:%S}",
        number(moment.messages),
        _or_unknown(moment.rate(moment.messages), number),
        size(moment.bytes),
        _or_unknown(moment.deliveries, number),
    ]


# -- latencies


def _latencies(latencies: Latencies | None) -> PageSection:
    heading = "Latencies"
    if latencies is None:
        text = (
            "There is no delivery ledger, so nothing is known of deliveries. Nodes keep one with "
            "ledger: true in their topology file."
        )
        return PageSection(heading=heading, text=text)
    if latencies.whole is None:
        return PageSection(heading=heading, text="The ledger has no delivery of these messages.")
    text = (
        "From the receipt of a message at its owner to the client's acknowledgement, as far as the "
        "clocks of both nodes agree; of QoS 1 and 2, to durable sessions."
    )
    if latencies.early:
        text += (
            f" {number(latencies.early)} deliveries seem to have been made before their message "
            "was received: those clocks differ. The plot leaves them out."
        )
    columns = ["Subtree", "Deliveries", "Median", "95 %", "99 %", "Longest"]
    plot = bars("Deliveries by latency", _histogram(latencies), number)
    rows = [_latency_row(latencies.whole), *map(_latency_row, latencies.subtrees[:ROWS])]
    parts = [
        figure("Deliveries by latency (logarithmic: three bars for each power of ten)", plot),
        table("Latency by subtree", columns, rows),
    ]
    return PageSection(heading=heading, text=text, parts=parts)


def _latency_row(latency: Latency) -> list[str]:
    times = (latency.p50, latency.p95, latency.p99, latency.most)
    name = "all" if latency.name is None else latency.name
    return [name, number(latency.count), *map(duration, times)]


def _histogram(latencies: Latencies) -> list[Bar]:
    """Return a bar for every third of a decade from the first to the last that has deliveries."""
    thirds = latencies.histogram
    if not thirds:
        return []
    found = []
    for third in range(min(thirds), max(thirds) + 1):
        low, high = duration(third_of_decade(third)), duration(third_of_decade(third + 1))
        count = thirds.get(third, 0)
        title = f"{low} to {high}: {number(count)} deliveries"
        found.append(Bar(label=low, value=count, title=title))
    return found


# -- gaps


def _gaps(measures: Measures) -> PageSection:
    parts = [part for part in measures.parts if part.missing]
    text = (
        "Offsets that are missing between the first and the last of a part, that is of the journal "
        "of one zone at one epoch: what retention removed before it was read, what a full disk "
        "made a node leave out, QoS 0 where journals do not keep it, and what the filter of this "
        "report or of the archive left out."
    )
    if not parts:
        found = f"None: {number(measures.whole_parts)} parts, each without a gap. "
        return PageSection(heading="Gaps", text=found + text, parts=[_part_table(measures)])
    rows = [
        Track(
            label=_part_name(part.zone, part.epoch),
            first=part.first,
            last=part.last,
            holes=[
                (hole.first, hole.last)
                for hole in measures.holes
                if (hole.zone, hole.epoch) == (part.zone, part.epoch)
            ],
        )
        for part in parts
    ]
    columns = ["Part", "From offset", "To offset", "Missing", "After", "Before"]
    shown = [
        figure("Offsets that are there, and gaps (red)", tracks("Gaps by part", rows)),
        _part_table(measures),
        folded("Largest gaps", table("Largest gaps", columns, [_hole(h) for h in measures.holes])),
    ]
    return PageSection(heading="Gaps", text=text, parts=shown)


def _part_name(zone: str, epoch: int) -> str:
    return f"{zone or '(root)'}, epoch {epoch}"


def _part_table(measures: Measures) -> Html:
    columns = ["Part", "First offset", "Last offset", "Missing"]
    rows = [
        [
            _part_name(part.zone, part.epoch),
            str(part.first),
            str(part.last),
            number(part.missing),
        ]
        for part in measures.parts
    ]
    return table("Parts", columns, rows)


def _hole(hole: MissingOffsets) -> list[str]:
    return [
        _part_name(hole.zone, hole.epoch),
        str(hole.first),
        str(hole.last),
        number(hole.count),
        f"{hole.before:%Y-%m-%d %H:%M:%S}",
        f"{hole.after:%Y-%m-%d %H:%M:%S}",
    ]
