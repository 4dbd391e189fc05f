"""Docstrings as the reference shows them: MkDocs knows neither doctests nor the simple tables of reStructuredText."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_TABLE = re.compile(r"^=+ +=+\n(.*?)\n=+ +=+$", re.MULTILINE | re.DOTALL)


class Readable(Extension):
    """Docstrings with lists for tables, and a section for doctests that have none."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the text before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = with_examples(with_lists(obj.docstring.value))


def with_lists(text: str) -> str:
    """Tables of two columns as lists."""
    return _TABLE.sub(lambda found: _as_list(found[1]), text)


def _as_list(rows: str) -> str:
    items: list[str] = []
    for row in rows.splitlines():
        first, _, rest = row.partition("  ")
        if row.startswith(" "):
            items[-1] += f" {row.strip()}"
        else:
            items.append(f"- {first.strip()}: {rest.strip()}")
    return "\n".join(items)


def with_examples(text: str) -> str:
    """A heading before the first doctest, if it has none."""
    if ">>> " not in text or re.search(r"^Examples\n-+$", text, re.MULTILINE):
        return text
    before, after = re.split(r"^(?=>>> )", text, maxsplit=1, flags=re.MULTILINE)
    return f"{before}Examples\n--------\n{after}"
