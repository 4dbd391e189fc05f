"""Display of evaluations and comparisons: counts and segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tierank import notebook
from tierank.markup import Html
from tierank.metrics import WHY_LEFT_OUT
from tierank.segments import HOW, Segment, SegmentContrast

if TYPE_CHECKING:
    from tierank.evaluation.compared import Comparison
    from tierank.evaluation.judged import Evaluation


def format_number(value: float, sign: str = "") -> str:
    """Four decimals; a dash if the number is undefined. With ``sign="+"``, positive numbers have a plus sign."""
    return "-" if math.isnan(value) else f"{value:{sign}.4f}"


def describe_counts(evaluation: Evaluation) -> dict[str, Any]:
    """The rule and how many queries and documents it counts, for JSON."""
    return {
        "rule": evaluation.rule.to_dict(),
        "n_queries": evaluation.n_queries,
        "n_empty": evaluation.n_empty,
        "n_left_out": evaluation.n_left_out,
        "n_unjudged": evaluation.n_unjudged,
        "why_left_out": WHY_LEFT_OUT if evaluation.n_left_out else None,
    }


def describe_segments(segments: Sequence[Segment] | Sequence[SegmentContrast]) -> dict[str, Any]:
    """The segments for JSON; nothing if there are none."""
    return {"segments": [segment.to_dict() for segment in segments]} if segments else {}


def segments_to_pandas(segments: Sequence[Segment] | Sequence[SegmentContrast]) -> Any:
    """A pandas table with a row per segment."""
    rows = [segment.to_dict() for segment in segments]
    return notebook.as_pandas({name: [row[name] for row in rows] for name in (rows[0] if rows else {})})


def segments_html(segments: Sequence[Segment] | Sequence[SegmentContrast]) -> list[Html]:
    """The segments, collapsed, with the worse ones shown above."""
    if not segments:
        return []
    n_worse = sum(one.verdict == "worse" for one in segments)
    return [
        notebook.folded(f"{len(segments)} segments, {n_worse} worse", notebook.grid(*_segments_table(segments))),
        notebook.note(HOW),
    ]


def segments_text(segments: Sequence[Segment] | Sequence[SegmentContrast]) -> list[str]:
    """The segments as lines of text, the worst first."""
    return [*notebook.lines(*_segments_table(segments)), HOW] if segments else []


def _segments_table(segments: Sequence[Segment] | Sequence[SegmentContrast]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a table, the worst segments first."""
    every: list[Segment | SegmentContrast] = [*segments]
    is_contrast = isinstance(every[0], SegmentContrast)
    heads = ["segment", *["system"] * is_contrast, "metric", "queries", "difference", "verdict"]
    rows = [
        [
            f"{one.attribute}: {one.value}",
            *([one.system] if isinstance(one, SegmentContrast) else []),
            one.metric,
            f"{one.n_queries:,}",
            format_number(one.difference, "+"),
            one.verdict,
        ]
        for one in sorted(every, key=lambda one: (one.verdict != "worse", one.difference))
    ]
    return heads, rows


def notes_html(judged: Evaluation | Comparison) -> list[Html]:
    """The counts and the rule, below a table."""
    return [notebook.note(judged.describe_queries()), notebook.note(f"rule {judged.rule.describe()}")]
