"""Judgements from clicks: a rating for each query and document, and how sure it is."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.clicks.base import AttractionModel, ClickModel
from tierank.clicks.choice import choose_model
from tierank.clicks.log import ClickLog, check_log, flat_ids, sum_by, write_columns
from tierank.clicks.models import make_model
from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.settings import Number, as_least
from tierank.types import Floats

# Models in which every position is examined now and then. Where users stop at a document, those below it are never
# examined: among the known ones relevant documents are always the last, and a ranker learns that order.
_CANDIDATES = ("pbm", "ubm")
# With fewer documents there is no warning: that is an example, and nobody learns a ranker from it.
_MANY = 100


# The highest rating that can be asked for: gains of 2^rating - 1 are numbers up to there.
_HIGHEST = 1000


@dataclass(frozen=True, eq=False, repr=False)
class Judgements:
    """Ratings from clicks, one row for each query and document.

    Parameters
    ----------
    query, document : arrays
        The ids.
    rating : array of float64
        log2(1 + (2^top - 1) relevance) with the relevance by the click model, from 0 to ``top``.
    weight : array of float64
        How sure the rating is, from 0 to 1: n / (n + half) for a document that was examined n times.
    n_examined : array of float64
        How often the document was examined, as far as the click model can tell.
    model : ClickModel
        The click model, fitted.
    """

    query: NDArray[Any]
    document: NDArray[Any]
    rating: Floats
    weight: Floats
    n_examined: Floats
    model: ClickModel

    def __len__(self) -> int:
        return len(self.rating)

    def __repr__(self) -> str:
        n_sure = int((self.weight > 0.5).sum())
        return f"Judgements({len(self):,} documents by {self.model.name}, {n_sure:,} with a weight above 0.5)"

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """The judgements as a table: one array per column. ``row_weight`` is the name that ``tierank.read`` knows."""
        return {
            "query": self.query,
            "document": flat_ids(self.document),
            "rating": self.rating,
            "row_weight": self.weight,
            "n_examined": self.n_examined,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the judgements as CSV or Parquet, by the ending of ``path``."""
        write_columns(self.to_columns(), Path(path))

    def rate(self, data: RankingDataset) -> RankingDataset:
        """The documents of a data set with the ratings from clicks, and their weights as ``row_weight``.

        Documents without a judgement are unjudged: their rating is NaN, and their weight 0.

        Parameters
        ----------
        data : RankingDataset
            Documents with features and document ids.

        Returns
        -------
        RankingDataset
        """
        if data.document_ids is None:
            raise DataError(argument="data", expected="documents with ids", got="none", fix="pass `document_ids`")
        places = {
            (query, str(document)): i
            for i, (query, document) in enumerate(
                zip(self.query.tolist(), flat_ids(self.document).tolist(), strict=True)
            )
        }
        queries = data.query_ids[data.query_of_row].tolist()
        rows = np.array([places.get(key, -1) for key in zip(queries, data.document_ids, strict=True)], np.int64)
        if (rows < 0).all():
            raise DataError(
                argument="data",
                expected="documents that were shown in the log",
                got="none of them",
                fix="query ids and document ids have to be those of the log",
            )
        is_judged = rows >= 0
        return RankingDataset.from_parts(
            data.features,
            np.where(is_judged, self.rating[rows], np.nan),
            data.offsets,
            data.query_ids,
            source_rows=None if (np.diff(data.source_rows) == 1).all() else data.source_rows,
            row_weight=np.where(is_judged, self.weight[rows], 0.0),
            query_weight=data.query_weight,
            feature_names=data.feature_names,
            document_texts=data.document_texts,
            kinds=data.kinds,
        )


def judgements(
    log: ClickLog, model: str | ClickModel = "best", *, top: float = 4.0, half: float = 10.0, **settings: Any
) -> Judgements:
    """Ratings of documents from clicks.

    The relevance of a document for a query is its attractiveness, times the chance to satisfy in the models that have
    it. The rating is log2(1 + (2^top - 1) relevance): its gain 2^rating - 1 is proportional to the relevance, as in
    ``simulate_clicks``. Its weight is n / (n + half), where n is how often the document was examined:
    the sum over the times that it was shown of 1 for a click, and else of e (1 - a) / (1 - e a) with e the chance that
    it was examined given the clicks above it, and a its attractiveness.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    model : str or ClickModel, default "best"
        A name of ``CLICK_MODELS``, or a model; it is fitted to the log unless it is fitted already. ``"best"``: what
        ``choose_model`` chooses of ``pbm`` and ``ubm``, in which every position is examined now and then. Models in
        which users stop at a document know nothing of those below it.
    top : float, default 4.0
        The rating of a document that everybody clicks, and that satisfies everybody.
    half : float, default 10.0
        The number of examinations at which the weight of a rating is 0.5.
    **settings
        Settings of the model, if it is given by name.

    Returns
    -------
    Judgements

    Examples
    --------
    >>> log = ClickLog.of(session=[1, 1, 2, 2], query=["q"] * 4, document=["a", "b", "a", "b"],
    ...                   position=[1, 2, 1, 2], clicked=[0, 1, 0, 1])
    >>> found = judgements(log, "cascade", smoothing=0)
    >>> found.document.tolist(), found.rating.tolist(), found.n_examined.tolist()
    (['a', 'b'], [0.0, 4.0], [2.0, 2.0])
    >>> found
    Judgements(2 documents by cascade, 0 with a weight above 0.5)
    """
    check_log(log)
    Number(above=0, most=_HIGHEST).check("top", top)
    as_least("half", half)
    clicks = choose_model(log, _CANDIDATES, **settings) if model == "best" else make_model(model, **settings)
    if clicks.items_ is None:
        clicks.fit(log)
    if not isinstance(clicks, AttractionModel) or clicks.by != "pair":
        raise ParameterError(
            argument="model",
            expected="a click model with an attractiveness for each query and document",
            got=f"{clicks.name}, by {getattr(clicks, 'by', 'position')}",
            fix="take pbm or sdbn, with `by`='pair'",
        )
    items = clicks.items
    rows = items.find(log)
    known = rows >= 0
    examined = sum_by(rows[known], _examined(clicks, log)[known], len(items))
    if len(items) >= _MANY and np.median(examined) < half:
        warnings.warn(
            f"most documents were examined fewer than {half:g} times, so their ratings are mostly noise: take more"
            " sessions per query, or train on the clicks themselves (training_data)",
            stacklevel=2,
        )
    return Judgements(
        query=items.query_ids[items.queries],
        document=items.document_ids[items.documents],
        rating=np.log2(1 + (2.0**top - 1) * clicks.relevance()),
        weight=examined / np.maximum(examined + half, 1e-300),
        n_examined=examined,
        model=clicks,
    )


def _examined(model: AttractionModel, log: ClickLog) -> Floats:
    """The chance that the document in each row was examined, given the clicks down to it."""
    rows = model.items.find(log)
    attraction = np.where(rows >= 0, model.attraction_[rows], model.prior_)
    attraction = np.clip(attraction, 1e-9, 1 - 1e-9)
    # Chances are examination times attractiveness; of an attractiveness of 0 nothing can be told, and 1 is assumed.
    chances = model.predict(log, conditional=True)
    examination = np.where(chances > 0, np.minimum(chances / attraction, 1.0), 1.0 * (attraction <= 1e-9))
    return np.where(log.clicked, 1.0, examination * (1 - attraction) / (1 - examination * attraction))
