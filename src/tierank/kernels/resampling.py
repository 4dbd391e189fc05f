"""How often each query is drawn in samples with replacement."""

import numpy as np

from tierank.kernels import Matrix, OutMatrix, compiled


@compiled
def count_drawn(drawn: Matrix[np.int32], counts: OutMatrix[np.float64], first: int, last: int) -> None:
    """``counts[s, q]`` is how often sample s contains query q, for the samples first to last - 1."""
    for sample in range(first, last):
        for query in range(counts.shape[1]):
            counts[sample, query] = 0.0
        for i in range(drawn.shape[1]):
            counts[sample, drawn[sample, i]] += 1.0
