"""Rules, which fix what metrics mean where evaluation tools differ, and the names of metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tierank.arrays import Floats
from tierank.data.relevance import GAINS, Gain, as_gain
from tierank.errors import ParameterError
from tierank.metrics.formulas import METRICS, WITHOUT_CUTOFF
from tierank.settings import Choice, Kind, Number, Optional, as_choice, check_type

Ties = Literal["average", "input", "worst", "document id"]

WHY_LEFT_OUT = "no rating above 0"

# What the numbers and the names among the settings of a rule may be.
_KINDS: dict[str, Kind] = {
    "ties": Choice(("average", "input", "worst", "document id")),
    "relevant_from": Number(0),
    "ap_divisor": Choice(("min(k, relevant)", "relevant")),
    "ap_depth": Choice(("k", "list")),
    "precision_divisor": Choice(("k", "min(k, n)")),
    "short_ndcg": Choice(("kept", "zero")),
    "unjudged": Choice(("zero", "condense")),
    "persistence": Number(above=0, below=1),
}
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
        are taken out of the lists first. ``judged`` and ``rbp_residual`` always read the whole
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
    err_max: Literal["data", "query"] | float | None = "data"
    relevant_from: float = 0.0
    ap_divisor: Literal["min(k, relevant)", "relevant"] = "min(k, relevant)"
    ap_depth: Literal["k", "list"] = "k"
    precision_divisor: Literal["k", "min(k, n)"] = "k"
    short_ndcg: Literal["kept", "zero"] = "kept"
    unjudged: Literal["zero", "condense"] = "zero"
    persistence: float = 0.8

    def __post_init__(self) -> None:
        check_type("name", self.name, str, "it stands in tables")
        for setting, kind in _KINDS.items():
            kind.check(setting, getattr(self, setting))
        object.__setattr__(self, "gain", as_gain(self.gain))  # rules are compared, and arrays cannot be
        of_err = Choice(("data", "query")) if isinstance(self.err_max, str) else Optional(Number(), "no ERR")
        of_err.check("err_max", self.err_max)
        if self.empty is not None:
            check_type("empty", self.empty, Mapping, "values of metrics by name")
            for metric, value in self.empty.items():
                Number().check(f"empty, {as_choice('metric', metric, METRICS)}", value)

    def describe(self) -> str:
        """The rule in words, as one line."""
        empty = "left out" if self.empty is None else "count as 0"
        if self.empty:
            values = ", ".join(f"{metric} {value:g}" for metric, value in self.empty.items())
            empty = f"count as {values}, others 0"
        tops = {"data": "the highest rating of the data set", "query": "the highest rating of the query"}
        err_top = tops.get(str(self.err_max), f"a top rating of {self.err_max}")
        parts = [
            f"gain {self._gain_in_words()}",
            "discount 1/log2(1 + rank)",
            f"tied scores {_TIES[self.ties]}",
            f"queries with {WHY_LEFT_OUT} {empty}",
            "no ERR" if self.err_max is None else f"ERR by {err_top}",
            f"relevant: rating {f'from {self.relevant_from:g} up' if self.relevant_from > 0 else 'above 0'}",
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
        return settings | {"gain": self._gain_in_words(), "empty": empty}

    def _gain_in_words(self) -> str:
        if isinstance(self.gain, str):
            return GAINS[self.gain]
        if isinstance(self.gain, tuple):
            return f"[{', '.join(f'{gain:g}' for gain in self.gain)}]"
        return str(dict(self.gain)) if isinstance(self.gain, Mapping) else getattr(self.gain, "__name__", "of the user")


_ZERO: dict[str, float] = {}
_LIGHTGBM: dict[str, float] = {"ndcg": 1, "map": 1}
_CATBOOST: dict[str, float] = {"ndcg": 1, "recall": 1}

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(name="tierank"),
        Rule(name="wsdm20", ties="input", err_max="query"),
        Rule(name="letor", ties="input", empty=_ZERO),
        Rule(name="mslr", ties="input", empty=_ZERO, relevant_from=2, short_ndcg="zero"),
        Rule(name="lightgbm", ties="input", empty=_LIGHTGBM, err_max=None),
        Rule(name="xgboost", ties="input", empty=_LIGHTGBM, err_max=None, precision_divisor="min(k, n)"),
        Rule(name="catboost", ties="worst", empty=_CATBOOST, err_max=None, precision_divisor="min(k, n)"),
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


# A name such as "ndcg@10", or a caller's function of the ratings and scores of one query.
Metric = str | Callable[[Floats, Floats], float]


def default_metrics(rule: str | Rule) -> tuple[str, ...]:
    """The default metrics: NDCG at 1, 3, 5 and 10, and ERR if the rule has it."""
    ndcgs = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
    return ndcgs if as_rule(rule).err_max is None else (*ndcgs, "err@10")


def parse_metric(text: str) -> tuple[str, int | None]:
    """The name and the cutoff of a metric; no cutoff means the whole list.

    >>> parse_metric("ndcg@10"), parse_metric("MAP")
    (('ndcg', 10), ('map', None))
    """
    name, at, cutoff = metric_name(str(text)).partition("@")
    if name not in METRICS:
        short = re.fullmatch(r"(\D+?)[ _-]?(\d+)", name.lower())
        if short is not None and short[1] in METRICS:
            raise ParameterError(f"did you mean '{short[1]}@{short[2]}'?", where=f"unknown metric {text!r}")
        raise ParameterError.unknown("metric", name, METRICS)
    if not at:
        return name, None
    if name in WITHOUT_CUTOFF:
        raise ParameterError(where=f"metric {text!r}", expected=f"{name!r}, which has no cutoff")
    if not re.fullmatch("[0-9]{1,15}", cutoff) or int(cutoff) == 0:
        fix = f"write '{name}@10', or '{name}' for the whole list"
        raise ParameterError(
            where=f"metric {text!r}", expected="a cutoff of 1 or more after '@'", got=repr(cutoff), fix=fix
        )
    return name, int(cutoff)


# Names of ir_measures, trec_eval and ranx, in small letters.
_OTHER_NAMES = {
    "ap": "map",
    "map_cut": "map",
    "ndcg_cut": "ndcg",
    "p": "precision",
    "r": "recall",
    "rr": "mrr",
    "recip_rank": "mrr",
    "success": "hit_rate",
    "r-precision": "rprec",
}


def metric_name(metric: Metric) -> str:
    """The name of a metric in tables: of a function, its ``__name__``; that of ours in small letters, however given.

    Names of other tools are understood: those of ir_measures and its objects, trec_eval and ranx.

    >>> metric_name("nDCG@10"), metric_name("P@5"), metric_name("ndcg_cut_10"), metric_name("AP")
    ('ndcg@10', 'precision@5', 'ndcg@10', 'map')
    """
    if isinstance(metric, str) or _is_of_ir_measures(metric):
        metric = str(metric)
        name, at, cutoff = metric.lower().partition("@")
        if of_trec := re.fullmatch(r"(ndcg_cut|map_cut|p|recall|success)_(\d+)", name):
            name, at, cutoff = of_trec[1], "@", of_trec[2]
        name = _OTHER_NAMES.get(name, name)
        return f"{name}{at}{cutoff}" if name in METRICS else metric
    name = getattr(metric, "__name__", None) or type(metric).__name__
    if not callable(metric) or not name.isidentifier():
        expected = "names such as 'ndcg@10', or functions (ratings, scores) -> number that have a __name__"
        raise ParameterError(argument="metrics", expected=expected, got=repr(metric))
    return name


def _is_of_ir_measures(metric: object) -> bool:
    return type(metric).__module__.partition(".")[0] == "ir_measures"


def as_metric_of(what: str, metric: Metric, known: Iterable[str]) -> str:
    """One of the metrics of a result, such as ``"evaluation"``."""
    names = list(known)
    return as_choice(f"metric of this {what}", metric if metric in names else metric_name(metric), names)


def as_metrics(metrics: Metric | Iterable[Metric] | None, rule: Rule) -> dict[str, Metric]:
    """The metrics by name, each once."""
    if metrics is None:
        return {name: name for name in default_metrics(rule)}
    asked: list[Any] = [metrics]  # one that is neither a name nor a function is refused by what follows
    if not isinstance(metrics, str) and not callable(metrics) and isinstance(metrics, Iterable):
        asked = list(metrics)
    asked = [metric_name(m) if isinstance(m, str) or _is_of_ir_measures(m) else m for m in asked]
    if not asked:
        raise ParameterError(argument="metrics", expected="at least one, such as 'ndcg@10'", got="none")
    named = {metric_name(metric): metric for metric in asked}
    if len(named) < len(set(asked)):
        raise ParameterError(argument="metrics", expected="functions with different names", got=", ".join(named))
    return named
