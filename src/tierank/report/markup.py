"""What pages are made of besides charts: tables, legends, data for scripts; and how metrics are named and ordered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from tierank.display import Html, element, join
from tierank.metrics.rules import parse_metric
from tierank.report.tabulate import Table

# Number of colours in the style sheet; further series start again with the first.
N_COLOURS = 8
# Parts of a page: the name of each in links, its title, and what is in it.
Sections = Sequence[tuple[str, str, Sequence[str]]]


def grid(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str | None = None, class_: str | None = None
) -> Html:
    """A plain table; the first cell of a row is its heading."""
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    titled = () if caption is None else (element("caption", caption),)
    whole = element("table", *titled, element("thead", head), element("tbody", *body), class_=class_)
    return element("div", whole, class_="scroll")


def from_table(found: Table) -> Html:
    """A table of the text reports as HTML, with its notes."""
    return join([grid(found.columns, found.rows), *map(note, found.notes)])


def note(text: str) -> Html:
    """A paragraph of small text."""
    return element("p", text, class_="note")


def folded(title: str, *children: str) -> Html:
    """Parts below a title, collapsed until clicked."""
    return element("details", element("summary", title), *children)


def key(colour: int) -> Html:
    """A dot in one of the colours of the series."""
    return element("i", class_=f"c{colour % N_COLOURS}")


def legend(keys: Iterable[tuple[str, int]]) -> Html:
    """The names of series with their colours."""
    return element("ul", *(element("li", key(colour), name) for name, colour in keys), class_="legend")


def as_json(name: str, content: Any) -> Html:
    """Data inside a page. ``<`` and similar characters are escaped, so that no text can end the block."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Html(text), type="application/json", id=name)


def package_file(name: str) -> Html:
    """A script or style sheet of this package."""
    return Html((Path(__file__).parent / name).read_text(encoding="utf-8"))


def filled(name: str, **parts: str) -> Html:
    """A template of this package with its parts; its line breaks are for people."""
    return Html(Template("".join(map(str.strip, package_file(name).splitlines()))).substitute(parts))


def make_page(title: str, intro: Sequence[str], sections: Sections, *more: str) -> str:
    """A page with style and scripts included. By its policy, the browser refuses whatever is not in the page."""
    links = join(element("a", shown, href=f"#{name}") for name, shown, _ in sections)
    parts = join(
        element("section", element("h2", shown, id=f"{name}-title"), *content, id=name, aria_labelledby=f"{name}-title")
        for name, shown, content in sections
    )
    texts = {"title": join([title]), "intro": join(intro), "links": links, "sections": parts, "more": join(more)}
    page = filled("page.html", **texts, style=package_file("page.css"), script=package_file("page.js"))
    return f"<!DOCTYPE html>\n{page}\n"


def display(metric: str) -> str:
    """The name of a metric in running text.

    >>> display("ndcg@10"), display("precision@5"), display("map")
    ('NDCG@10', 'Precision@5', 'MAP')
    """
    name, at, k = metric.partition("@")
    return f"{name.upper() if len(name) <= 4 else name.capitalize()}{at}{k}"


def by_family(metrics: Sequence[str]) -> list[str]:
    """NDCG first, then ERR, then the others; by cutoff within each.

    >>> by_family(["err@3", "map", "ndcg@10", "ndcg@1"])
    ['ndcg@1', 'ndcg@10', 'err@3', 'map']
    """

    def place(metric: str) -> tuple[int, str, float]:
        name, k = parse_metric(metric)
        return {"ndcg": 0, "err": 1}.get(name, 2), name, k or float("inf")

    return sorted(metrics, key=place)


def deepest(metrics: Sequence[str], name: str) -> str:
    """The metric of this name with the deepest cutoff, or else the last metric.

    >>> deepest(["ndcg@1", "ndcg@10", "err@5"], "ndcg")
    'ndcg@10'
    """
    same = [metric for metric in by_family(metrics) if parse_metric(metric)[0] == name]
    return same[-1] if same else metrics[-1]
