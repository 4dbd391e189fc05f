"""Gradients that are rounded so that their sums are exact."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from running import examples

from tierank.rankers.tree_training import exact_in_sums

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@examples(200)
@given(
    arrays.arrays(np.float32, st.integers(1, 60), elements=FLOATS),
    st.integers(0, 2**32 - 1),
    st.integers(1, 7),
)
def test_sums_are_exact_in_any_order_and_in_any_parts(values, seed, n_parts):
    rounded = exact_in_sums(values).astype(np.float64)
    exact = sum((Fraction(value) for value in rounded.tolist()), Fraction(0))
    rng = np.random.default_rng(seed)
    parts = [np.cumsum(part)[-1] for part in np.array_split(rng.permutation(rounded), n_parts) if len(part)]
    total = 0.0
    for part in parts:
        total += part
    assert Fraction(total) == exact
    for part in parts:  # as LightGBM finds a leaf by taking its sibling from its parent
        total -= part
    assert total == 0


@examples(200)
@given(arrays.arrays(np.float32, st.integers(1, 1000), elements=FLOATS))
def test_only_digits_far_below_the_largest_value_are_rounded(values):
    rounded = exact_in_sums(values)
    largest = float(np.abs(values).max())
    assert np.abs(rounded.astype(np.float64) - values).max() <= largest * len(values) * 2.0**-50
    large = np.abs(values) >= largest * len(values) * 2.0**-26
    np.testing.assert_array_equal(rounded[large], values[large])
    np.testing.assert_array_equal(exact_in_sums(-values), -rounded)
    np.testing.assert_array_equal(exact_in_sums(rounded), rounded)


def test_rounding_by_hand():
    """Three values take 2 bits: the step is 2^(1 + 2 - 52), for a largest value of 1 = 0.5 * 2^1."""
    step = 2.0**-49
    values = np.array([1.0, 0.75 * step, 2.5 * step], np.float32)
    np.testing.assert_array_equal(exact_in_sums(values), np.array([1.0, step, 2 * step], np.float32))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays(odd):
    values = np.array([1.0, odd, 1e-30], np.float32)
    np.testing.assert_array_equal(np.isfinite(exact_in_sums(values)), np.isfinite(values))


def test_nothing_stays_nothing():
    np.testing.assert_array_equal(exact_in_sums(np.zeros(3, np.float32)), np.zeros(3))
