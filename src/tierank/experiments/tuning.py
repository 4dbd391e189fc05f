"""``tune``: search for settings on validation data, by Optuna over a declared space for each ranker."""

from __future__ import annotations

import json
import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from sklearn.base import clone

from tierank.data.dataset import RankingDataset, check_dataset
from tierank.display import Grid, Progress, Result, ShownTable, rows_to_pandas
from tierank.errors import DataError, ParameterError, WriteError
from tierank.experiments.store import sole_user
from tierank.extras import needing
from tierank.files import as_path, make_folder, writing
from tierank.metrics.rules import metric_name
from tierank.rankers import RANKERS
from tierank.rankers.base import Ranker
from tierank.rankers.checkpoint import described
from tierank.rankers.order import canonical_rows
from tierank.rankers.selection import make_judge
from tierank.settings import MOST_REPEATS, Between, OneOf, Space, as_choice, as_whole

if TYPE_CHECKING:
    import optuna

# The most differences that a message names.
_NAMED = 5
# How the first line of every journal begins.
_BEGINS = b'{"op_code":'


@dataclass(frozen=True, repr=False)
class Tuning(Result):
    """The result of ``tune``.

    Attributes
    ----------
    ranker : Ranker
        The best ranker, fitted.
    settings : dict
        The values of its searched settings.
    value : float
        Its metric on the validation data. As the best of all trials it is too good: evaluate the ranker on test data.
    metric : str
        The metric that decided.
    trials : list of dict
        The settings and the value of each trial.
    """

    ranker: Ranker
    settings: dict[str, Any]
    value: float
    metric: str
    trials: list[dict[str, Any]]

    def to_pandas(self) -> Any:
        """A pandas table with a row per trial: its settings and its value."""
        return rows_to_pandas(self.trials)

    def table(self) -> Grid:
        """The settings and the value of each trial, as texts."""
        names = list(dict.fromkeys(name for trial in self.trials for name in trial))
        values = [[trial.get(name, "") for name in names] for trial in self.trials]
        rows = [[f"{one:.4g}" if isinstance(one, float) else str(one) for one in row] for row in values]
        return ["trial", *names], [[str(i), *row] for i, row in enumerate(rows)]

    def blocks(self) -> Iterator[str | ShownTable]:
        """The best trial, and all of them."""
        yield f"best {self.metric} on validation data: {self.value:.4f} with {self.settings}"
        yield ShownTable(self.table())


def tune(
    ranker: str | Ranker,
    train: RankingDataset,
    valid: RankingDataset,
    *,
    trials: int = 20,
    space: Space | None = None,
    seed: int = 0,
    study: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Tuning:
    """Search for the settings of a ranker that are best on validation data.

    The first trial uses the settings of the ranker itself, so the result is never worse than that on the validation
    data. The others are drawn by Optuna. All trials are judged by the first metric of ``select_by``.

    Parameters
    ----------
    ranker : str or Ranker
        A key of ``RANKERS``, or a ranker with its settings.
    train, valid : RankingDataset
        Training and validation data.
    trials : int, default 20
        Number of trials, including those of earlier calls with the same ``study``.
    space : dict of str to Between or OneOf, optional
        The search space by setting. Default: the search spaces that the settings of the ranker declare.
    seed : int, default 0
        Random seed of the search.
    study : path, optional
        A file that stores the trials: a later call with the same data, settings and space continues it.
    progress : bool, default False
        Show a progress bar.

    Returns
    -------
    Tuning
        The best settings, and the fitted ranker.

    Examples
    --------
    >>> import tierank
    >>> train, valid = tierank.make_ranking(40, n_features=5, mean_length=10, max_length=20).split(0.6, 0.4)
    >>> found = tune(tierank.UMart(n_trees=5, n_jobs=1), train, valid, trials=3)
    >>> len(found.trials), sorted(found.settings)[:2]
    (3, ['feature_fraction', 'lambda_l2'])
    """
    start = as_ranker(ranker)
    start.checked_settings()
    as_whole("trials", trials, most=MOST_REPEATS)
    as_whole("seed", seed, 0, most=2**31 - 1)
    check_dataset("train", train)
    check_dataset("valid", valid)
    search = _Search(start, train, valid, space_of(start) if space is None else _as_space(space, start))
    place = None if study is None else as_path(study, "study")
    if place is not None:
        make_folder(place.parent)
        with writing(place):
            place.open("ab").close()
    with nullcontext() if place is None else sole_user(place, "file", "trials that nobody is adding to"):
        opened = _open_study(place, f"{type(start).__name__} {search.metric}")
        if place is not None:
            _check_study(opened, place, search.identity())
        done = len(_completed(opened))
        with Progress("tuning", trials, show=progress, done=done) as shown:
            for number in range(done, trials):
                opened.sampler = _sampler(seed, number)
                trial = opened.ask()
                value = search.attempt(trial, is_first=number == 0)
                opened.tell(trial, value)
                shown.step(f"{search.metric} {value:.4f}")
        return search.outcome(opened)


def as_ranker(given: Any) -> Ranker:
    """A ranker, as given or by name with default settings."""
    if isinstance(given, Ranker):
        return given
    if not isinstance(given, str):
        fix = f"this is a class; write {given.__name__}()" if isinstance(given, type) else None
        expected = "a ranker of tierank, such as UMart(), or the name of one"
        raise ParameterError(expected=expected, got=repr(given), fix=fix)
    return RANKERS[as_choice("ranker", given, RANKERS)]()


class _Search:
    """Fits candidates, and keeps the best one."""

    def __init__(self, start: Ranker, train: RankingDataset, valid: RankingDataset, space: Space) -> None:
        self.start, self.train, self.valid, self.space = start, train, valid, space
        self.settings = settings = start.checked_settings()
        metrics = settings["select_by"]
        self.metric = metric_name(metrics[0])
        self.judge = make_judge(valid, metrics[:1], settings["rule"], 1)
        self.best: tuple[int, float, Ranker] | None = None

    def identity(self) -> dict[str, Any]:
        """What the value of a trial depends on, apart from its draws."""
        contents = [canonical_rows(data, self.settings["n_jobs"]).content for data in (self.train, self.valid)]
        settings = {name: value for name, value in self.settings.items() if name != "n_jobs"}
        identity = {"training data": contents[0], "validation data": contents[1], "space": self.space} | settings
        plain: dict[str, Any] = json.loads(json.dumps(identity, default=_plain))
        return plain

    def attempt(self, trial: optuna.Trial, is_first: bool) -> float:
        """The value of a trial; the first one uses the settings of the ranker."""
        chosen = {} if is_first else {name: _suggest(trial, name, values) for name, values in self.space.items()}
        candidate = self._fit(chosen)
        scores = self.valid.arrange(candidate.predict(self.valid))
        value = float(np.nanmean(self.judge(scores)[self.metric]))
        trial.set_user_attr("settings", chosen)
        if self.best is None or value > self.best[1]:
            self.best = (trial.number, value, candidate)
        return value

    def outcome(self, study: optuna.Study) -> Tuning:
        """The best trial of the study, including earlier calls."""
        best = study.best_trial
        chosen = best.user_attrs["settings"]
        # Of a trial of an earlier call only the settings are known.
        ranker = self.best[2] if self.best is not None and self.best[0] == best.number else self._fit(chosen)
        settings = {n: v for n, v in ranker.get_params(deep=False).items() if n in self.space}
        rows = [{**trial.user_attrs["settings"], self.metric: trial.value} for trial in _completed(study)]
        return Tuning(ranker, settings, study.best_value, self.metric, rows)

    def _fit(self, settings: Mapping[str, Any]) -> Ranker:
        candidate: Ranker = clone(self.start)
        return candidate.set_params(**settings).fit(self.train, valid=self.valid)


def _as_space(space: Any, ranker: Ranker) -> Space:
    """The caller's search space. Raises ``ParameterError`` for what cannot be searched."""
    expected = "a dict of at least one setting to Between (low <= high, above 0 if log) or OneOf (not empty)"
    if not isinstance(space, Mapping) or not space:
        raise ParameterError(argument="space", expected=expected, got=repr(space))
    known = ranker.get_params(deep=False)
    for name, values in space.items():
        if name not in known:
            raise ParameterError.unknown(f"setting of {type(ranker).__name__}", name, known)
        is_range = isinstance(values, Between) and -math.inf < values.low <= values.high < math.inf
        if not (is_range and (values.low > 0 or not values.log)) and not (isinstance(values, OneOf) and values.values):
            raise ParameterError(argument="space", expected=expected, got=f"{values!r} for {name}")
    return space


def space_of(ranker: Ranker) -> Space:
    """The default search space: those of the declared settings."""
    declared = ranker.declared_settings()
    space = {name: one.search for name, one in declared.items() if one.search is not None}
    if not space:
        what = f"{type(ranker).__name__} has no default search space"
        raise ParameterError(where=what, fix="give one as `space`")
    return space


def _suggest(trial: optuna.Trial, name: str, values: Between | OneOf) -> Any:
    """A value for this trial."""
    if isinstance(values, OneOf):  # Optuna stores plain values only, so it draws an index
        return values.values[trial.suggest_categorical(name, list(range(len(values.values))))]
    if values.is_integer:
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def _plain(value: Any) -> Any:
    """A setting that JSON cannot hold, by its content, as its repr may be abbreviated."""
    if isinstance(value, Ranker):
        return {type(value).__name__: value.get_params(deep=False)}
    return vars(value) if is_dataclass(value) else described(value)


def _check_study(study: optuna.Study, file: Path, identity: dict[str, Any]) -> None:
    """Refuse the trials of another search: their values cannot be compared."""
    if not study.trials:
        study.set_user_attr("identity", identity)
    kept = study.user_attrs.get("identity", {})
    others = [name for name in identity if name not in kept or kept[name] != identity[name]]
    if others:
        shown = f"{', '.join(others[:_NAMED])}{', ...' if len(others) > _NAMED else ''}"
        expected, got = "trials of this data and these settings", f"those of another search, with other {shown}"
        raise DataError(where=file, expected=expected, got=got, fix="delete it to start over, or choose another file")


def _completed(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """The completed trials, without interrupted ones."""
    return [trial for trial in study.trials if trial.value is not None]


def _sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of one trial. It depends on completed trials only, so a continued study is the same as a whole."""
    import optuna

    return optuna.samplers.TPESampler(seed=int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))


def _open_study(file: Path | None, name: str) -> optuna.Study:
    with needing("tuning"), warnings.catch_warnings():
        # Of tqdm, which Optuna imports: in a notebook it asks for widgets that nothing here uses.
        warnings.filterwarnings("ignore", "IProgress not found")
        import optuna
        from optuna.storages import JournalStorage

    logging.getLogger("optuna").setLevel(logging.WARNING)
    try:
        storage = None if file is None else JournalStorage(cast(Any, Journal(file)))
        return optuna.create_study(direction="maximize", storage=storage, study_name=name, load_if_exists=True)
    except WriteError:
        raise
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        got = f"a damaged one: {error}"
        raise DataError(where=file, expected="a file of trials", got=got, fix="delete it to start over") from None


class Journal:
    """The file that stores the trials of a study, for Optuna: complete lines of JSON, written by one process.

    If the disk is full or the process is killed, Optuna's own journal leaves a partial line, which makes it unreadable,
    and a lock that the next run waits for.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with writing(file), file.open("ab") as opened:
            content = file.read_bytes()
            if content[: len(_BEGINS)] == _BEGINS[: len(content)]:  # a process may have been killed in mid-line
                opened.truncate(content.rfind(b"\n") + 1)

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """The log entries from this number on."""
        with self.file.open("rb") as opened:
            for number, line in enumerate(opened):
                if number >= log_number_from:
                    yield json.loads(line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines atomically."""
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with writing(self.file), self.file.open("ab", buffering=0) as opened:
            size = opened.tell()
            try:
                content = text.encode()
                while content:
                    content = content[os.write(opened.fileno(), content) :]
                os.fsync(opened.fileno())
            except OSError:
                opened.truncate(size)
                raise
