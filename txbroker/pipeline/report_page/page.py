"""
CORE: lays the report out as one HTML page that loads no script, font or image.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txbroker.pipeline.report_page.markup import Html, element, joined, visible

STYLE = """
:root{color-scheme:light dark;--page:#f5f5f2;--surface:#fff;--ink:#1a1a18;--faint:#5d5c57;
--rule:#dddcd6;--hole:#d03b3b;--series-1:#2a78d6;--series-2:#c2571f;--series-3:#12855c;
--series-4:#a87400;--series-5:#c24d86;--series-6:#4a3aa7;--series-7:#5c7a1e;--series-8:#77756e}
@media(prefers-color-scheme:dark){:root{--page:#141413;--surface:#1f1f1d;--ink:#f2f1ec;
--faint:#b0aea5;--rule:#3a3936;--hole:#f07070;--series-1:#5aa2f0;--series-2:#ef8a55;
--series-3:#3fbf8f;--series-4:#d9a53a;--series-5:#e587b4;--series-6:#a79df0;--series-7:#a3c25c;
--series-8:#a3a197}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:2rem 1.25rem 4rem;background:var(--page);
color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .25rem}h2{font-size:1.2rem;margin:0 0 .25rem}
p{margin:.25rem 0 1rem;color:var(--faint);max-width:75ch}
section{background:var(--surface);border:1px solid var(--rule);border-radius:10px;
padding:1.25rem;margin:1.25rem 0}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.75rem;
margin:1.25rem 0}
dl div{background:var(--surface);border:1px solid var(--rule);border-radius:10px;
padding:.75rem 1rem}
dt{color:var(--faint);font-size:.85rem}dd{margin:0;font-size:1.35rem;font-weight:600;
font-variant-numeric:tabular-nums}
figure{margin:1rem 0;overflow-x:auto}figcaption{font-weight:600;margin-bottom:.35rem}
svg{display:block;width:100%;min-width:640px;height:auto;font-size:13px;fill:var(--ink)}
.strong{font-weight:600}.faint,.axis{fill:var(--faint)}.middle{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:var(--rule)}.hover{fill:transparent}.hover:hover{fill:var(--ink);fill-opacity:.07}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.tile{fill-opacity:.26}.tile:hover{fill-opacity:.5}
.hole{fill:var(--hole)}.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;
margin:0 .4em 0 0}.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;margin:.25rem 0;
font-size:.9rem}
.scroll{overflow-x:auto;margin-top:1rem}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.25rem 0}
th,td{padding:.3rem .75rem .3rem 0;border-bottom:1px solid var(--rule);text-align:right;
vertical-align:top}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere;font-weight:400;min-width:12ch}
thead th{color:var(--faint);font-weight:600;white-space:nowrap}
summary{cursor:pointer;color:var(--faint);margin-top:1rem}
footer{color:var(--faint);font-size:.85rem}
@media print{section{break-inside:avoid}}
""" + "".join(
    f".s{n}{{fill:var(--series-{n})}}.tile.s{n}{{stroke:var(--series-{n})}}"
    f".line.s{n}{{fill:none;stroke:var(--series-{n})}}.key.s{n}{{background:var(--series-{n})}}"
    for n in range(1, 9)
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Policy that makes the browser refuse any content that a topic may have smuggled in."""


@attrs.frozen(slots=True, kw_only=True)
class PageSection:
    """A heading, one or two sentences below it, and the contents."""

    heading: str
    text: str
    parts: Sequence[Html] = ()


def page(
    title: str, subtitle: str, facts: Sequence[tuple[str, str]], sections: Sequence[PageSection]
) -> Html:
    """Return the whole document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(STYLE)),
    )
    cards = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    body = element(
        "body",
        element("header", element("h1", title), element("p", subtitle)),
        element("dl", *cards),
        element("main", *map(_section, sections)),
        element("footer", "Made by txbroker pipeline report. Times are UTC."),
    )
    return joined(Html("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), Html("\n"))


def figure(caption: str, plot: Html, legend: Sequence[str] = ()) -> Html:
    """Return a plot with a caption; `legend` names the series of lines, in order."""
    keys = [
        element("span", element("span", class_=f"key s{number}"), name)
        for number, name in enumerate(legend, 1)
    ]
    shown = [element("div", *keys, class_="legend")] if keys else []
    return element("figure", element("figcaption", caption), *shown, plot)


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Return a table whose first column names the rows."""
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    body = [
        element(
            "tr",
            element("th", element("bdi", visible(first)), scope="row"),
            *(element("td", cell) for cell in rest),
        )
        for first, *rest in rows
    ]
    whole = element(
        "table", element("caption", caption), element("thead", head), element("tbody", *body)
    )
    # Without `tabindex`, a table wider than the screen cannot be scrolled by keyboard.
    return element(
        "div", whole, class_="scroll", tabindex=0, role="region", aria_label=f"{caption} (table)"
    )


def folded(summary: str, content: Html) -> Html:
    """Return content that is folded until the reader opens it."""
    return element("details", element("summary", summary), content)


def _section(section: PageSection) -> Html:
    return element(
        "section", element("h2", section.heading), element("p", section.text), *section.parts
    )
