"""Rankers in pipelines of PyTerrier: a transformer that can be trained, and takes whole lists.

``pyterrier.ltr.apply_learned_model(UMart(), form="ltr")`` works too, for rankers that score documents one by one.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError
from tierank.extras import MissingExtraError
from tierank.rankers.base import Ranker, check_ranker

try:
    import pyterrier
except ImportError:
    what = "tierank.integrations.pyterrier needs PyTerrier"
    raise MissingExtraError(where=what, fix="pip install python-terrier") from None

Given = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[Any]]


class Reranker(pyterrier.Estimator):  # type: ignore[misc]
    """A ranker as the last step of a pipeline whose results have ``features``.

    Parameters
    ----------
    ranker : Ranker
        A ranker to train with ``fit``, or one that is fitted already: ``tierank.load("model")``.

    Examples
    --------
    >>> import pyterrier as pt, tierank  # doctest: +SKIP
    >>> from tierank.integrations.pyterrier import Reranker  # doctest: +SKIP
    >>> pipeline = pt.terrier.Retriever(index) >> features >> Reranker(tierank.UMart())  # doctest: +SKIP
    >>> pipeline.fit(topics, qrels, valid_topics, valid_qrels)  # doctest: +SKIP
    >>> pt.Experiment([bm25, pipeline], test_topics, test_qrels, ["ndcg_cut_10"])  # doctest: +SKIP
    """

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        check_ranker("ranker", ranker)
        self.ranker = ranker

    def fit(self, topics_or_res_tr: Any, qrels_tr: Any, topics_or_res_va: Any = None, qrels_va: Any = None) -> Self:
        """Train on results with features and their qrels; documents without a judgement count as rated 0."""
        valid = None if topics_or_res_va is None else _joined(topics_or_res_va, qrels_va)
        X, y, qid = _joined(topics_or_res_tr, qrels_tr)
        self.ranker.fit(X, y, qid=qid, valid=valid)
        return self

    def transform(self, inp: Any) -> Any:
        """The results with new scores and ranks."""
        scores = self.ranker.predict(_features_of(inp), qid=inp["qid"].to_numpy()) if len(inp) else np.zeros(0)
        return pyterrier.model.add_ranks(inp.assign(score=scores))

    def transform_outputs(self, inp_cols: list[str]) -> list[str]:
        """The columns of the results: those that came in, score and rank."""
        return list(dict.fromkeys([*inp_cols, "score", "rank"]))


def _joined(results: Any, qrels: Any) -> Given:
    """Features, ratings and query ids of results."""
    columns = qrels[["qid", "docno", "label"]].astype({"qid": str, "docno": str})
    keys = results[["qid", "docno"]].astype(str)
    labels = keys.merge(columns, on=["qid", "docno"], how="left")["label"].fillna(0)
    return _features_of(results), labels.to_numpy(np.float64), results["qid"].to_numpy()


def _features_of(results: Any) -> NDArray[np.float32]:
    if "features" not in results.columns:
        got = f"the columns {', '.join(map(str, results.columns))}"
        fix = "put a step that makes features before it, such as pt.terrier.FeaturesRetriever"
        raise DataError(expected="results with a column 'features'", got=got, fix=fix)
    return np.stack(results["features"].to_numpy()).astype(np.float32)
