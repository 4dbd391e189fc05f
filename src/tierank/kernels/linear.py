"""Sums of weighted features: one row after the other, so that the bits of a score do not depend on other rows."""

import numpy as np

from tierank.kernels import Matrix, OutMatrix, compiled


@compiled
def add_products(values: Matrix[np.float32], weights: Matrix[np.float64], scores: OutMatrix[np.float64]) -> None:
    """scores[row] += sum over columns j, in their order, of values[row, j] weights[j]: rows x weightings."""
    n_rows, n_columns = values.shape
    n_weightings = weights.shape[1]
    for row in range(n_rows):
        for column in range(n_columns):
            value = np.float64(values[row, column])
            for k in range(n_weightings):
                scores[row, k] += value * weights[column, k]
