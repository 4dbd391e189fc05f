"""What is written takes the place of what tierank wrote, and of nothing else; kills leave nothing in the way."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest
from kills import is_killed_at
from running import running

import tierank
from tierank import Blend, DataError, UMart, URank, files
from tierank.cli import main
from tierank.errors import ParameterError, WriteError
from tierank.files import FolderKind, building, remove_folder, replacing
from tierank.rankers.checkpoint import remove_checkpoint

MARK = FolderKind("a folder of these tests", "mark.json", ("format",))
QUICK = {
    "trees": UMart(n_trees=3, n_jobs=1),
    "trees on a base": UMart(n_trees=3, n_jobs=1, base=URank(max_epochs=1, n_jobs=1)),
    "network": URank(max_epochs=1, n_jobs=1),
    "blend": Blend(n_configs=1, n_seeds=0, rotate=False, n_trees=3, n_jobs=1),
}
each_kind = pytest.mark.parametrize("kind", QUICK)


@pytest.fixture(scope="module")
def data():
    return tierank.make_ranking(30, n_features=4, mean_length=10, max_length=20)


@pytest.fixture(scope="module")
def model(data):
    return UMart(n_trees=3, n_jobs=1).fit(data)


@pytest.fixture
def project(tmp_path):
    """A folder of somebody's work."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    for name in ("README.md", "thesis.tex", "src/precious.csv"):
        (folder / name).write_text("years of work")
    return folder


def listing(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# What is not ours stays


@pytest.mark.parametrize("marker", [None, "not json", "[]", '{"class_name": "Sequential", "config": {}}'])
def test_a_model_replaces_nothing_but_a_model(model, project, marker):
    if marker is not None:
        (project / "model.json").write_text(marker)
    before = listing(project)
    with pytest.raises(DataError, match="project: expected a new name or a model folder, got something else"):
        model.save(project)
    assert listing(project) == before
    assert names(project.parent) == ["project"]


def test_an_export_replaces_nothing_but_an_export(model, project, tmp_path):
    before = listing(project)
    with pytest.raises(DataError, match="project: expected a new name or a folder of an earlier export, got something"):
        model.export(project, to="solr")
    with pytest.raises(DataError, match=r"README\.md: expected a new name or a folder of an earlier export"):
        model.export(project / "README.md", to="solr")  # a folder in the place of a file
    assert listing(project) == before
    for target in ("solr", "elasticsearch", "solr"):
        model.export(tmp_path / "x", to=target)
    with pytest.raises(DataError, match="x: expected the name of a file, got a folder there; choose another name"):
        model.export(tmp_path / "x", to="c")
    assert tierank.verify(model, tmp_path / "x", "solr", tierank.make_ranking(5, n_features=4)).holds


@each_kind
def test_a_checkpoint_replaces_nothing_but_a_checkpoint(data, project, kind):
    for name in ("base", "trees"):  # where a ranker on a base keeps its parts
        (project / name).mkdir()
        (project / name / "precious.csv").write_text("1")
    before = listing(project)
    with pytest.raises(DataError, match=r"project.*: expected a new name or a checkpoint, got something else there"):
        QUICK[kind].fit(data, checkpoint=project)
    assert listing(project) == before


@each_kind
def test_only_what_holds_checkpoints_alone_is_removed_as_one(data, tmp_path, kind):
    QUICK[kind].fit(data, checkpoint=tmp_path / "c")
    if kind == "trees on a base":
        (tmp_path / "c" / "notes.txt").write_text("mine")
        with pytest.raises(DataError, match="c: expected a new name or a checkpoint, got something else there"):
            remove_checkpoint(tmp_path / "c")
        assert names(tmp_path / "c") == ["base", "notes.txt", "trees"]
        (tmp_path / "c" / "notes.txt").unlink()
    remove_checkpoint(tmp_path / "c")
    assert names(tmp_path) == []


def test_train_looks_before_it_works(data, tmp_path, capsys, monkeypatch):
    tierank.write(data, tmp_path / "a.txt")
    monkeypatch.setattr(UMart, "fit", lambda *_, **__: pytest.fail("trained"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "precious.csv").write_text("1")
    (tmp_path / "m.checkpoint").mkdir()
    (tmp_path / "m.checkpoint" / "precious.csv").write_text("1")
    for out, kind in (("taken", "a model folder"), ("m", "a checkpoint")):
        for more in ([], ["--resume"], ["--ranks", "2"]):
            arguments = ["train", "umart", "--train", tmp_path / "a.txt", "--out", tmp_path / out, *more]
            assert main([str(argument) for argument in arguments]) == 2
            said = capsys.readouterr().err
            assert f"expected a new name or {kind}, got something else there; choose another name" in said
            assert said.count("\n") == 1
    assert (tmp_path / "m.checkpoint" / "precious.csv").read_text() == "1"


def test_a_run_may_go_on_with_other_threads(data, tmp_path):
    for kind, ranker in QUICK.items():
        ranker.fit(data, checkpoint=tmp_path / kind)
        more = {"n_jobs": 2} | ({"base__n_jobs": 2} if kind == "trees on a base" else {})
        tierank.rankers.base.clone(ranker).set_params(**more).fit(data, checkpoint=tmp_path / kind)


def test_bases_with_other_settings_are_other_runs(data, tmp_path):
    def fitted(alpha):
        base = URank(max_epochs=1, n_jobs=1, gain={k: alpha * k for k in range(5)})
        return UMart(n_trees=3, n_jobs=1, base=base).fit(data, checkpoint=tmp_path / "c")

    fitted(1.0)
    with pytest.raises(DataError, match="expected a checkpoint of this data and these settings, got one of another"):
        fitted(2.0)


# Kills


KILLED = """
import sys, time
from pathlib import Path
from tierank.files import FolderKind, building
with building(Path(sys.argv[1]), FolderKind("x", "mark.json")) as fresh:
    (fresh / "half").write_text("x")
    print("half", flush=True)
    time.sleep(900)
"""


def test_what_a_killed_process_left_is_removed_and_in_nobodys_way(model, tmp_path):
    with running([sys.executable, "-c", KILLED, str(tmp_path / "m")], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"half\n"
        model.save(tmp_path / "m")  # what another process works on is left to it
        assert len(names(tmp_path)) == 2
    assert len(names(tmp_path)) == 2
    model.save(tmp_path / "m")
    assert names(tmp_path) == ["m"]


def filled(folder, text):
    with building(folder, MARK) as fresh:
        (fresh / "mark.json").write_text(json.dumps({"format": text}))
        (fresh / "inner").mkdir()
        (fresh / "inner" / "content").write_text(text)


FOLDER = {"mark.json", "inner", "inner/content"}
WORK = {
    "a folder is replaced": (lambda place: filled(place, "new"), FOLDER, FOLDER),
    "a folder is removed": (remove_folder, FOLDER, None),
    "a file is replaced": (lambda place: write_text(place, "new"), "old", "new"),
}


def seen(place):
    """What is at a place: the files of a folder, the text of a file, None where there is nothing."""
    if not place.exists():
        return None
    return set(listing(place)) if place.is_dir() else place.read_text()


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("name", WORK)
def test_a_kill_at_any_step_leaves_the_old_or_the_new(tmp_path, name, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr("tierank.files._exchange", lambda *_: False)
    work, old, new = WORK[name]
    place, n_steps = tmp_path / "place", 0
    while True:
        (filled if old is FOLDER else write_text)(place, "old")
        n_steps += 1
        if not is_killed_at(n_steps, lambda: work(place)):
            break
        # Where the system cannot exchange two folders there is a moment between them.
        assert seen(place) in (old, new) or (seen(place) is None and not exchange)
        work(place)
        assert seen(place) == new
        assert names(tmp_path) == ([] if new is None else ["place"])
    assert n_steps > 3


def test_sweeping_leaves_what_is_at_work_and_what_is_not_ours(tmp_path):
    (tmp_path / ".gone.abcdefgh.new" / "inner").mkdir(parents=True)
    for other in (".notes.new", "x.abcdefgh.new", ".gone.abcdefgh.old"):
        (tmp_path / other).mkdir()
    with building(tmp_path / "folder", MARK) as fresh:
        (fresh / "mark.json").write_text("{}")
        files.sweep(tmp_path)
        assert fresh.exists()
        assert ".gone.abcdefgh.new" not in names(tmp_path)
    assert names(tmp_path) == [".gone.abcdefgh.old", ".notes.new", "folder", "x.abcdefgh.new"]
    files.sweep(tmp_path / "nowhere")


def test_the_number_of_a_process_may_come_again(model, tmp_path):
    """In a container every process is number 1."""
    for ending in ("new", "old"):
        left = tmp_path / f".m.{threading.get_native_id()}.{ending}"
        left.mkdir()
        (left / "half").write_text("x")
    model.save(tmp_path / "m")
    model.save(tmp_path / "m")
    remove_folder(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_workshop_that_another_sweeps_before_it_is_held_is_made_again(tmp_path, monkeypatch):
    plain, made = files.tempfile.mkdtemp, []

    def swept(**settings):
        made.append(plain(**settings))
        if len(made) == 1:
            files._sweep(tmp_path / "folder")
        return made[-1]

    monkeypatch.setattr(files.tempfile, "mkdtemp", swept)
    with building(tmp_path / "folder", MARK) as fresh:
        (fresh / "content").write_text("x")
    assert len(made) == 2
    assert names(tmp_path) == ["folder"]


# What is no plain file


def write_text(path, text):
    with replacing(path) as fresh:
        fresh.write_text(text)


def test_a_link_stays_and_what_it_leads_to_is_written(model, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "s.txt").write_text("old")
    for link, to in (("l.txt", "s.txt"), ("new.txt", "there/new.txt"), ("latest", "there/v1")):
        (tmp_path / link).symlink_to(to)
    write_text(tmp_path / "l.txt", "x")
    write_text(tmp_path / "new.txt", "y")
    model.save(tmp_path / "there" / "v1")
    model.save(tmp_path / "latest")
    assert all((tmp_path / link).is_symlink() for link in ("l.txt", "new.txt", "latest"))
    assert (tmp_path / "s.txt").read_text() == "x"
    assert (tmp_path / "there" / "new.txt").read_text() == "y"
    assert names(tmp_path) == ["l.txt", "latest", "new.txt", "s.txt", "there"]
    assert names(tmp_path / "there") == ["new.txt", "v1"]
    assert isinstance(tierank.load(tmp_path / "latest"), UMart)


def test_a_pipe_is_written_to(model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE, text=True)
    write_text(tmp_path / "pipe", "through")
    assert reader.communicate(timeout=900)[0] == "through"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(DataError, match="pipe: expected a new name or a model folder, got something else"):
        model.save(tmp_path / "pipe")
    assert names(tmp_path) == ["pipe"]


def test_a_device_stays_one(tmp_path):
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        write_text(null, "x")
    except PermissionError:
        pytest.skip("devices can be made by root alone")
    assert stat.S_ISCHR(null.stat().st_mode)


def test_permissions_stay(tmp_path):
    (tmp_path / "secret.txt").write_text("old")
    (tmp_path / "secret.txt").chmod(0o600)
    write_text(tmp_path / "secret.txt", "new")
    assert stat.S_IMODE((tmp_path / "secret.txt").stat().st_mode) == 0o600
    for content in ("old", "new"):
        with building(tmp_path / "folder", MARK) as fresh:
            (fresh / "mark.json").write_text(json.dumps({"format": content}))
        (tmp_path / "folder").chmod(0o750)
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750
    write_text(tmp_path / "open.txt", "x")
    plain = tmp_path / "plain.txt"
    plain.write_text("x")
    assert (tmp_path / "open.txt").stat().st_mode == plain.stat().st_mode


def test_a_folder_in_the_place_of_a_file_is_said(project):
    before = listing(project)
    with pytest.raises(DataError, match="project: expected the name of a file, got a folder there; choose another"):
        write_text(project, "x")
    assert listing(project) == before


# Where nothing can be written


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_text("old")
    for error, said in (
        (OSError(28, "No space left on device"), "No space left on device; free some space, or write elsewhere"),
        (
            OSError("640 requested and 0 written"),
            r"640 requested and 0 written \(is the disk full\?\); free some space",
        ),
        (PermissionError(13, "Permission denied", str(tmp_path / "x.txt")), "Permission denied$"),
        (PermissionError(13, "Permission denied", str(tmp_path / ".x.txt.abcdefgh.new" / "x.txt")), "Permission deni"),
        (OSError(5, "Input/output error"), "Input/output error$"),
    ):
        message = rf"x.txt: expected a path that can be written, got: {said}"
        with pytest.raises(WriteError, match=message) as found, replacing(tmp_path / "x.txt"):
            raise error
        assert isinstance(found.value, PermissionError) == isinstance(error, PermissionError)
        assert found.value.errno == error.errno
    assert listing(tmp_path) == {"x.txt": b"old"}


def test_what_says_nothing_of_the_place_stays_what_it_is(tmp_path):
    for error in (
        BrokenPipeError(32, "Broken pipe"),
        FileNotFoundError(2, "No such file", "other"),
        PermissionError(13, "Permission denied", "other"),
    ):
        with pytest.raises(type(error), match=r"Broken|No such|denied") as found, replacing(tmp_path / "x.txt"):
            raise error
        assert found.value is error


def test_a_folder_that_is_not_there_is_said(model, tmp_path):
    with pytest.raises(DataError, match=r"nowhere/x.txt: expected a folder .*nowhere to write to, got none; create it"):
        write_text(tmp_path / "nowhere" / "x.txt", "x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match="file: expected a path that can be written, got: "):
        model.save(tmp_path / "file" / "m")


# Every function that takes the path of a file or a folder.
DOORS = {
    "read": lambda path, data, model: tierank.read(path),
    "read_fold": lambda path, data, model: tierank.read_fold(path, fold=1),
    "read_scores": lambda path, data, model: tierank.read_scores(path, data),
    "write": lambda path, data, model: tierank.write(data, path),
    "write_scores": lambda path, data, model: tierank.write_scores(model.predict(data), path),
    "cache": lambda path, data, model: tierank.read(__file__, cache=path),
    "make_ranking": lambda path, data, model: tierank.make_ranking(3, out=path),
    "save": lambda path, data, model: model.save(path),
    "load": lambda path, data, model: tierank.load(path),
    "export": lambda path, data, model: model.export(path, to="solr"),
    "verify": lambda path, data, model: tierank.verify(model, path, "solr", data),
    "from_lightgbm": lambda path, data, model: tierank.from_lightgbm(path),
    "checkpoint": lambda path, data, model: UMart(n_trees=2).fit(data, checkpoint=path),
    "cross_validate": lambda path, data, model: tierank.cross_validate([UMart(n_trees=2)], data, out=path),
    "Run.open": lambda path, data, model: tierank.Run.open(path),
    "tune": lambda path, data, model: tierank.tune("umart", data, data, trials=1, study=path),
    "clicks.read": lambda path, data, model: tierank.clicks.read(path),
    "clicks.load": lambda path, data, model: tierank.clicks.load(path),
}


@pytest.mark.parametrize(
    ("path", "message"),
    [("", "an empty text"), (b"", "an empty text"), ("a\0b", "a name with a zero byte"), (5, "int")],
)
@pytest.mark.parametrize("door", DOORS)
def test_what_no_file_can_be_called_is_refused(door, path, message, data, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=rf"expected .*, got ({message}|{type(path).__name__})(;|$)"):
        DOORS[door](path, data, model)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")  # noqa: PTH110
def test_a_device_that_is_full_is_said():
    with pytest.raises(WriteError, match="/dev/full: expected a path that can be written, got: No space left on dev"):
        tierank.write_scores([0.5] * 10_000, "/dev/full")


def test_ctrl_c_while_a_folder_is_made_or_removed_leaves_nothing(tmp_path, monkeypatch, request):
    """At each step of the way: SIGINT comes from inside the functions that make, hold and remove the folder."""
    # Shells start background jobs with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    for name in ("tempfile.mkdtemp", "shutil.rmtree"):
        module, _, function = name.partition(".")
        original = getattr(sys.modules[module], function)

        def interrupted(*arguments, original=original, **named):
            made = original(*arguments, **named)
            signal.raise_signal(signal.SIGINT)  # in this thread, before it returns
            return made

        with monkeypatch.context() as patch:
            patch.setattr(f"tierank.files.{name}", interrupted)
            with pytest.raises(KeyboardInterrupt, match=r"^$"), replacing(tmp_path / "file") as fresh:
                fresh.write_text("new")
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("length", [300, 5000])
def test_names_that_are_too_long_are_refused_with_our_errors(tmp_path, length):
    """Also where the system refuses every question about such a name."""
    ranker = tierank.UMart(n_trees=2, n_jobs=1).fit(tierank.make_ranking(6, n_features=3, mean_length=5))
    place = tmp_path / ("x" * length)
    with pytest.raises(DataError, match=r"expected a model folder, with model\.json in it, got nothing there"):
        tierank.load(place)
    for write in (ranker.save, lambda path: ranker.export(path, to="c"), lambda path: ranker.export(path, to="solr")):
        with pytest.raises(WriteError, match="expected a path that can be written, got: File name too long"):
            write(place)
    assert not list(tmp_path.iterdir())
