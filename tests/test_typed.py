"""What users write, with types: ``make check`` runs mypy on this file, and pytest runs it.

A line with ``type: ignore`` is one that mypy has to report: an ignore that nothing needs is an error of ``make check``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tierank
from tierank.settings import Integer, Number, setting


def make_parts() -> tuple[tierank.RankingDataset, tierank.RankingDataset, tierank.RankingDataset]:
    train, valid, test = tierank.make_ranking(30, n_features=6, mean_length=8, max_length=12).split(0.6, 0.2, 0.2)
    return train, valid, test


def test_the_usual_work(tmp_path: Path) -> None:
    train, valid, test = make_parts()
    ranker = tierank.UMart(n_trees=3, learning_rate=0.1).fit(train, valid=valid)
    scores = ranker.predict(test)
    top: float = scores.max()
    assert np.isfinite(top)
    evaluation = tierank.evaluate(test, scores, ["ndcg@10", "err@10"], rule="wsdm20")
    mean: float = evaluation.mean("ndcg@10")
    assert mean == pytest.approx(np.nanmean(evaluation.values("ndcg@10")))
    baseline = tierank.LambdaMART(n_trees=3).fit(train, valid=valid).predict(test)
    comparison = tierank.compare(test, {"uMart": scores, "LambdaMART": baseline}, baseline="LambdaMART")
    for contrasts in comparison.contrasts.values():
        for metric, contrast in contrasts.items():
            interval: tuple[float, float] = (contrast.low, contrast.high)
            assert interval[0] <= contrast.difference <= interval[1], metric
    paper = tierank.UMart.from_preset("paper-ohsumed", n_trees=50)
    settings: Mapping[str, Any] = paper.get_params()
    assert (paper.n_trees, settings["n_trees"]) == (50, 50)
    tierank.write(test, tmp_path / "test.txt")
    again = tierank.read(tmp_path / "test.txt", n_features=6)
    ranker.save(tmp_path / "model")
    loaded: tierank.Ranker = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(again.features, qid=np.repeat(again.query_ids, again.lengths)), scores)
    loaded.export(tmp_path / "model.c", "c")
    assert list(loaded.rank(test, k=1).rank) == [1] * test.n_queries
    assert later(train, ranker).n_trees == 2


def later(train: tierank.RankingDataset, ranker: tierank.UMart) -> tierank.UMart:
    return tierank.UMart(n_trees=2).fit(train, start=ranker)  # fit returns the type of the ranker


def test_arrays() -> None:
    X, y, qid = np.arange(8.0).reshape(4, 2), [1, 0, 2, 0], ["a", "a", "b", "b"]
    ranker = tierank.LinearRanker().fit(X, y, qid=qid, valid=(X[:, ::-1], y, qid))
    assert ranker.predict(X, qid=qid).shape == (4,)


def first_is_best(ratings: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    return float(ratings[np.argmax(scores)] == ratings.max())


def stop_after_two(step: tierank.Step) -> bool:
    return step.number >= 2


class PopularityModel(tierank.FittedModel):
    def __init__(self, column: int, prior: float, rate: float) -> None:
        self.column, self.prior, self.rate = column, prior, rate
        self.history, self.best = [], {}

    def predict(self, data: tierank.RankingDataset, resources: object) -> NDArray[np.float64]:
        return (data.features[:, self.column].astype(np.float64) + self.prior * self.rate) / (1 + self.prior)

    def files(self) -> dict[str, bytes]:
        return {}

    def facts(self) -> dict[str, Any]:
        return {"rate": self.rate}


@dataclass(kw_only=True, eq=False, repr=False)
class Popularity(tierank.Ranker):
    column: int = setting(0, Integer(0), "the column with the number of clicks")
    prior: float = setting(10.0, Number(above=0), "views that a new document starts with")

    def fit_model(
        self, train: tierank.RankingDataset, valid: tierank.RankingDataset | None, context: object
    ) -> PopularityModel:
        return PopularityModel(self.column, self.prior, float(train.features[:, self.column].mean()))

    def restore_model(self, saved: Any) -> PopularityModel:
        return PopularityModel(self.column, self.prior, float(saved.facts["rate"]))


def test_what_users_write_themselves(tmp_path: Path) -> None:
    train, valid, test = make_parts()
    mine = Popularity(prior=3).fit(train)
    prior: float = mine.prior
    assert prior == 3
    judged = tierank.evaluate(test, mine.predict(test), [first_is_best, "ndcg@10"])
    assert 0 <= judged.mean("first_is_best") <= 1
    stopped = tierank.UMart(n_trees=9, select_by=[first_is_best]).fit(train, valid=valid, callbacks=[stop_after_two])
    assert len(stopped.history_) == 2
    mine.save(tmp_path / "mine")
    loaded = tierank.load(tmp_path / "mine", rankers=[Popularity])
    np.testing.assert_array_equal(loaded.predict(test), mine.predict(test))


def test_mistakes_are_errors_for_type_checkers_too() -> None:
    ranker = tierank.UMart()
    with pytest.raises(AttributeError, match="predikt"):
        ranker.predikt([[1.0]])  # type: ignore[attr-defined]
    with pytest.raises(tierank.ParameterError, match="n_tree"):
        tierank.UMart(n_tree=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="has no attribute 'UMarts'"):
        tierank.UMarts  # type: ignore[attr-defined]
    assert isinstance(tierank.ParameterError(argument="a").argument, str)
