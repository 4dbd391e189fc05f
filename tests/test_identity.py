"""What callers wrote is told apart by what it does, not by where or how it is written."""

import functools
import os
import subprocess
import sys
import textwrap
from types import ModuleType

import numpy as np
import pytest
import torch

from tierank import UMart
from tierank.rankers.checkpoint import identity_of, is_of_caller, name_of, source_of

LOSS = """
import math
import torch
from torch.nn.functional import softplus

margin = 1.0
kinds = {"a", "b", "c", "d"}

def helper(x):
    return x * 2

def other(x):
    return x

def loss(scores, batch, *, power=2):
    # squared
    inner = lambda x: x**power
    return helper(inner(softplus(scores - margin))) if "a" in {"a", "b", "c"} and kinds else math.pi
"""


def module(text, name="lab"):
    """A module with this text, as if it were imported."""
    made = ModuleType(name)
    exec(compile(textwrap.dedent(text), f"{name}.py", "exec"), vars(made))
    return made


def code(text, thing="loss"):
    return identity_of(getattr(module(text), thing))["code"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("margin = 1.0", "margin = 1.5"),
        ("margin = 1.0", "margin = 1"),
        ("return x * 2", "return x * 3"),
        ("power=2", "power=3"),
        ("x**power", "x*power"),
        ("scores - margin", "scores + margin"),
        ("math.pi", "math.e"),
        ('"d"}', '"e"}'),
        ('in {"a", "b", "c"}', 'in {"a", "b", "d"}'),
        ("helper(inner", "other(inner"),
        ("scores, batch, *, power", "scores, batch, power"),
        ("import softplus", "import softmax as softplus"),
    ],
)
def test_a_change_of_what_it_does_is_seen(old, new):
    assert LOSS.count(old) == 1
    assert code(LOSS) != code(LOSS.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    # squared\n", ""),
        ("# squared", "# something else"),
        ("\ndef loss", "\n\n\n\ndef loss"),
        ("return x\n", "return -x\n"),  # a function that it does not call
        ('"a", "b", "c", "d"}', '"d", "c", "a", "b"}'),
    ],
)
def test_how_it_is_written_does_not_matter(old, new):
    assert LOSS.count(old) == 1
    assert code(LOSS) == code(LOSS.replace(old, new))


def test_neither_do_calls_nor_the_process():
    made = module(LOSS)
    first = identity_of(made.loss)
    for _ in range(3000):  # Python rewrites code that runs often
        made.loss(torch.zeros(2), None)
    assert identity_of(made.loss) == first
    program = "import sys; sys.path[:0] = ['tests']; from test_identity import *; print(code(LOSS), code(CLASS, 'Own'))"
    for seed in "01":
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.stdout.split() == [first["code"], code(CLASS, "Own")], done.stderr


CLASS = """
from tierank.rankers.neural import NeuralRanker

class Base(NeuralRanker):
    def twice(self, x):
        return 2 * x

class Own(Base):
    '''Words.'''
    LOSS = "urank"
    sizes: tuple = (3, 4)

    def __init__(self, *, width=3, **settings):
        super().__init__(**settings)
        self.width = width

    @property
    def half(self):
        return self.width / 2

    @staticmethod
    def third(x):
        return x / 3
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * x", "3 * x"),
        ("width=3", "width=4"),
        ("(3, 4)", "(3, 5)"),
        ('"urank"', '"listnet"'),
        ("width / 2", "width / 4"),
        ("x / 3", "x / 6"),
    ],
)
def test_classes_count_by_what_is_defined_in_them_and_their_bases(old, new):
    assert CLASS.count(old) == 1
    assert code(CLASS, "Own") != code(CLASS.replace(old, new), "Own")
    assert code(CLASS, "Own") == code("\n\n" + CLASS.replace("Words.", "Other words."), "Own")


class Steep:
    """A loss that is an object."""

    def __init__(self, **settings):
        vars(self).update(settings)

    def __call__(self, scores, batch):
        return scores


def made_with(value):
    def loss(scores, batch):
        return value

    return loss


VALUES = [
    None,
    True,
    0,
    0.0,
    -0.0,
    1,
    1.0,
    "1",
    b"1",
    ...,
    (1, 2),
    [1, 2],
    {1, 2},
    {"a": 1},
    {"a": 2},
    {"b": 1},
    np.arange(3),
    np.arange(3.0),
    np.arange(3).reshape(3, 1),
    np.array(["a", None], object),
    np.float64(1),
    torch.arange(3),
    torch.arange(4),
    torch.ones(2, requires_grad=True),
    np,
    torch,
    len,
    sum,
    functools.partial(made_with(1), batch=2),
    functools.partial(made_with(1), batch=3),
    Steep(a=1),
    Steep(a=2),
    Steep(b=1),
    Steep(a=1).__call__,
    UMart(n_trees=3),
    UMart(n_trees=4),
    float("nan"),
]


def test_values_that_a_function_closes_over_count():
    digests = [identity_of(made_with(value))["code"] for value in VALUES]
    assert len(set(digests)) == len(VALUES)
    assert [identity_of(made_with(value))["code"] for value in VALUES] == digests
    assert identity_of(made_with(Steep(a=[1])))["code"] == identity_of(made_with(Steep(a=[1])))["code"]


def test_what_a_function_sets_itself_does_not_count():
    """A count of its calls is where it stands, not what it does."""
    n_calls, margin = 0, 1.0

    def loss(scores):
        nonlocal n_calls
        n_calls += 1
        return scores * margin

    first = identity_of(loss)
    loss(1.0)
    assert n_calls == 1
    assert identity_of(loss) == first
    margin = 2.0
    assert identity_of(loss) != first


def test_things_that_hold_each_other_come_to_an_end():
    ring = Steep()
    ring.itself = [ring]
    assert identity_of(ring) == identity_of(ring)
    pair = module("def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n > 0 and even(n - 1)\n")
    assert identity_of(pair.even)["code"] != identity_of(pair.odd)["code"]

    def early():
        return later

    without = identity_of(early)  # a name that is bound after the function is made
    later = 1
    assert identity_of(early) != without


def test_names_and_texts():
    assert name_of(made_with) == "test_identity.made_with"
    assert name_of(Steep()) == "test_identity.Steep"
    assert is_of_caller(made_with)
    assert is_of_caller(functools.partial(made_with))
    assert not is_of_caller(identity_of)
    assert not is_of_caller(functools.partial(identity_of))
    assert source_of(made_with).startswith("def made_with")
    assert source_of(module(LOSS).loss) is None
    assert source_of(Steep()) is None
