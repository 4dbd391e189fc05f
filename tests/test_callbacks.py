"""Callbacks: they see each round or epoch, may stop training, and change no bit otherwise."""

import re
from functools import partial
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import torch

import tierank
from tierank import RANKERS, Blend, ParameterError, UBoost, UMart, URank
from tierank.data.team import Team
from tierank.rankers.model import Callbacks

NETWORK = {"max_epochs": 4, "hidden": (8,), "dropout": 0.2, "schedule": "constant", "n_jobs": 1}
TREES = {"n_trees": 6, "n_jobs": 1}
QUICK = {
    **{name: TREES if hasattr(kind, "importance") else NETWORK for name, kind in RANKERS.items()},
    "uboost": NETWORK | {"n_learners": 2},
    "urboost": NETWORK | {"n_learners": 2},
    "linear": {"n_jobs": 1},
    "blend": {
        "n_configs": 1,
        "plain_trees": False,
        "n_seeds": 1,
        "rotate": False,
        "n_trees": 4,
        "max_epochs": 2,
        "n_jobs": 1,
    },
}
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "callbacks.md").read_text()


@pytest.fixture(scope="module")
def parts():
    return tierank.make_ranking(40, n_features=5, mean_length=10, max_length=16, seed=1).split(0.6, 0.2, 0.2)


def judged(rows):
    """The rows of a history without what callbacks are told elsewhere."""
    return [{name: value for name, value in row.items() if "@" in name} for row in rows]


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_callbacks_see_each_step_and_change_no_bit(name, parts):
    train, valid, test = parts
    steps = []

    def disturb(step):
        torch.manual_seed(step.number)
        steps.append(step)

    quiet = RANKERS[name](**QUICK[name]).fit(train, valid=valid)
    told = RANKERS[name](**QUICK[name]).fit(train, valid=valid, callbacks=[disturb])
    np.testing.assert_array_equal(told.predict(test), quiet.predict(test))
    assert told.history_ == quiet.history_
    if name == "blend":
        assert [(step.part, step.member) for step in steps if step.number == 1] == [
            ("trees", 0), ("networks", 1), ("linear", 2)
        ]  # fmt: skip
        return
    assert [dict(step.metrics) for step in steps] == judged(told.history_)
    assert [step.loss for step in steps] == [row.get("loss") for row in told.history_]
    n_total = QUICK[name].get("n_trees") or QUICK[name].get("max_epochs") or len(told.history_)  # or all ridges
    assert {(step.n_total, step.part, step.member) for step in steps} == {(n_total, "", 0)}
    if "learner" in told.history_[0]:
        places = [(row["learner"], row["epoch"]) for row in told.history_]
        assert [(step.learner, step.number) for step in steps] == places
    else:
        assert [step.number for step in steps] == list(range(1, len(told.history_) + 1))
    assert steps[0].settings["select_by"] == ("ndcg@10",)


def test_a_step_cannot_be_written(parts):
    steps = []
    UMart(**TREES).fit(parts[0], callbacks=[steps.append])
    assert steps[0].metrics == {}
    assert all(step.is_best for step in steps)
    with pytest.raises(AttributeError, match="cannot assign to field 'number'"):
        steps[0].number = 7
    with pytest.raises(TypeError, match="does not support item assignment"):
        steps[0].settings["n_trees"] = 7


def test_the_best_step_is_the_one_that_is_kept(parts):
    train, valid, _ = parts
    steps = []
    ranker = UMart(n_trees=30, n_jobs=1).fit(train, valid=valid, callbacks=[steps.append])
    assert [step.number for step in steps if step.is_best][-1] == ranker.n_rounds_
    assert dict(steps[ranker.n_rounds_ - 1].metrics) == ranker.best_


@pytest.mark.parametrize("answer", [True, np.True_])
@pytest.mark.parametrize("name", ["umart", "lambdamart", "urank", "mdprank"])
def test_a_callback_stops_training(name, answer, parts):
    """Stopped after three rounds, a ranker is the one that was told to do three."""
    train, valid, test = parts
    limit = "n_trees" if name in ("umart", "lambdamart") else "max_epochs"
    seen = []
    stopped = RANKERS[name](**QUICK[name] | {limit: 50})
    stopped.fit(train, valid=valid, callbacks=[lambda step: step.number == 3 and answer, seen.append])
    short = RANKERS[name](**QUICK[name] | {limit: 3}).fit(train, valid=valid)
    np.testing.assert_array_equal(stopped.predict(test), short.predict(test))
    assert [step.number for step in seen] == [1, 2, 3]  # the others are called too


@pytest.mark.parametrize("answer", [None, False, 1, "stop", [True]])
def test_only_true_stops(answer, parts):
    assert UMart(**TREES).fit(parts[0], callbacks=[lambda step: answer]).n_rounds_ == 6


def test_what_a_stop_leaves_out(parts):
    """Members and learners that have not begun; what must be there is trained for one round."""
    train, valid, test = parts
    first = {"callbacks": [lambda step: step.number == 2]}
    several = URank(**NETWORK, n_seeds=3).fit(train, valid=valid, **first)
    np.testing.assert_array_equal(
        several.predict(test), URank(**NETWORK | {"max_epochs": 2}).fit(train, valid=valid).predict(test)
    )
    boosted = UBoost(**NETWORK, n_learners=3).fit(train, valid=valid, **first)
    assert [row["learner"] for row in boosted.learners_] == [1]
    blend = Blend(**QUICK["blend"] | {"rotate": True}).fit(train, valid=valid, **first)
    assert [(member.family, member.part) for member in blend.members_] == [("trees", 0)]
    assert set(blend.best_) == {"ndcg@10"}
    with_base = UMart(**TREES, base=URank(**NETWORK)).fit(train, valid=valid, **first)
    assert (len(with_base.base_.history_), len(with_base.history_)) == (2, 1)


def test_a_stopped_blend_is_saved(parts, tmp_path):
    train, valid, test = parts
    blend = Blend(**QUICK["blend"]).fit(train, valid=valid, callbacks=[lambda step: step.part == "networks"])
    assert [member.family for member in blend.members_] == ["trees", "networks"]
    blend.save(tmp_path / "model")
    np.testing.assert_array_equal(tierank.load(tmp_path / "model").predict(test), blend.predict(test))


def test_parts_of_a_ranker_with_a_base(parts):
    steps = []
    UMart(**TREES, base=URank(**NETWORK)).fit(parts[0], callbacks=[steps.append])
    assert [(step.part, step.number) for step in steps] == [
        *(("base", epoch) for epoch in range(1, 5)),
        *(("trees", number) for number in range(1, 7)),
    ]
    assert (steps[0].n_total, steps[-1].n_total) == (4, 6)
    steps.clear()
    UBoost(**NETWORK, n_learners=2, base=UMart(**TREES)).fit(parts[0], callbacks=[steps.append])
    assert [(step.part, step.learner) for step in steps] == [("base", 1)] * 6 + [("learners", 2)] * 4


class Interruption(Exception):
    """What ends a run in the middle."""


@pytest.mark.parametrize(
    ("name", "last", "n_again"), [("umart", (0, 55), 5), ("urank", (0, 3), 1), ("blend", (1, 2), 1)]
)
def test_a_resumed_run_calls_for_new_rounds_only(name, last, n_again, parts, tmp_path, monkeypatch):
    """Rounds that came after the last checkpoint are trained again, all others are not."""
    monkeypatch.setattr("tierank.rankers.network_training._EVERY", -1.0)  # a checkpoint after each epoch
    train, valid, test = parts
    settings = {"umart": {"n_trees": 60, "patience": 100, "n_jobs": 1}}.get(name, QUICK[name])
    steps = []

    def interrupt(step):
        steps.append((step.member, step.number))
        if steps[-1] == last:
            raise Interruption("as if killed")

    with pytest.raises(Interruption, match="as if killed"):
        RANKERS[name](**settings).fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[interrupt])
    before, steps = steps, []
    resumed = RANKERS[name](**settings)
    resumed.fit(
        train,
        valid=valid,
        checkpoint=tmp_path / "kept",
        callbacks=[lambda step: steps.append((step.member, step.number))],
    )
    whole = RANKERS[name](**settings).fit(train, valid=valid)
    np.testing.assert_array_equal(resumed.predict(test), whole.predict(test))
    assert before[-1] == last
    assert [step for step in before if step in steps] == before[-n_again:]


@pytest.mark.parametrize("name", ["umart", "urank", "uboost", "linear", "blend"])
def test_a_run_that_was_stopped_is_finished(name, parts, tmp_path):
    train, valid, test = parts
    settings = QUICK[name] | ({"n_seeds": 2} if name == "urank" else {})
    stopped = RANKERS[name](**settings)
    stopped.fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[lambda step: step.number == 2])
    steps = []
    again = RANKERS[name](**settings)
    again.fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[steps.append])
    assert not steps
    np.testing.assert_array_equal(again.predict(test), stopped.predict(test))


def test_an_error_of_a_callback_is_the_callers(parts):
    def fail(step):
        raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        UMart(**TREES).fit(parts[0], callbacks=[fail])


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (print, "callbacks: expected a list of functions of a tierank.Step, got print"),
        ("print", "callbacks: expected a list of functions of a tierank.Step, got str"),
        ([3], "callbacks: expected functions of a tierank.Step, got int"),
        ([lightgbm.early_stopping(5)], "callbacks: .* got a callback of lightgbm; the setting patience stops early"),
    ],
)
def test_callbacks_that_cannot_be_used(callbacks, message, parts):
    with pytest.raises(ParameterError, match=message):
        UMart(**TREES).fit(parts[0], callbacks=callbacks)


class Two(Team):
    """One of two processes, whose messages are kept in a list: the first writes it, the second reads it.

    So the first does not hear the second, which never has anything to say.
    """

    size = 2

    def __init__(self, rank, messages):
        self.rank, self.messages = rank, messages

    def broadcast(self, content):
        if self.is_first:
            self.messages.append(content)
            return content
        return self.messages.pop(0)

    def all_reduce(self, values):
        if self.is_first:
            self.messages.append(values)
            return values
        assert not values.any()
        return values + self.messages.pop(0)


def step(number):
    return tierank.Step(number, 9, {}, None, True, {})


def test_the_first_process_of_a_team_decides():
    messages, called = [], []
    first = Callbacks([lambda step: called.append(step.number) or step.number == 2], Two(0, messages))
    assert [first.call(partial(step, number)) for number in (1, 2)] == [False, True]
    # The second process has callbacks of its own, or none: they are not called.
    for functions in ([lambda step: called.append("second") or True], []):
        told = list(messages)
        second = Callbacks(functions, Two(1, told))
        assert [second.call(partial(step, number)) for number in (1, 2)] == [False, True]
    assert called == [1, 2]


def test_a_callback_that_fails_ends_all_processes():
    messages = []

    def fail(step):
        raise ValueError("no space left")

    with pytest.raises(ValueError, match="no space left"):
        Callbacks([fail], Two(0, messages)).call(lambda: step(1))
    with pytest.raises(tierank.TeamError, match="process 0: a callback failed: no space left"):
        Callbacks([], Two(1, messages)).call(lambda: step(1))


def test_a_team_without_callbacks_sends_nothing():
    messages = []
    first = Callbacks([], Two(0, messages))
    assert [list(message) for message in messages] == [[0]]
    assert not first.call(lambda: step(1))
    assert len(messages) == 1


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    space = {}
    for block in blocks:
        exec(block, space)
    assert "round 1 of 10: ndcg@10 0." in capsys.readouterr().out
