"""Members of a blend that train side by side: the same models, the first error, and interruptions that lose nothing."""

import ctypes
import threading
import warnings
from contextvars import ContextVar
from threading import Event

import lightgbm
import numpy as np
import pytest

from tierank import Blend, LinearRanker, make_ranking
from tierank.display import Progress
from tierank.kernels import n_threads, threads
from tierank.rankers import blend
from tierank.rankers.blend import Halted, Halting, in_parallel

QUICK = {"n_trees": 6, "max_epochs": 2, "rotate": True}


@pytest.fixture(scope="module")
def parts():
    return make_ranking(80, n_features=5, mean_length=10, max_length=20, seed=7).split(0.6, 0.2, 0.2)


@pytest.fixture
def side_by_side(monkeypatch):
    """Counts the threads that fit members, on a machine with eight cores."""
    seen, fit = [], blend._fit_member

    def counted(*given):
        seen.append((threading.get_ident(), n_threads(None)))
        return fit(*given)

    monkeypatch.setattr(threads, "n_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(blend, "_fit_member", counted)
    return seen


def until(halt):
    """Work that only ends if it is halted."""
    while not halt.wait(0.01):
        pass
    raise Halted
    yield


@pytest.mark.parametrize("n_parallel", [1, 2, 5])
def test_streams_yield_all_and_keep_the_order_of_each_stream(n_parallel):
    streams = [iter([(k, i) for i in range(k)]) for k in range(5)]
    found = list(in_parallel(streams, n_parallel, Event()))
    assert sorted(found) == [(k, i) for k in range(5) for i in range(k)]
    for k in range(5):
        assert [i for name, i in found if name == k] == list(range(k))


def test_streams_run_at_the_same_time_with_one_thread_each_and_know_the_context():
    meeting, known = threading.Barrier(3, timeout=60), ContextVar("known")

    def stream():
        meeting.wait()  # breaks if the three do not run at the same time
        yield n_threads(8), known.get()

    known.set("outside")
    assert list(in_parallel([stream() for _ in range(3)], 3, Event())) == [(1, "outside")] * 3
    assert n_threads(8) == 8


def test_the_first_error_ends_the_others_and_is_raised():
    halt = Event()

    def fails():
        yield 1
        raise ValueError("this one")

    found = in_parallel([until(halt), fails(), until(halt)], 3, halt)
    assert next(found) == 1
    with pytest.raises(ValueError, match="this one"):
        next(found)
    assert halt.is_set()


def test_streams_that_nobody_wants_end():
    halt = Event()
    found = in_parallel([iter([1, 2, 3]), until(halt)], 2, halt)
    assert next(found) == 1
    found.close()  # returns only when the threads have ended
    assert halt.is_set()


def test_training_halts_at_its_next_step(parts):
    halt = Event()
    halting = Halting(halt)
    assert halting.call(object) is False
    halt.set()
    with pytest.raises(Halted, match=r"^$"):
        halting.call(object)


@pytest.mark.parametrize("settings", [{}, {"n_configs": 2, "plain_trees": True, "n_seeds": 2}, {"rotate": False}])
def test_the_same_blend_one_by_one_and_side_by_side(parts, side_by_side, settings):
    train, valid, test = parts
    alone = Blend(**QUICK | settings, n_jobs=1).fit(train, valid=valid)
    assert len({thread for thread, _ in side_by_side}) == 1
    side_by_side.clear()
    filters = list(warnings.filters)
    together = Blend(**QUICK | settings, n_jobs=8).fit(train, valid=valid)
    own = threading.get_ident()
    assert {n for thread, n in side_by_side if thread != own} == {1}
    assert sum(thread == own for thread, _ in side_by_side) == (1 if settings == {"rotate": False} else 4)  # linear
    assert warnings.filters == filters
    places = [[(m.family, m.part, m.plan) for m in one.members_] for one in (alone, together)]
    assert places[0] == places[1]
    assert alone.weights_ == together.weights_
    assert np.array_equal(alone.predict(test), together.predict(test))


def test_lightgbm_keeps_to_one_thread_meanwhile(parts, monkeypatch, side_by_side):
    """Its number of threads is one for the process, and memory is allocated for that number."""
    fit, seen = blend._fit_member, []

    def most_threads():
        number = ctypes.c_int(0)
        lightgbm.basic._LIB.LGBM_GetMaxThreads(ctypes.byref(number))
        return number.value

    def watched(job, *given):
        seen.append((isinstance(job.ranker, LinearRanker), most_threads()))
        return fit(job, *given)

    monkeypatch.setattr(blend, "_fit_member", watched)
    Blend(**QUICK).fit(parts[0])
    assert set(seen) == {(True, -1), (False, 1)}
    assert most_threads() == -1


def test_callbacks_see_members_one_after_the_other(parts, side_by_side):
    order = []
    Blend(**QUICK).fit(parts[0], callbacks=[lambda step: order.append(step.member)])
    assert len({thread for thread, _ in side_by_side}) == 1
    assert order == sorted(order)


@pytest.mark.parametrize("after", [1, 5])
def test_an_interrupted_blend_goes_on_to_the_same_bits(parts, side_by_side, monkeypatch, tmp_path, after):
    train, valid, test = parts
    expected = Blend(**QUICK, n_jobs=1).fit(train, valid=valid).predict(test)
    step, seen = Progress.step, []

    def interrupted(self, note=""):
        seen.append(note)
        if len(seen) == after:
            raise KeyboardInterrupt
        step(self, note)

    monkeypatch.setattr(Progress, "step", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        Blend(**QUICK).fit(train, valid=valid, checkpoint=tmp_path / "c")
    monkeypatch.setattr(Progress, "step", step)
    assert not [thread.name for thread in threading.enumerate() if "ThreadPool" in thread.name]
    resumed = Blend(**QUICK).fit(train, valid=valid, checkpoint=tmp_path / "c")
    assert np.array_equal(resumed.predict(test), expected)


def test_a_member_that_fails_ends_the_blend(parts, side_by_side, monkeypatch):
    fit = blend._fit_member

    def failing(job, *given):
        if job.number == 4:
            raise MemoryError("member 4")
        return fit(job, *given)

    monkeypatch.setattr(blend, "_fit_member", failing)
    with pytest.raises(MemoryError, match="member 4"):
        Blend(**QUICK).fit(parts[0])


def test_large_data_train_one_by_one(parts, side_by_side, monkeypatch):
    assert blend.count_parallel(5, parts[0], True, None) == 5
    assert blend.count_parallel(3, parts[0], True, None) == 3
    size = parts[0].n_documents * parts[0].n_features * 3
    monkeypatch.setattr(blend, "_MOST_WIDENED", 2 * size)
    assert blend.count_parallel(5, parts[0], True, None) == 2
    monkeypatch.setattr(blend, "_MOST_WIDENED", size - 1)
    assert blend.count_parallel(5, parts[0], True, None) == 1
    monkeypatch.undo()
    monkeypatch.setattr(threads, "n_cores", lambda: 8)
    monkeypatch.setattr("tierank.rankers.tree_settings._VALUES_PER_THREAD", size // 6)
    assert blend.count_parallel(5, parts[0], True, None) == 1  # one model has work for more than five threads
    assert blend.count_parallel(5, parts[0], True, 1) == 1
