"""Weighted sums of features: row by row, so that the bits of a score do not depend on other rows."""

import numpy as np

from tierank.kernels import Matrix, OutMatrix, compiled


@compiled
def add_products(values: Matrix[np.float32], weights: Matrix[np.float64], scores: OutMatrix[np.float64]) -> None:
    """scores[row] += sum over columns j, in order, of values[row, j] weights[j], for each of several weightings."""
    n_rows, n_columns = values.shape
    n_weightings = weights.shape[1]
    if n_weightings == 1:  # for scoring with a model: the sums of four rows stay in registers
        row = 0
        while row + 4 <= n_rows:
            a, b, c, d = scores[row, 0], scores[row + 1, 0], scores[row + 2, 0], scores[row + 3, 0]
            for column in range(n_columns):
                weight = weights[column, 0]
                a += np.float64(values[row, column]) * weight
                b += np.float64(values[row + 1, column]) * weight
                c += np.float64(values[row + 2, column]) * weight
                d += np.float64(values[row + 3, column]) * weight
            scores[row, 0], scores[row + 1, 0], scores[row + 2, 0], scores[row + 3, 0] = a, b, c, d
            row += 4
        first = row
    else:
        first = 0
    for row in range(first, n_rows):
        for column in range(n_columns):
            value = np.float64(values[row, column])
            for k in range(n_weightings):
                scores[row, k] += value * weights[column, k]
