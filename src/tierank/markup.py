"""HTML elements for pages and notebooks. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

# Void elements, which have no end tag.
_VOID = {"meta", "link", "input", "br", "path", "line", "rect", "circle"}


class Html(str):
    """Text that is markup already; any other text is escaped when it becomes part of an element."""


def element(name: str, /, *children: str, **attributes: object) -> Html:
    """One element. ``class_`` is ``class``, ``aria_label`` is ``aria-label``; attributes that are None are left out.

    >>> element("p", "a < b", element("b", "!"), class_="note", title='"')
    '<p class="note" title="&quot;">a &lt; b<b>!</b></p>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    shown = "".join(f' {key}="{escape(str(value))}"' for key, value in given.items())
    if name in _VOID:
        return Html(f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Html:
    """Children one after the other, texts escaped."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))
