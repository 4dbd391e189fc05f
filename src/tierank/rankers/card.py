"""The model card: README.md of a model folder, for people and for model hubs. Nothing reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierank.rankers.folder import encode_settings
from tierank.settings import declared

CARD = "README.md"


def model_card(ranker: Any, description: Mapping[str, Any]) -> bytes:
    """The card of a fitted ranker, from what its model.json says, so that a loaded model has the same."""
    kind, settings = description["ranker"], description["settings"]
    defaults = encode_settings({name: one.default for name, one in declared(ranker).items()}, lambda value, name: None)
    changed = {name: value for name, value in settings.items() if value != defaults.get(name, value)}
    names, best = description["feature_names"], getattr(ranker, "best_", {})
    rule = settings.get("rule", "tierank")
    is_imported = description["longest_query"] < 2  # nothing is learned from lists of one
    facts = [
        f"{description['n_features']:,} features",
        f"at most {description['longest_query']:,} documents per query",
        f"{'with' if description['has_missing'] else 'no'} missing values",
    ]
    column = description["query_column"]
    facts += [] if column is None else [f"query ids in the column `{column}`"]
    judged = _table(("metric", "value"), {name: f"{value:.4f}" for name, value in best.items()})
    of_rule = rule if isinstance(rule, str) else "of its own"
    lines = [
        "---",
        "library_name: tierank",
        "tags: [learning-to-rank, tabular]",
        "---",
        f"# {kind}",
        f"A model of tierank {description['tierank']}: it scores the documents of a query, and higher is better.",
        "## Use",
        '```python\nimport tierank\n\nranker = tierank.load("FOLDER")  # this folder',
        f"scores = ranker.predict(X{', qid=qid' if ranker.model_.needs_list else ''})\n```",
        "Or `tierank predict FOLDER data.csv`, `tierank serve FOLDER`. The folder holds no code.",
        "## Settings",
        _table(("setting", "value"), {_code(name): _code(repr(value)) for name, value in changed.items()})
        or "All have their default values.",
        *(["The others have their default values."] if changed else []),
        "## Training data",
        "Not known: the model was imported." if is_imported else f"{', '.join(facts).capitalize()}.",
        "## Validation",
        f"{judged}\n\nRule `{of_rule}`. These data helped to choose the model, so the values are a little too good."
        if judged
        else ("Not known." if is_imported else "Trained without validation data."),
        "## Features",
        f"{description['n_features']:,}, without names." if names is None else ", ".join(map(_code, names)),
    ]
    return ("\n".join(lines[:4]) + "\n\n" + "\n\n".join(lines[4:]) + "\n").encode()


def _code(text: str) -> str:
    """A text as code on one line, also in a table."""
    return f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', '/')}`"


def _table(heads: tuple[str, str], rows: Mapping[str, str]) -> str:
    cells = [heads, ("---", "---"), *rows.items()]
    return "\n".join(f"| {name} | {value} |" for name, value in cells) if rows else ""
