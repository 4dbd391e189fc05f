"""Parts of HTML pages. All text is escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from tierank.markup import Html as Html
from tierank.markup import element as element
from tierank.markup import join as join
from tierank.report.tables import Table

# Nothing may be loaded or sent: the browser refuses everything that is not in the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def table(
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
    return join([table(found.columns, found.rows), *(element("p", note, class_="note") for note in found.notes)])


def section(name: str, title: str, *children: str) -> Html:
    """A part of a page that the navigation can jump to."""
    return element(
        "section", element("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title"
    )


def as_json(name: str, content: Any) -> Html:
    """Data inside a page. ``<`` and similar characters are escaped, so that no text can end the block."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Html(text), type="application/json", id=name)


def make_page(title: str, intro: Sequence[str], sections: Sequence[tuple[str, str, Sequence[str]]], *more: str) -> str:
    """A page from its sections (name, title, content), with style and scripts included."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>'),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", _file("page.css")),
    )
    links = [element("a", name_shown, href=f"#{name}") for name, name_shown, _ in sections]
    switch = element("button", "Dark", type="button", id="theme", class_="quiet", aria_pressed="false", hidden="")
    header = element(
        "header",
        element("div", element("h1", title), switch, class_="top"),
        *intro,
        element("nav", *links, aria_label="Sections"),
    )
    parts = [section(name, title_shown, *content) for name, title_shown, content in sections]
    footer = element("footer", "Made by tierank. This file needs no network.")
    body = element("body", header, element("main", *parts), footer, *more, element("script", _file("page.js")))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _file(name: str) -> Html:
    return Html((Path(__file__).parent / name).read_text(encoding="utf-8"))
