"""RULES: what the metrics mean, where evaluation tools differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tierank.errors import ParameterError
from tierank.metrics.formulas import METRICS
from tierank.relevance import GAINS, Gain, as_gain
from tierank.settings import Number

Ties = Literal["average", "input", "worst", "document id"]
Unjudged = Literal["zero", "condense"]
ErrMax = Literal["data", "query"] | float | None

WHY_LEFT_OUT = "no rating above 0"

_TIES = {
    "average": "averaged over all their orders",
    "input": "in input order",
    "worst": "lower gain first",
    "document id": "by document id, descending",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the metrics mean: every choice on which evaluation tools differ. ``RULES`` has the predefined rules.

    The defaults are those of the rule ``tierank``. To make your own rule, start from a predefined one, as in the
    example.

    Parameters
    ----------
    name : str
        The name in tables.
    gain : str, list, mapping or function, default "exp2"
        ``"exp2"``: 2^r - 1; ``"linear"``: r; a list with the gains of the ratings 0, 1, 2, ...; a mapping from ratings
        to gains; or a function from an array of ratings to gains.
    ties : {"average", "input", "worst", "document id"}, default "average"
        Documents with the same score. ``"average"``: the expected value over all their orders; ``"input"``: the order
        of the rows; ``"worst"``: lower gain first; ``"document id"``: by id, descending, with scores in single
        precision, as trec_eval does (without ids the row number is the id, so later rows come first).
    empty : mapping of str to float, optional
        The value of each metric for queries with no rating above 0; metrics that it does not name get 0. None leaves
        such queries out (NaN).
    err_max : {"data", "query"}, float or None, default "data"
        The top rating of ERR: the highest of the data set, of each query, or a number. None: the rule has no ERR.
    relevant_from : float, default 0
        map, mrr, precision and recall count documents with this rating or a higher one as relevant, if it is above 0.
    ap_divisor : {"min(k, relevant)", "relevant"}, default "min(k, relevant)"
        What AP@k is divided by.
    ap_depth : {"k", "list"}, default "k"
        How deep map@k looks; with ``"list"`` k is ignored.
    precision_divisor : {"k", "min(k, n)"}, default "k"
        What precision@k is divided by; n is the number of documents in the list.
    short_ndcg : {"kept", "zero"}, default "kept"
        ndcg@k of a list with fewer than k documents: its value, or 0.
    unjudged : {"zero", "condense"}, default "zero"
        Documents without a rating (NaN). ``"zero"``: they count as not relevant, as in trec_eval; ``"condense"``: they
        are taken out of the lists first. ``judged``, ``rbp_residual`` and the bounds of NDCG always read the whole
        list.
    persistence : float, default 0.8
        The persistence of rbp: the chance that a reader continues from one document to the next.

    Examples
    --------
    >>> from dataclasses import replace
    >>> shop = replace(RULES["tierank"], name="shop", gain={0: 0, 1: 1, 2: 5}, relevant_from=2)
    >>> print(shop.describe())
    shop: gain {0: 0, 1: 1, 2: 5}; discount 1/log2(1 + rank); tied scores averaged over all their orders; queries
    with no rating above 0 left out; ERR by the highest rating of the data set; relevant: rating from 2 up; AP@k
    divided by min(k, relevant); precision@k divided by k
    """

    name: str
    gain: Gain = "exp2"
    ties: Ties = "average"
    empty: Mapping[str, float] | None = None
    err_max: ErrMax = "data"
    relevant_from: float = 0.0
    ap_divisor: Literal["min(k, relevant)", "relevant"] = "min(k, relevant)"
    ap_depth: Literal["k", "list"] = "k"
    precision_divisor: Literal["k", "min(k, n)"] = "k"
    short_ndcg: Literal["kept", "zero"] = "kept"
    unjudged: Unjudged = "zero"
    persistence: float = 0.8

    def __post_init__(self) -> None:
        Number(above=0, below=1).check("persistence", self.persistence)
        for setting, known in _SETTINGS.items():
            if (value := getattr(self, setting)) not in known:
                raise ParameterError.unknown(setting, value, known)
        object.__setattr__(self, "gain", as_gain(self.gain))  # rules are compared, and arrays cannot be
        if isinstance(self.err_max, str) and self.err_max not in ("data", "query"):
            raise ParameterError.unknown("err_max", self.err_max, ("data", "query"))
        for metric in self.empty or {}:
            if metric not in METRICS:
                raise ParameterError.unknown("metric", metric, METRICS)

    def describe(self) -> str:
        """The rule in words, as one line."""
        relevant = f"from {self.relevant_from:g} up" if self.relevant_from > 0 else "above 0"
        parts = [
            f"gain {self._gain_words()}",
            "discount 1/log2(1 + rank)",
            f"tied scores {_TIES[self.ties]}",
            f"queries with {WHY_LEFT_OUT} {self._empty_words()}",
            self._err_words(),
            f"relevant: rating {relevant}",
            "map reads the whole list" if self.ap_depth == "list" else f"AP@k divided by {self.ap_divisor}",
            f"precision@k divided by {self.precision_divisor}",
        ]
        if self.short_ndcg == "zero":
            parts.append("NDCG@k of a list shorter than k is 0")
        if self.unjudged == "condense":
            parts.append("unjudged documents left out")
        if self.persistence != Rule.persistence:
            parts.append(f"RBP with persistence {self.persistence:g}")
        return f"{self.name}: {'; '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with all settings of the rule."""
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__}
        empty = None if self.empty is None else dict(self.empty)
        return settings | {"gain": self._gain_words(), "empty": empty}

    def _gain_words(self) -> str:
        if isinstance(self.gain, str):
            return GAINS[self.gain]
        if isinstance(self.gain, tuple):
            return f"[{', '.join(f'{gain:g}' for gain in self.gain)}]"
        return str(dict(self.gain)) if isinstance(self.gain, Mapping) else getattr(self.gain, "__name__", "of the user")

    def _empty_words(self) -> str:
        if self.empty is None:
            return "left out"
        if not self.empty:
            return "count as 0"
        return "count as " + ", ".join(f"{metric} {value:g}" for metric, value in self.empty.items()) + ", others 0"

    def _err_words(self) -> str:
        if self.err_max is None:
            return "no ERR"
        highest = {"data": "the highest rating of the data set", "query": "the highest rating of the query"}
        return f"ERR by {highest.get(str(self.err_max), f'a top rating of {self.err_max}')}"


# The settings of a rule that take one of a few values.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "ties": get_args(Ties),
    "ap_divisor": ("min(k, relevant)", "relevant"),
    "ap_depth": ("k", "list"),
    "precision_divisor": ("k", "min(k, n)"),
    "short_ndcg": ("kept", "zero"),
    "unjudged": get_args(Unjudged),
}

_ZERO: dict[str, float] = {}

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(name="tierank"),
        Rule(name="wsdm20", ties="input", err_max="query"),
        Rule(name="letor", ties="input", empty=_ZERO),
        Rule(name="mslr", ties="input", empty=_ZERO, relevant_from=2, short_ndcg="zero"),
        Rule(name="lightgbm", ties="input", empty={"ndcg": 1, "map": 1}, err_max=None),
        Rule(name="xgboost", ties="input", empty={"ndcg": 1, "map": 1}, err_max=None, precision_divisor="min(k, n)"),
        Rule(
            name="catboost",
            ties="worst",
            empty={"ndcg": 1, "recall": 1},
            err_max=None,
            precision_divisor="min(k, n)",
        ),
        Rule(name="sklearn", gain="linear", empty=_ZERO, err_max=None),
        Rule(name="trec_eval", gain="linear", ties="document id", empty=_ZERO, err_max=None, ap_divisor="relevant"),
        Rule(name="ranklib", ties="input", empty=_ZERO, err_max=4, ap_depth="list", precision_divisor="min(k, n)"),
        Rule(name="yahoo", ties="input", empty={"ndcg": 0.5}),
    )
}


def as_rule(rule: str | Rule) -> Rule:
    """The rule of this name, or the rule itself; ``:condense`` after a name takes unjudged documents out of the lists.

    >>> as_rule("letor").unjudged, as_rule("letor:condense").unjudged
    ('zero', 'condense')
    """
    if isinstance(rule, Rule):
        return rule
    name, colon, unjudged = str(rule).partition(":")
    if name not in RULES:
        raise ParameterError.unknown("rule", rule, RULES)
    return replace(RULES[name], name=rule, unjudged=unjudged) if colon else RULES[name]  # type: ignore[arg-type]
