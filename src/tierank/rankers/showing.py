"""What notebooks show of a ranker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tierank import notebook
from tierank.markup import Html
from tierank.settings import declared

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker

# Features whose importance is shown.
_IMPORTANT = 15


def as_html(ranker: Ranker) -> str:
    """Settings and, once fitted, history and importances."""
    name = type(ranker).__name__
    if not hasattr(ranker, "model_"):
        return notebook.sheet(f"{name}, not fitted", *_settings(ranker))
    best = ", ".join(f"{metric} {value:.4f}" for metric, value in ranker.best_.items())
    fitted = notebook.note(f"fitted on {ranker.seen_.n_features:,} features{f'; best: {best}' if best else ''}")
    return notebook.sheet(name, fitted, *_settings(ranker), *_history(ranker), *_importances(ranker))


def _settings(ranker: Ranker) -> list[Html]:
    settings, known = ranker.get_params(deep=False), declared(ranker)
    rows = [[name, _short(value)] for name, value in settings.items()]
    changed = [row for row in rows if row[0] not in known or settings[row[0]] != known[row[0]].default]
    parts = [notebook.grid(["setting", "value"], changed)] if changed else []
    return [
        *parts,
        notebook.folded(f"all {len(rows)} settings", notebook.grid(["setting", "value"], rows, len(rows))),
    ]


def _history(ranker: Ranker) -> list[Html]:
    history = ranker.history_
    metric = next((name for name in (history[0] if history else {}) if name in ranker.best_), None)
    if metric is None:
        return []
    values = [np.nan if row.get(metric) is None else float(row[metric]) for row in history]
    return [notebook.curve(f"{metric} on validation data, {len(values)} rounds", values)]


def _importances(ranker: Ranker) -> list[Html]:
    names, gains = ranker.named_importances()
    if not names:
        return []
    top = np.argsort(-gains, kind="stable")[:_IMPORTANT]
    drawn = notebook.bars([names[j] for j in top], gains[top].tolist(), "gain")
    return [notebook.folded(f"importances of {len(top)} features", drawn)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
