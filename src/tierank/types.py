"""Array types, named once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Scores, ratings, gains, metrics: one number per document or query.
Floats = NDArray[np.float64]
# Where queries begin and end: query q has the rows offsets[q] to offsets[q + 1].
Offsets = NDArray[np.int64]
# Row numbers.
Rows = NDArray[np.int64]
# Features: documents x features.
Features = NDArray[np.float32]
