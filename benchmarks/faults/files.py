"""Mutated files of every form that tierank reads: each is read correctly, or rejected.

``FORMS`` has the forms: how a valid sample is made, and how it is read. ``DAMAGE`` has the mutations of the bytes of
one of its files. Cases for single forms are in the tables below: numbers with their meaning, ids that differ, headers
of arrays, types of columns, values behind forged checksums.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.models import BAD_NUMBERS, BAD_VALUES
from benchmarks.faults.runner import Case, Table, Wrong, run, tierank_command

# Texts instead of a number, and their meaning: None is rejected, NaN is rejected or missing.
NAN = float("nan")
NUMBERS: dict[str, float | None] = {
    "5": 5, "+5": 5, "-0.0": 0, "5.": 5, ".5": 0.5, "1e-50": 0, "16777217": 16777216, "1e3": 1000, "0" * 400 + "7": 7,
    "0.1" + "0" * 400: 0.1, "340282350000000000000000000000000000000": 3.4028235e38, "nan": NAN, "NaN": NAN,
    "NULL": NAN, "-nan": NAN, "": NAN, "inf": None, "-inf": None, "--inf": None, "+-inf": None, "-+1": None,
    "--1": None, "1e39": None, "1e999": None, "9" * 400: None, "0x10": None, "0b1": None, "0o7": None, "1_0": None,
    "1d5": None, "1e": None, "e5": None, ".": None, "-": None, "1e5e5": None, "1.2.3": None, "infinity": None,
    "infinit": None, "nan(1)": None, "١٢": None, "５": None, "½": None, "²": None, "true": None, "red": None,
    "1;5": None, "1'000": None, "$5": None, "5%": None, "1j": None, "2020-01-01": None, "!DIV/0": None,
}  # fmt: skip
# Pairs of query ids that are two queries.
IDS = [
    (b"\xff", rb"\xff"), (b"\xc3\xa9", b"e\xcc\x81"), (b"7", b"007"), (b"1", b"1.0"), (b"1", b"+1"), (b"a", b"A"),
    (b"1", b"1\xc2\xa0"), (b"9007199254740992", b"9007199254740993"), (b"1e5", b"100000"), (b"\xff", b"\xfe"),
    (b"\xff", b"\xef\xbf\xbd"), (b"a\x00", b"a"), (b"-0", b"0"), (b"18446744073709551617", b"1"),
]  # fmt: skip
# Headers of .npy files: types and shapes, and texts that are not headers.
_HEADER = "{{'descr': {}, 'fortran_order': {}, 'shape': {}}}"
_DESCRIPTIONS = (
    "'|O'", "'<M8[D]'", "'<c16'", "'|V8'", "'<m8[ns]'", "'<U2'", "[('a', '<f8')]", "'x'", "'<f8,<f8'", "5", "'|S0'",
    "'>f8'", "'<f2'", "None",
)  # fmt: skip
_SHAPES = (
    "(-1,)", "9", "(4611686018427387904, 4)", "(99999999999999999999999,)", "(300000000000,)", "(1e3,)", "()",
    "(True,)", "(None,)", "(0,)", "(0, 9)",
)  # fmt: skip
HEADERS = [
    "{}", "{", "", "[]", "[" * 2000, "None", "{'descr': '<f8'}", "{" + "'a': {" * 300 + "}" * 301, "__import__('os')",
    "'\\ud800'", _HEADER.format("'<f8'", False, "(9,)")[:-1], _HEADER.format("'<f8'", 0, "(9,)"),
    *(_HEADER.format(description, False, "(9,)") for description in _DESCRIPTIONS),
    *(_HEADER.format("'<f8'", order, shape) for order in (False, True) for shape in _SHAPES),
]  # fmt: skip
TYPES = (
    "date", "timestamp", "duration", "decimal", "list", "struct", "dictionary", "null", "binary", "bool", "text", "map",
    "float16", "uint64", "huge",
)  # fmt: skip


# Calls in another process: read, and compare with the same data in memory


def read_data(path: str) -> None:
    """Read a data set; what is accepted has to be accepted by a data set in memory too."""
    import tierank

    check_as_in_memory(tierank.read(path, cache=False))


def check_as_in_memory(data: Any) -> None:
    import numpy as np

    import tierank

    ratings = data.ratings if data.is_rated else None
    rows = np.repeat(np.arange(data.n_queries), data.lengths)
    try:
        again = tierank.RankingDataset(
            data.features,
            ratings,
            rows,
            row_weight=data.row_weight,
            query_weight=data.query_weight,
            feature_names=data.feature_names,
            document_ids=data.document_ids,
        )
    except (tierank.TierankError, UnicodeDecodeError) as error:
        raise Wrong(f"read, but refused in memory: {error}") from None
    if again.n_queries != data.n_queries or len(set(data.query_ids.tolist())) != data.n_queries:
        raise Wrong("two queries of one name")


def read_beside_cache(path: str) -> None:
    """Read a valid file next to a damaged cache: the result is its own content, whatever the cache is."""
    import tierank

    plain = tierank.read(path, cache=False)
    try:
        data = tierank.read(path)
    except tierank.TierankError as error:
        raise Wrong(f"a sound file is refused: {error}") from None
    check_same(data, plain)


def check_same(data: Any, plain: Any) -> None:
    import numpy as np

    for name in ("features", "ratings", "offsets"):
        if not np.array_equal(getattr(data, name), getattr(plain, name), equal_nan=True):
            raise Wrong(f"other {name} than those of the file")
    if data.query_ids.tolist() != plain.query_ids.tolist():
        raise Wrong("other queries than those of the file")


def read_scores(path: str) -> None:
    """Read scores for the data set next to them."""
    import numpy as np

    import tierank

    data = tierank.read(Path(path).with_name("data.txt"), cache=False)
    scores = tierank.read_scores(path, data)
    if scores.shape != (data.n_documents,) or scores.dtype != np.float64 or np.isnan(scores).any():
        raise Wrong("no number for each document")


def train_with_settings(path: str) -> None:
    """Train for two rounds with a file of settings."""
    folder = Path(path).parent
    out = folder / "model"
    files = ["--train", str(folder / "data.txt"), "--out", str(out), "--settings", path]
    tierank_command("train", "umart", *files, "--set", "n_trees=2", "--set", "n_jobs=1")
    if not (out / "model.json").exists():
        raise Wrong("no model")


def open_run(path: str) -> None:
    """Open a run, and make the tables and pages."""
    from tierank.experiments import Run
    from tierank.report.tabulate import tabulate_run

    found = Run.open(path)
    json.dumps(found.to_dict())
    found.tidy()
    tabulate_run(found).to_markdown()


def resume_training(path: str) -> None:
    """Resume from a checkpoint: bit-identical to an undisturbed run."""
    import tierank

    folder = Path(path).parent
    data = tierank.read(folder / "data.txt", cache=False)
    model = ranker_of(Path(path).name).fit(data, checkpoint=path)
    if model.predict(data).tolist() != json.loads((folder / "expected.json").read_text()):
        raise Wrong("another model than that of a run that was left alone")


def read_log(path: str) -> None:
    """Read a click log: what is accepted is what a log in memory accepts, and models can be fitted to it."""
    import numpy as np

    from tierank.clicks import ClickLog, make_model, read

    log = read(path)
    again = ClickLog.of(**log.to_columns())
    for name in ("offsets", "queries", "documents", "positions", "clicked"):
        if getattr(log, name).tolist() != getattr(again, name).tolist():
            raise Wrong(f"other {name} than in memory")
    chances = make_model("dbn", max_iterations=3).fit(log).predict(log)
    if not ((chances >= 0) & (chances <= 1)).all() or np.isnan(chances).any():
        raise Wrong("chances that are none")


def load_click_model(path: str) -> None:
    """Load a click model: its probabilities are valid, whatever is in the file."""
    from tierank.clicks import load, read

    chances = load(path).predict(read(Path(path).with_name("log.csv")))
    if not ((chances >= 0) & (chances <= 1)).all():
        raise Wrong("chances that are none")


def read_propensities(path: str) -> None:
    """Read propensities: positive numbers for every position."""
    import numpy as np

    from tierank.clicks import read_propensities

    values = read_propensities(path).at(np.arange(1, 30))
    if not (np.isfinite(values) & (values > 0)).all():
        raise Wrong("propensities that are none")


def read_columns(path: str) -> None:
    """Read a table of texts and dates, and learn from it."""
    import tierank

    columns = tierank.Columns(dates=["listed"], categories=["brand"], texts=[("term", "title")])
    data = tierank.read(path, columns=columns, cache=False)
    tierank.LinearRanker(ridge=1.0, n_jobs=1).fit(data).predict(data)


def read_titles(path: str) -> None:
    from tierank.report.viewer import Titles

    Titles.read(path)


def ranker_of(name: str) -> Any:
    import tierank

    if name == "of-trees":
        return tierank.UMart(n_trees=60, n_jobs=1)
    return tierank.URank(max_epochs=2, hidden=(4,), n_jobs=1)


# Valid samples: each function fills a folder


def _data(n_queries: int = 8, **more: Any) -> Any:
    import tierank

    return tierank.make_ranking(n_queries, n_features=4, mean_length=8, max_length=12, **more)


def _written(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import tierank

        for name in names:
            tierank.write(_data(), folder / name)

    return make


def make_lightgbm(folder: Path) -> None:
    data = _data()
    lines = (
        " ".join([f"{rating:g}", *(f"{j}:{value!r}" for j, value in enumerate(row.tolist()))])
        for rating, row in zip(data.ratings, data.features, strict=True)
    )
    (folder / "data.train").write_text("\n".join(lines) + "\n")
    (folder / "data.train.query").write_text("\n".join(map(str, data.lengths)) + "\n")


def make_cached(folder: Path) -> None:
    """A text that is just large enough to be cached."""
    import numpy as np

    import tierank

    rng = np.random.default_rng(0)
    n = 38_000
    data = tierank.RankingDataset(rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n), np.arange(n) // 20)
    tierank.write(data, folder / "data.txt")
    with (folder / "data.txt").open("a") as file:
        file.write("#" + "x" * max(0, (4 << 20) + 9 - file.tell()))
    tierank.read(folder / "data.txt")
    if not (folder / "data.txt.tierank").is_dir():
        raise RuntimeError("no cache was written")


def _scores(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import numpy as np

        import tierank

        data = _data()
        tierank.write(data, folder / "data.txt")
        data = tierank.read(folder / "data.txt")
        values = np.random.default_rng(0).normal(size=data.n_documents)
        if name.endswith(".npy"):
            np.save(folder / name, values)
        elif name.endswith(".run"):
            tierank.write_run(data, values, folder / name)
        elif name.endswith(".ranklib"):
            index = np.arange(data.n_documents) - np.repeat(data.offsets[:-1], data.lengths)
            queries = np.repeat(data.query_ids, data.lengths)
            rows = zip(queries, index, values.tolist(), strict=True)
            (folder / name).write_text("".join(f"{q}\t{i}\t{v!r}\n" for q, i, v in rows))
        else:
            tierank.write_scores(values, folder / name)

    return make


def make_settings(folder: Path) -> None:
    import tierank

    tierank.write(_data(), folder / "data.txt")
    settings = {"learning_rate": 0.1, "n_leaves": 7, "min_documents": 5, "window": 2, "select_by": ["ndcg@5"]}
    (folder / "settings.json").write_text(json.dumps({"ranker": "umart", "settings": settings}))


def make_run(folder: Path) -> None:
    import tierank

    rankers = [tierank.LambdaMART(n_trees=2, n_jobs=1), tierank.UMart(n_trees=2, n_jobs=1)]
    tierank.cross_validate(rankers, _data(20), metrics=["ndcg@3", "map"], out=folder / "run", n_jobs=1)


def _checkpoint(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import tierank

        tierank.write(_data(), folder / "data.txt")
        data = tierank.read(folder / "data.txt")
        model = ranker_of(name).fit(data, checkpoint=folder / name)
        (folder / "expected.json").write_text(json.dumps(model.predict(data).tolist()))

    return make


def make_titles(folder: Path) -> None:
    rows = "".join(f'{q},{d},"a title, number {d}"\n' for q in range(5) for d in range(5))
    (folder / "titles.csv").write_text("query,document,title\n" + rows)


def make_log(folder: Path) -> None:
    """A log in every form, and the files made from it."""
    from tierank.clicks import ClickLog, estimate_propensities, make_model, save

    rng = random.Random(0)
    rows = [(s, f"q{s % 4}", f"d{(s + k) % 7}", k + 1, int(rng.random() < 0.6 / (k + 1))) for s in range(40)
            for k in range(5)]  # fmt: skip
    names = ("session", "query", "document", "position", "clicked")
    log = ClickLog.of(**dict(zip(names, zip(*rows, strict=True), strict=True)))
    for ending in ("csv", "parquet"):
        log.write(folder / f"log.{ending}")
    (folder / "log.csv.gz").write_bytes(gzip.compress((folder / "log.csv").read_bytes()))
    for name in ("pbm", "ubm", "dbn"):
        save(make_model(name).fit(log), folder / f"{name}.json")
    found = estimate_propensities(log, n_bootstrap=2).to_dict()
    (folder / "propensities.json").write_text(json.dumps(found))


def make_columns(folder: Path) -> None:
    """A table of texts and dates."""
    import pandas as pd

    n = 60
    table = pd.DataFrame(
        {
            "qid": [k // 6 for k in range(n)],
            "rating": [k % 3 for k in range(n)],
            "brand": [("acme", "bolt", None)[k % 3] for k in range(n)],
            "listed": [f"2024-{1 + k % 12:02}-{1 + k % 28:02}T12:30:00" for k in range(n)],
            "term": [f"red shoe {k // 6}" for k in range(n)],
            "title": [f"shoe {k % 7}, red" for k in range(n)],
            "price": [k / 7 for k in range(n)],
        }
    )
    table.to_csv(folder / "table.csv", index=False)
    table.to_parquet(folder / "table.parquet")


class Form(NamedTuple):
    """A form: makes a valid sample in a folder; the files to damage; the path to read, and its reader."""

    make: Callable[[Path], None]
    damaged: str
    path: str
    read: Callable[[str], None]


FORMS = {
    "LETOR text": Form(_written("data.txt"), "data.txt", "data.txt", read_data),
    "LETOR text, gzip": Form(_written("data.txt.gz"), "data.txt.gz", "data.txt.gz", read_data),
    "LightGBM text and .query": Form(make_lightgbm, "data.train*", "data.train", read_data),
    "CSV": Form(_written("data.csv"), "data.csv", "data.csv", read_data),
    "Parquet": Form(_written("data.parquet"), "data.parquet", "data.parquet", read_data),
    "binary folder": Form(_written("data.tierank"), "data.tierank/*", "data.tierank", read_data),
    "cache next to a file": Form(make_cached, "data.txt.tierank/*", "data.txt", read_beside_cache),
    "scores, text": Form(_scores("scores.txt"), "scores.txt", "scores.txt", read_scores),
    "scores, CSV": Form(_scores("scores.csv"), "scores.csv", "scores.csv", read_scores),
    "scores, .npy": Form(_scores("scores.npy"), "scores.npy", "scores.npy", read_scores),
    "scores, RankLib": Form(_scores("scores.ranklib"), "scores.ranklib", "scores.ranklib", read_scores),
    "scores, TREC run": Form(_scores("scores.run"), "scores.run", "scores.run", read_scores),
    "qrels": Form(_written("data.qrels"), "data.qrels", "data.qrels", read_data),
    "settings file of train": Form(make_settings, "settings.json", "settings.json", train_with_settings),
    "experiment folder of cv": Form(make_run, "run/**/*.*", "run", open_run),
    "checkpoint of trees": Form(_checkpoint("of-trees"), "of-trees/*", "of-trees", resume_training),
    "checkpoint of networks": Form(_checkpoint("of-networks"), "of-networks/*", "of-networks", resume_training),
    "titles file of report": Form(make_titles, "titles.csv", "titles.csv", read_titles),
    "texts and dates, CSV": Form(make_columns, "table.csv", "table.csv", read_columns),
    "texts and dates, Parquet": Form(make_columns, "table.parquet", "table.parquet", read_columns),
    "click log, CSV": Form(make_log, "log.csv", "log.csv", read_log),
    "click log, gzip": Form(make_log, "log.csv.gz", "log.csv.gz", read_log),
    "click log, Parquet": Form(make_log, "log.parquet", "log.parquet", read_log),
    "click model, pbm": Form(make_log, "pbm.json", "pbm.json", load_click_model),
    "click model, ubm": Form(make_log, "ubm.json", "ubm.json", load_click_model),
    "click model, dbn": Form(make_log, "dbn.json", "dbn.json", load_click_model),
    "propensities": Form(make_log, "propensities.json", "propensities.json", read_propensities),
}


# Damage: from the bytes of a file to others


def bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cuts(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    without, doubled = content[:a] + content[b:], content[:b] + content[a:]
    return rng.choice([content[:a], content[a:], without, doubled, content + content[a:b]])


def tokens(content: bytes, rng: random.Random) -> bytes:
    """Tokens that are swapped, doubled, dropped or joined."""
    parts = re.split(rb"([\s,:;\"\[\]{}]+)", content)
    a, b = rng.randrange(len(parts)), rng.randrange(len(parts))
    way = rng.randrange(4)
    if way == 0:
        parts[a], parts[b] = parts[b], parts[a]
    elif way == 1:
        parts[a] = b""
    elif way == 2:
        parts.insert(a, parts[b])
    else:
        parts[a] *= rng.choice([2, 50])
    return b"".join(parts)


def numbers(content: bytes, rng: random.Random) -> bytes:
    """A hostile text instead of a number."""
    found = list(re.finditer(rb"-?\d[\d.eE+-]*", content))
    if not found:
        return bits(content, rng)
    place = rng.choice(found)
    other = rng.choice([*NUMBERS, *BAD_NUMBERS, "-1", "0", str(2**31), str(2**63), str(2**64), "1e18"])
    return content[: place.start()] + other.encode() + content[place.end() :]


def encodings(content: bytes, rng: random.Random) -> bytes:
    """Byte order marks, other encodings, zero bytes, other line ends, invalid UTF-8."""
    place = rng.randrange(min(len(content), 60) + 1)
    odd = rng.choice([b"\xff", b"\x00", b"\xc3", b"\xed\xa0\x80", b"\xc3\xa9", b"\xf5\x80", b"\xe2\x80\xa8", b"\x1a"])
    return rng.choice(
        [
            b"\xef\xbb\xbf" + content,
            content.decode("latin-1").encode("utf-16"),
            content.decode("latin-1").encode("utf-32"),
            content.replace(b"\n", b"\r\n"),
            content.replace(b"\n", b"\r"),
            *[content[:place] + odd + content[place:]] * 5,
        ]
    )


def sizes(content: bytes, rng: random.Random) -> bytes:
    """Nothing, blanks, huge lines and fields, endless nesting."""
    place = rng.randrange(len(content) + 1)
    huge = rng.choice([b"9", b"x", b" ", b"1:1 ", b",", b"\n", b"\x00", b'"', b"#"]) * 300_000
    nested = rng.choice([b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000, b"1" * 100_000])
    return rng.choice([b"", b"\n", b" ", b"\x00", nested, nested, content[:place] + huge + content[place:]])


def values(content: bytes, rng: random.Random) -> bytes:
    """In JSON: another value anywhere. In an array: another header, or invalid values."""
    if content.startswith(b"\x93NUMPY"):
        return arrays(content, rng)
    try:
        described = json.loads(content)
        key = rng.choice(list(described))
    except (ValueError, TypeError, RecursionError, IndexError):
        return rng.choice([tokens, numbers, encodings])(content, rng)
    place: Any = described
    while isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.8:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    place[key] = rng.choice(BAD_VALUES)
    return json.dumps(described).encode()


def arrays(content: bytes, rng: random.Random) -> bytes:
    import numpy as np

    if rng.random() < 0.6:
        header = rng.choice(HEADERS).encode()
        version, length = rng.choice([(b"\x01\x00", 2), (b"\x02\x00", 4), (b"\x03\x00", 4), (b"\x09\x00", 2)])
        return b"\x93NUMPY" + version + len(header).to_bytes(length, "little") + header + content[128:]
    array = np.load(io.BytesIO(content))
    kind = rng.choice(["c16", "M8[s]", "m8[s]", "U3", "S3", "?", "f2", "f4", ">f8", "u8", "i1", "O", "longdouble"])
    shaped = rng.choice([array, array[:0], array[None], array.reshape(-1, 1), array[::-1], array[:-1]])
    saved = io.BytesIO()
    with suppress(TypeError, ValueError, OverflowError):
        shaped = shaped.astype(kind)
    np.save(saved, shaped, allow_pickle=True)
    return saved.getvalue()


DAMAGE = {f.__name__: f for f in (bits, cuts, tokens, numbers, encodings, sizes, values)}


def damaged_files(count: int, folder: Path, seed: int, names: Iterable[str] = FORMS) -> Iterator[Case]:
    """Yields ``count`` cases of each form, with each kind of damage in turn."""
    rng = random.Random(seed)
    for name in names:
        form = FORMS[name]
        short = name.replace(" ", "-").replace(",", "")
        sound = folder / "sound" / name
        sound.mkdir(parents=True)
        form.make(sound)
        for number in range(count):
            way = list(DAMAGE)[number % len(DAMAGE)]
            place = folder / f"{short}-{number}"
            shutil.copytree(sound, place)
            file = rng.choice(sorted(f for f in place.glob(form.damaged) if f.is_file() and f.stat().st_size))
            content = file.read_bytes()
            if file.suffix == ".gz" and rng.random() < 0.7:
                file.write_bytes(gzip.compress(DAMAGE[way](gzip.decompress(content), rng), 1))
            else:
                file.write_bytes(DAMAGE[way](content, rng))
            note = f"{way} of {re.sub('[0-9]+', '1', file.name)}"
            yield Case(name, form.read, (str(place / form.path),), place, note)


# Cases of single forms


def check_number(path: str, place: str, meaning: float | None) -> None:
    """A text instead of a number is rejected, or read as what it means."""
    import numpy as np

    import tierank

    data = tierank.read(path, cache=False)
    value = data.features[0, 0] if place == "feature" else data.ratings[0]
    if meaning is None or not np.array_equal(value, np.asarray(meaning, value.dtype), equal_nan=True):
        raise Wrong(f"read as {value}")


def check_ids(path: str) -> None:
    """Two query ids that differ are two queries."""
    import tierank

    if tierank.read(path, cache=False).n_queries != 2:
        raise Wrong("two queries became one")


def odd_numbers(folder: Path) -> Iterator[Case]:
    forms = {
        "LETOR text": ("data.txt", "{rating} qid:1 1:{feature} 2:1\n2 qid:1 1:2 2:0\n"),
        "CSV": ("data.csv", 'qid,label,a,b\n1,"{rating}","{feature}",1\n1,2,2,0\n'),
    }
    for form, (name, text) in forms.items():
        for place in ("feature", "rating"):
            for number, (given, meaning) in enumerate(NUMBERS.items()):
                where = folder / f"number-{name}-{place}-{number}"
                where.mkdir()
                texts = {"rating": "1", "feature": "1"} | {place: given}
                (where / name).write_text(text.format(**texts), encoding="utf-8")
                if place == "rating" and (meaning == meaning is not None or given == "1e39"):  # they are doubles
                    meaning = float(given)
                note = f"{given[:20]!r} as a {place}"
                yield Case(f"{form}: odd numbers", check_number, (str(where / name), place, meaning), where, note)


def ids_that_differ(folder: Path) -> Iterator[Case]:
    forms = {
        "LETOR text": ("data.txt", b"0 qid:%b 1:1\n1 qid:%b 1:2\n0 qid:%b 1:1\n1 qid:%b 1:2\n"),
        "CSV": ("data.csv", b'qid,label,a\n"%b",0,1\n"%b",1,2\n"%b",0,1\n"%b",1,2\n'),
    }
    for form, (name, text) in forms.items():
        for number, (one, other) in enumerate(IDS):
            where = folder / f"ids-{name}-{number}"
            where.mkdir()
            (where / name).write_bytes(text % (one, one, other, other))
            yield Case(f"{form}: distinct ids", check_ids, (str(where / name),), where, f"{one!r} and {other!r}")


def read_column(path: str, name: str, kind: str) -> None:
    """Write a Parquet file with a column of some type, and read it."""
    from datetime import date, datetime, timedelta
    from decimal import Decimal

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet

    odd = {
        "date": [date(2020, 1, k + 1) for k in range(4)],
        "timestamp": [datetime(2020, 1, k + 1) for k in range(4)],
        "duration": [timedelta(k) for k in range(4)],
        "decimal": [Decimal(f"{k}.5") for k in range(4)],
        "list": [[1.0, 2.0]] * 4,
        "struct": [{"x": 1}] * 4,
        "dictionary": pa.array(["a", "b", "a", None]).dictionary_encode(),
        "null": pa.nulls(4),
        "binary": [b"\xff"] * 4,
        "bool": [True, False, None, True],
        "text": ["1", "2", "x", "3"],
        "map": pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64())),
        "float16": pa.array(np.ones(4, np.float16)),
        "uint64": pa.array([2**64 - 1] * 4, pa.uint64()),
        "huge": pa.array([1e300] * 4),
    }[kind]
    columns = {"qid": [1, 1, 2, 2], "label": [0, 1, 0, 1], "a": [1.0, 2.0, 3.0, 4.0]} | {name: odd}
    pyarrow.parquet.write_table(pa.table(columns), path)
    read_data(path)


def columns_of_all_types(folder: Path) -> Iterator[Case]:
    for kind in TYPES:
        for name in ("b", "label", "qid"):
            where = folder / f"column-{kind}-{name}"
            where.mkdir()
            path = str(where / "data.parquet")
            yield Case("Parquet: columns of all types", read_column, (path, name, kind), where, f"{kind} as {name}")


def read_forged(path: str, what: str) -> None:
    """Read a binary folder in which a value was changed together with its checksum."""
    forge_values(Path(path), what)
    read_data(path)


FORGERIES: dict[str, tuple[str, Any]] = {
    "ratings that are NaN": ("ratings", NAN),
    "negative ratings": ("ratings", -1.0),
    "infinite ratings": ("ratings", float("inf")),
    "infinite features": ("features", float("inf")),
    "a query twice": ("query_ids", None),
    "negative weights": ("row_weight", -1.0),
}


def forge_values(folder: Path, what: str) -> None:
    import numpy as np

    name, value = FORGERIES.get(what, ("ratings", 0.0))
    file = folder / f"{name}.npy"
    array = np.load(file) if file.exists() else np.ones(len(np.load(folder / "ratings.npy")))
    array[1] = array[0] if value is None else value
    np.save(file, array)
    meta = json.loads((folder / "meta.json").read_text())
    meta["files"][name] = [file.stat().st_size, zlib.crc32(file.read_bytes())]
    if what == "names twice":
        meta["feature_names"] = ["a", "a", "b", "c"]
    elif what == "names that are no texts":
        meta["feature_names"] = [1, None, [], {}]
    elif what == "too few names":
        meta["feature_names"] = ["a"]
    (folder / "meta.json").write_text(json.dumps(meta))


def forged_folders(folder: Path) -> Iterator[Case]:
    for number, what in enumerate([*FORGERIES, "names twice", "names that are no texts", "too few names"]):
        where = folder / f"forged-{number}"
        where.mkdir()
        _written("data.tierank")(where)
        yield Case("binary folder: forged values", read_forged, (str(where / "data.tierank"), what), where, what)


def read_replaced(folder: str, how: str) -> None:
    """Read a file twice, with a cache; in between it is replaced by another of the same size."""
    import tierank

    path, cache = Path(folder, "data.txt"), Path(folder, "cache.tierank")
    path.write_text("0 qid:1 1:1\n1 qid:1 1:2\n")
    tierank.read(path, cache=cache)
    times = path.stat()
    other = Path(folder, "other.txt")
    other.write_text("1 qid:1 1:1\n0 qid:1 1:2\n")
    if how == "written over":
        path.write_bytes(other.read_bytes())
    elif how == "copied over":
        shutil.copyfile(other, path)
    else:
        other.replace(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if tierank.read(path, cache=cache).ratings.tolist() != [1, 0]:
        raise Wrong("the old content")


def read_pipe(folder: str, how: str) -> None:
    """Read a named pipe, with or without a writer."""
    import tierank

    path = Path(folder, "data.txt")
    os.mkfifo(path)
    if how == "somebody writes":
        threading.Thread(target=path.write_text, args=("0 qid:1 1:1\n1 qid:1 1:2\n",), daemon=True).start()
    if tierank.read(path).n_documents != 2:
        raise Wrong("other documents")


def read_place(path: str) -> None:
    """Read something that is not a file."""
    import tierank

    tierank.read(path)


def use_cut(folder: str) -> None:
    """Score a data set whose file was truncated after it was mapped."""
    import tierank

    data = tierank.make_ranking(400, n_features=4, mean_length=20, max_length=40)
    tierank.write(data, Path(folder, "data.tierank"))
    mapped = tierank.read(Path(folder, "data.tierank"))
    os.truncate(Path(folder, "data.tierank", "features.npy"), 1000)
    tierank.RankingDataset(mapped.features, mapped.ratings)


def odd_places(folder: Path) -> Iterator[Case]:
    def place(name: str) -> Path:
        where = folder / f"place-{name.replace(' ', '-')}"
        where.mkdir()
        return where

    for how in ("written over", "copied over", "moved over"):
        where = place(how)
        yield Case("cache of a replaced file", read_replaced, (str(where), how), where, how)
    for how in ("nobody writes", "somebody writes"):
        where = place(how)
        yield Case("pipes, devices, folders", read_pipe, (str(where), how), where, f"a pipe, {how}")
    for path in ("/dev/null", "/dev/zero", "/proc/self/mem", "/", "", "\0", "x" * 5000, "/dev/null/x"):
        yield Case("pipes, devices, folders", read_place, (path,), None, repr(path[:20]))
    where = place("cut")
    yield Case("mapped file truncated", use_cut, (str(where),), where)


def attack(table: Table, folder: Path, count: int, seed: int) -> None:
    """``count`` mutations of each form, and all cases of single forms."""
    run(table, damaged_files(count, folder, seed))
    for particular in (odd_numbers, ids_that_differ, columns_of_all_types, forged_folders, odd_places):
        run(table, particular(folder), deadline=30)
