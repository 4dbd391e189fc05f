"""Compiling: each kernel for one set of types, once on a machine, kept where nobody else can write."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from numba.core import config
from numba.core.codegen import CodeLibrary
from numba.core.errors import NumbaWarning, TypingError
from numpy.typing import NDArray

import tierank
from tierank import cli
from tierank.kernels import compiling, ranking
from tierank.kernels.compiling import KERNELS, Kernel, Vector, argument_types, compile_all


def add_up(values: Vector[np.float64], factor: float, sums: NDArray[np.float64]) -> None:
    for value in values:
        sums[0] += factor * value


def added_up(kernel) -> float:
    sums = np.zeros(1)
    kernel(np.array([1.0, 2.0]), 2.0, sums)
    return float(sums[0])


@pytest.fixture
def notice(monkeypatch):
    """Nothing has been said in this process so far."""
    fresh = compiling._Notice()
    monkeypatch.setattr(compiling, "_NOTICE", fresh)
    return fresh


# One set of types


@pytest.fixture(scope="module")
def all_compiled():
    """Every kernel, compiled where it is usually kept; seconds after other tests have run."""
    return dict(compile_all())


def test_compile_all_knows_every_kernel(all_compiled):
    assert len(all_compiled) == len(KERNELS)
    assert all(loaded.folder is not None for loaded in all_compiled.values())
    for kernel in KERNELS:
        for kind in argument_types(kernel.function):
            assert getattr(kind, "layout", "C") == "C"


def test_arrays_may_be_read_only_where_they_are_read():
    values, offsets = np.array([1.0, 3.0, 2.0]), np.array([0, 2, 3])
    expected = ranking.highest(values, offsets).tolist()
    values.flags.writeable = offsets.flags.writeable = False
    assert ranking.highest(values, offsets).tolist() == expected == [3.0, 2.0]
    assert len(ranking.highest.signatures) == 1


def test_other_types_are_refused_and_not_compiled_for():
    for values in (np.zeros(3, np.float32), np.zeros((3, 3))[:, 0], np.zeros((3, 1))):
        with pytest.raises(TypeError, match="No matching definition"):
            ranking.highest(values, np.array([0, 3]))


def made(n: int) -> NDArray[np.float64]:
    return np.zeros(n)


def test_a_kernel_that_makes_arrays_has_to_say_so(tmp_path):
    """Nothing counts references to them otherwise: numba refuses to make any."""
    assert Kernel(made, tmp_path / "says", makes_arrays=True)(3).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(TypingError, match="No implementation of function"):
        Kernel(made, tmp_path / "says not")(3)


# What a user does, with arrays of all kinds: read-only, mapped, in columns, of other types.
_USE = """
import sys
from numba.core import event

class Heard(event.Listener):
    def on_start(self, event):
        names.append(event.data["dispatcher"].py_func.__qualname__)
    def on_end(self, event):
        pass

names = []
event.register("numba:compile", Heard())

import numpy as np
import tierank
from tierank import cli
from tierank.metrics import METRICS, RULES, Judge
from tierank.losses import LambdaRankObjective, UMartObjective
from tierank.transforms import TRANSFORMS

folder = sys.argv[1]
made = tierank.make_ranking(30, n_features=5, mean_length=12, max_length=40, seed=1)
other = tierank.make_ranking(30, n_features=5, mean_length=12, max_length=40, seed=2)
made.features.flags.writeable = made.offsets.flags.writeable = False
tierank.write(made, f"{folder}/data.txt")
tierank.write(made, f"{folder}/data.tierank")
with open(f"{folder}/data.txt") as file:
    lines = [line.rstrip() + f" # docid = D{i} inc = 1\\n" for i, line in enumerate(file)]
with open(f"{folder}/named.txt", "w") as file:
    file.writelines(lines)
for name in ("data.txt", "named.txt", "data.tierank"):
    data = tierank.read(f"{folder}/{name}")
    for ranker in (tierank.UMart(n_trees=2), tierank.LambdaMART(n_trees=2, query_features=True)):
        ranker.fit(data, valid=other).predict(data)
for transform in TRANSFORMS:
    ranker = tierank.URank(max_epochs=1, feature_transform=transform).fit(data, valid=other)
    ranker.predict(np.asfortranarray(data.features), qid=np.repeat(np.arange(30), data.lengths))
    ranker.predict(data.features.astype(np.float64))
    TRANSFORMS[transform]().fit(data.features).transform(data.features)
scores = np.arange(2.0 * data.n_documents)[::-2]
scores.flags.writeable = False
for rule in RULES:
    for values in (scores, np.zeros(data.n_documents, np.float32)):
        for metric in METRICS:
            for k in ("", "@1", "@1000"):
                try:
                    Judge(data, metric + k, rule=rule)(values)
                except tierank.TierankError:
                    pass
for objective in (UMartObjective(window=None), UMartObjective(truncation=3), LambdaRankObjective()):
    objective.prepare(data.ratings, made.offsets).gradients(scores)
for arguments in (
    ["describe", f"{folder}/named.txt"],
    ["train", "umart", "--train", f"{folder}/data.txt", "--set", "n_trees=2", "--out", f"{folder}/model"],
    ["predict", f"{folder}/model", f"{folder}/named.txt", "--k", "3"],
    ["convert", f"{folder}/named.txt", f"{folder}/copy.txt.gz"],
):
    assert cli.main(arguments) == 0
assert not names, names
"""


def test_nothing_is_compiled_after_the_command(tmp_path, all_compiled):
    """Whatever the arrays are: read-only, mapped, in columns, of other types."""
    done = subprocess.run([sys.executable, "-c", _USE, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tierank: compiling" not in done.stderr


# Where code is kept


def test_code_is_compiled_once_for_a_folder(tmp_path):
    first = Kernel(add_up, tmp_path / "new" / "folder").load()
    assert first.is_compiled
    assert first.obstacle is None
    assert first.folder.is_relative_to(tmp_path / "new" / "folder")
    again = Kernel(add_up, tmp_path / "new" / "folder")
    assert not again.load().is_compiled
    assert added_up(again) == 6


@pytest.mark.parametrize("content", [b"", b"\x80\x04nonsense", bytes(range(256)) * 4], ids=["empty", "cut", "noise"])
def test_damaged_code_is_compiled_anew(tmp_path, content):
    kept = Kernel(add_up, tmp_path).load().folder
    for path in kept.iterdir():
        path.write_bytes(content)
    kernel = Kernel(add_up, tmp_path)
    assert kernel.load().is_compiled
    assert added_up(kernel) == 6
    assert not Kernel(add_up, tmp_path).load().is_compiled


def test_nowhere_to_keep_code_is_said_once(tmp_path, caplog, notice):
    (tmp_path / "file").touch()
    for _ in range(2):
        kernel = Kernel(add_up, tmp_path / "file")
        assert added_up(kernel) == 6
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{tmp_path / 'file'}" in record.message
    assert "NUMBA_CACHE_DIR" in record.message
    assert "\n" not in record.message


def test_a_disk_that_fills_up_is_no_error(tmp_path, caplog, notice, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiling._Place, "save_overload", full)
    assert added_up(Kernel(add_up, tmp_path)) == 6
    assert "No space left on device" in caplog.text


def test_code_that_numba_refuses_to_keep_still_runs(tmp_path, monkeypatch):
    """As with NUMBA_OPT=0, where code refers to places in memory."""
    monkeypatch.setattr(CodeLibrary, "has_dynamic_globals", True)
    with pytest.warns(NumbaWarning, match='Cannot cache compiled function "add_up"'):
        assert added_up(Kernel(add_up, tmp_path)) == 6


@pytest.mark.parametrize(("noticeable", "n_messages"), [(0.0, 1), (1e9, 0)])
def test_compiling_is_told_when_it_takes_long(tmp_path, caplog, notice, monkeypatch, noticeable, n_messages):
    monkeypatch.setattr(compiling, "_NOTICEABLE", noticeable)
    for folder in ("a", "b"):
        added_up(Kernel(add_up, tmp_path / folder))
    messages = [record.message for record in caplog.records]
    assert len(messages) == n_messages
    assert all("compiling add_up" in message and "tierank compile" in message for message in messages)
    caplog.clear()
    added_up(Kernel(add_up, tmp_path / "a"))  # what is loaded is not compiled, and nothing is said
    assert not caplog.records


def test_folders_are_chosen_in_order(tmp_path, monkeypatch):
    beside = Path(__file__).parent / "__pycache__"
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    usual = compiling.folders_for(add_up)
    assert usual[0] == (beside, False)
    if sys.platform == "linux":
        assert usual[1].path.parent == tmp_path / "tierank"
        assert usual[1].must_be_private
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "chosen"))
    (chosen,) = compiling.folders_for(add_up)
    assert (chosen.path.parent, chosen.must_be_private) == (tmp_path / "chosen", False)
    (given,) = compiling.folders_for(add_up, tmp_path / "given")
    assert given.path.parent == tmp_path / "given"


@pytest.mark.skipif(sys.platform == "win32", reason="folders of Windows have no modes")
@pytest.mark.parametrize(
    ("above", "own", "expected"),
    [
        (0o755, 0o700, True),
        (0o755, 0o755, True),
        (0o755, 0o770, False),
        (0o755, 0o707, False),
        (0o755, 0o1777, False),
        (0o777, 0o700, False),
        (0o775, 0o700, False),
        (0o1777, 0o700, True),
        (0o755, None, True),
        (0o777, None, False),
    ],
)
def test_only_private_folders_are_trusted(tmp_path, above, own, expected):
    parent, folder = tmp_path / "above", tmp_path / "above" / "own"
    parent.mkdir()
    if own is not None:
        folder.mkdir()
        folder.chmod(own)
    parent.chmod(above)
    assert compiling.is_private(folder) == expected
    (tmp_path / "link").symlink_to(folder)
    assert compiling.is_private(tmp_path / "link") == expected


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give folders away")
def test_folders_of_others_are_not_trusted(tmp_path):
    (tmp_path / "theirs" / "ours").mkdir(parents=True)
    os.chown(tmp_path / "theirs", 54321, 54321)
    assert not compiling.is_private(tmp_path / "theirs")
    assert not compiling.is_private(tmp_path / "theirs" / "ours")


@pytest.mark.skipif(sys.platform != "linux", reason="the user's folder is elsewhere")
def test_code_of_others_is_not_loaded(tmp_path, monkeypatch):
    """Code in a folder that others can write to is neither used nor added to, and the next folder is not harmed."""
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "folders_for", lambda function, folder: [compiling.Folder(tmp_path / "users", True)])
    assert Kernel(add_up).load().is_compiled
    assert (tmp_path / "users").stat().st_mode & 0o777 == 0o700
    assert not Kernel(add_up).load().is_compiled
    (tmp_path / "users").chmod(0o777)
    again = Kernel(add_up).load()
    assert again.is_compiled
    assert "others can write" in again.obstacle


# A container: read-only packages, no home, a user without a name. Everything is imported, and numba used once, before
# the user is changed, for the folders of libraries may be closed to others; code is looked for on the first call.
_AS_NOBODY = """
import os, sys
import numba, numpy as np

@numba.njit
def warm_up(values):
    tops = np.zeros(len(values))
    for i in range(len(values)):
        tops[i] = max(tops[i], values[i])
    return tops

warm_up(np.zeros(3))
sys.path.insert(0, sys.argv[1])
from tierank.kernels.ranking import highest
if sys.argv[2] == "nobody":
    os.setgroups([]), os.setgid(54321), os.setuid(54321)
print(highest(np.array([1.0, 3.0, 2.0]), np.array([0, 2, 3])).tolist())
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("home", [None, "/nonexistent", "relative"])
def test_a_read_only_installation_without_a_home(home):
    with tempfile.TemporaryDirectory() as name:
        package = Path(name, "packages")
        shutil.copytree(
            Path(tierank.__file__).parent, package / "tierank", ignore=shutil.ignore_patterns("__pycache__")
        )
        Path(name).chmod(0o755)
        kept = {"HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTHONPATH"}
        environment = {key: value for key, value in os.environ.items() if key not in kept}
        if home is not None:
            environment["HOME"] = home

        def use(user, **more):
            done = subprocess.run(
                [sys.executable, "-c", _AS_NOBODY, package, user],
                capture_output=True, text=True, check=True, cwd=name, env=environment | more,
            )  # fmt: skip
            assert done.stdout == "[3.0, 2.0]\n"
            return done.stderr.splitlines()

        (line,) = use("nobody")
        assert "cannot be kept" in line
        assert "NUMBA_CACHE_DIR" in line
        assert not Path(name, "~").exists()
        use("root", NUMBA_CACHE_DIR=f"{name}/kept")
        assert use("nobody", NUMBA_CACHE_DIR=f"{name}/kept") == []  # read, though it cannot be written
        use("root")
        assert use("nobody") == []  # what root left beside the source


# The command


def test_the_command_says_what_it_did(all_compiled, capsys):
    assert cli.main(["compile"]) == 0
    captured = capsys.readouterr()
    assert f"{len(KERNELS)} functions in " in captured.out
    assert f"0 compiled in 0.0 s, {len(KERNELS)} were there" in captured.out


def test_the_command_refuses_a_place_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["compile", "--to", str(tmp_path / "file")]) == 2
    assert "expected the name of a folder, got a file there" in capsys.readouterr().err


def test_what_cannot_be_kept_ends_the_command(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(compiling, "KERNELS", [Kernel(add_up)])
    with pytest.raises(
        tierank.ParameterError, match=r"compiled code: expected a folder that can be written, got .*file"
    ):
        list(compile_all(tmp_path / "file"))
