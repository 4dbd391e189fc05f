"""TRANSFORMS: raw features -> the float32 numbers that a network sees, some queries at a time.

======================  ==================================  =====================================================
name                    value                               range, mean and deviation of
======================  ==================================  =====================================================
``query_minmax``        (x - lowest) / (highest - lowest)   the documents of the query
``query_log1p``         (l - mean) / deviation              the documents of the query; l = sign(x) ln(1 + abs(x))
``query_rank``          share of the others below x         the documents of the query; ties count a half
``standard``            (x - mean) / deviation              all documents that it was fitted on
``log1p``               (l - mean) / deviation              all documents that it was fitted on
``quantile``            share of documents below x          all documents that it was fitted on
``none``                x
======================  ==================================  =====================================================

A missing value (NaN) gives 0 and counts in no statistic. A column or query whose values are all equal or all missing
gives 0 (``none``: the value). Deviations divide by the number of documents. Results are finite for every finite
float32, and the bits of a row do not depend on the order of the rows.

Networks may use several transforms side by side (``SideBySide``), and a piecewise-linear encoding of each feature
(``Piecewise``).

The per-query transforms need the whole candidate list of a query (``needs_queries``): next to other documents the same
document gets other values. If queries are unknown, in ``fit`` and later, they scale by all documents that they were
fitted on, so that some of the rows give the same values as all of them.
"""

from tierank.transforms.base import Transform
from tierank.transforms.choice import EXPECTED, TRANSFORMS, as_transform, as_transforms, make_transform
from tierank.transforms.piecewise import Piecewise
from tierank.transforms.quantiles import Quantile, QueryRank
from tierank.transforms.query_copies import add_query_copies
from tierank.transforms.rescaling import (
    Log1p,
    QueryLog1p,
    QueryMinMax,
    Rescaling,
    Standard,
    Unchanged,
    blocks,
)
from tierank.transforms.side_by_side import SideBySide

__all__ = [
    "EXPECTED",
    "TRANSFORMS",
    "Log1p",
    "Piecewise",
    "Quantile",
    "QueryLog1p",
    "QueryMinMax",
    "QueryRank",
    "Rescaling",
    "SideBySide",
    "Standard",
    "Transform",
    "Unchanged",
    "add_query_copies",
    "as_transform",
    "as_transforms",
    "blocks",
    "make_transform",
]
