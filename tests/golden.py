"""What tierank answers today, on small inputs of many kinds.

``python tests/golden.py`` writes the answers to ``tests/golden_answers``, and test_golden.py compares: models, exports,
metrics, commands and HTTP. So a change of the code that should change no answer is seen to change none. If an answer is
meant to change, write the files again, and read the difference before committing it.

Texts are compared exactly. Numbers from networks depend on the processor, so they are kept as a few scores, which may
differ by ``TOLERANCE`` times the largest. The versions of the libraries that do the computing are kept too: with other
versions there is nothing to compare.
"""

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from serve_tools import ask

import tierank
from tierank import RANKERS, RULES, cli
from tierank.export import TARGETS

FOLDER = Path(__file__).parent / "golden_answers"
LIBRARIES = ("lightgbm", "numba", "numpy", "pandas", "scikit-learn", "scipy", "torch")
TOLERANCE = 1e-3

TREES = {"n_trees": 6, "n_leaves": 5, "min_documents": 3, "n_jobs": 1}
NETWORK = {"max_epochs": 2, "hidden": (8, 4), "n_jobs": 1}
QUICK = {name: TREES if hasattr(ranker, "importance") else NETWORK for name, ranker in RANKERS.items()} | {
    "linear": {"n_jobs": 1},
    "blend": {"n_configs": 1, "n_seeds": 1, "rotate": False, "n_trees": 5, "max_epochs": 2, "n_jobs": 1},
}
IS_EXACT = {name for name, settings in QUICK.items() if settings is TREES} | {"linear"}


def versions():
    """What computes the answers."""
    return {name: version(name) for name in LIBRARIES} | {"python": ".".join(platform.python_version_tuple()[:2])}


# Data of many kinds: arguments of ``fit`` and, last, of ``predict``.


def plain(seed=0, n_queries=24):
    data = tierank.make_ranking(n_queries, n_features=5, mean_length=7, max_length=12, seed=seed)
    return np.array(data.features), data.ratings, np.repeat(data.query_ids, data.lengths)


def shop(seed=0, n=160):
    rng = np.random.default_rng(seed)
    words = ["red", "blue", "green", "shoe", "shirt", "hat", "wool"]
    table = pd.DataFrame(
        {
            "qid": np.arange(n) // 8,
            "brand": rng.choice(["acme", "bolt", "core"], n),
            "price": rng.normal(size=n).round(2),
            "term": np.repeat([" ".join(rng.choice(words, 2)) for _ in range(n // 8)], 8),
            "title": [" ".join(rng.choice(words, 4)) for _ in range(n)],
        }
    )
    return table.assign(rating=((table["brand"] == "acme") + (table["price"] > 0) + (rng.random(n) < 0.2)).astype(int))


def with_valid():
    return plain(), {"valid": plain(1, 8)}


def with_categories():
    return (tierank.read(shop(), ignore=["term", "title"]),), {}


def with_texts():
    return (
        tierank.read(shop(), query="qid", columns=tierank.Columns(texts=[("term", "title")]), ignore=["brand"]),
    ), {}


def with_missing():
    X, y, qid = plain(2)
    X[::3, 1] = np.nan
    X[:, 2] = np.where(X[:, 2] > 0, X[:, 2], 0.0)
    return (X, y, qid), {}


def with_unjudged():
    X, y, qid = plain(3)
    return (X, np.where(np.arange(len(y)) % 4 == 1, np.nan, y), qid), {}


def with_weights():
    X, y, qid = plain(4)
    rng = np.random.default_rng(4)
    return (X, y, qid), {
        "row_weight": rng.uniform(0.5, 2, len(y)).round(2),
        "query_weight": dict.fromkeys(np.unique(qid), 1.0) | {qid[0]: 3.0},
    }


def with_positions():
    X, y, qid = plain(5)
    position = np.concatenate([np.arange(1, n + 1) for n in np.unique(qid, return_counts=True)[1]])
    return (X, (y > 1).astype(float), qid), {"position": position}


def one_query():
    X, y, _ = plain(6, 12)
    return (X, y, np.zeros(len(y), dtype=int)), {}


def with_ties():
    X, y, qid = plain(7)
    return (np.round(X), np.minimum(y, 1), qid), {}


def scattered():
    X, y, qid = plain(8)
    order = np.random.default_rng(8).permutation(len(y))
    return (X[order], y[order], qid[order]), {}


KINDS = (
    with_valid,
    with_categories,
    with_texts,
    with_missing,
    with_unjudged,
    with_weights,
    with_positions,
    one_query,
    with_ties,
    scattered,
)


def refusal(error):
    """What an error says in its fields, without its prose."""
    return {"refused": type(error).__name__, "argument": error.argument}


def trained(name, kind=with_valid, **settings):
    (X, *rest), options = kind()
    ranker = RANKERS[name](**(QUICK[name] | settings))
    if not rest:
        return ranker.fit(X, **options), X, None
    return ranker.fit(X, *rest, **options), X, rest[1]


def digest(content):
    return hashlib.sha256(content).hexdigest()[:16]


def content_of(path):
    """What a file says, without what changes with each version of tierank."""
    if path.name == "model.json":
        facts = json.loads(path.read_text())
        return json.dumps({key: facts[key] for key in sorted(facts) if key not in ("tierank", "versions")}).encode()
    return path.read_bytes().replace(tierank.__version__.encode(), b"VERSION")


def files_of(place, is_exact):
    """The files of a folder, or one file, with their digests if these do not depend on the processor."""
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    if (place / "README.md").is_file() and not (place / ".tierank.json").is_file():  # the card of a model
        files.remove(place / "README.md")
    return {str(path.relative_to(place.parent)): digest(content_of(path)) if is_exact else "" for path in files}


def model_answer(name, kind=with_valid, **settings):
    try:
        ranker, X, qid = trained(name, kind, **settings)
    except tierank.TierankError as error:
        return refusal(error)
    scores = ranker.predict(X) if qid is None else ranker.predict(X, qid=qid)
    few = [float(f"{score:.6g}") for score in scores[:4]]
    with tempfile.TemporaryDirectory() as folder:
        ranker.save(Path(folder, "model"))
        loaded = tierank.load(Path(folder, "model"))
        again = loaded.predict(X) if qid is None else loaded.predict(X, qid=qid)
        assert np.array_equal(again, scores)
        files = files_of(Path(folder, "model"), name in IS_EXACT)
    exact = {"digest": digest(np.ascontiguousarray(scores).tobytes())} if name in IS_EXACT else {}
    return {"scores": few, "files": files} | exact


def models():
    for name in RANKERS:
        for kind in KINDS:
            yield f"{name} {kind.__name__}", model_answer(name, kind)
    for name, ranker in RANKERS.items():
        for preset in ranker.PRESETS:
            settings = {
                key: value for key, value in QUICK[name].items() if key not in ("n_configs", "rotate", "hidden")
            }
            if name != "blend":
                yield f"{name} {preset}", model_answer(name, **(ranker.PRESETS[preset] | settings))


def exports():
    chosen = (
        ("umart", with_valid),
        ("umart", with_missing),
        ("lambdamart", with_categories),
        ("linear", with_valid),
        ("urank", with_valid),
        ("blend", with_valid),
    )
    for name, kind in chosen:
        ranker, _, _ = trained(name, kind)
        for target in TARGETS:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder, f"model.{target}")
                try:
                    ranker.export(place, to=target)
                    answer = files_of(place, name in IS_EXACT and target != "onnx")
                except tierank.TierankError as error:
                    answer = refusal(error)
            yield f"{name} {kind.__name__} {target}", answer


def judged():
    """Systems with tied scores, and queries without a rating above 0, of one document and of one rating."""
    rng = np.random.default_rng(9)
    lengths = [1, 2, 5, 8, 12, 3, 9, 7]
    qid = np.repeat([f"q{k}" for k in range(len(lengths))], lengths)
    ratings = rng.integers(0, 4, len(qid)).astype(float)
    ratings[qid == "q5"] = 0
    data = tierank.RankingDataset(
        np.zeros((len(qid), 1)), ratings, qid=qid, document_ids=[f"d{k % 13:02}" for k in range(len(qid))]
    )
    a = np.round(ratings + rng.normal(size=len(qid)), 0)
    return data, {"a": a, "b": rng.normal(size=len(qid)).round(1), "c": a / 2 + ratings}


def metrics():
    data, systems = judged()
    names = [
        "ndcg@1",
        "ndcg@3",
        "ndcg",
        "dcg@5",
        "map",
        "map@3",
        "mrr",
        "precision@3",
        "recall@3",
        "err@5",
        "rbp",
        "bpref",
    ]
    for rule, system in ((rule, system) for rule in RULES for system in ("a", "b")):
        for name in names:
            try:
                values = tierank.evaluate(data, systems[system], name, rule=rule).per_query[name]
                answer = ["-" if np.isnan(value) else f"{value:.12g}" for value in values]
            except tierank.TierankError as error:
                answer = refusal(error)
            yield f"evaluate {rule} {system} {name}", answer
    for rule in RULES:
        found = tierank.compare(data, systems, metrics=["ndcg@5", "map"], rule=rule)
        yield f"compare {rule}", rounded(found.to_dict())


def rounded(answer):
    """The same with 9 digits of each number, and "-" for those that are undefined."""
    if isinstance(answer, dict):
        return {key: rounded(value) for key, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [rounded(value) for value in answer]
    return answer if not isinstance(answer, float) else "-" if np.isnan(answer) else float(f"{answer:.9g}")


# Commands: what they print, in a folder with small files.

COMMANDS = """
tierank --help
tierank --version
tierank list rankers
tierank list rules
tierank list metrics
tierank list targets
tierank list click-models
tierank list settings umart
tierank list settings urank --json
tierank describe train.txt
tierank describe shop.csv --ignore term,title
tierank describe train.txt --json
tierank train umart --train train.txt --valid valid.txt --out umart --set n_trees=5 --set n_jobs=1
tierank train lambdamart --train shop.csv --ignore term,title --out shop --set n_trees=5 --json
tierank train linear --train train.txt --out linear
tierank predict umart test.txt
tierank predict umart test.txt --k 2
tierank predict umart test.txt --out umart.scores
tierank predict linear test.txt --out linear.scores
tierank evaluate test.txt umart.scores
tierank evaluate test.txt umart --metric ndcg@5,map --rule trec_eval --json
tierank evaluate test.txt linear --markdown --per-query -
tierank compare test.txt uMart=umart.scores linear=linear.scores
tierank compare test.txt uMart=umart.scores linear=linear.scores --metric ndcg@5 --latex
tierank compare test.txt uMart=umart.scores linear=linear.scores --json --out run
tierank cv linear lambdamart --data folds --out cv --seeds 1 --jobs 1 --set n_jobs=1 --metric ndcg@5
tierank cv --out cv --metric err@3 --markdown
tierank report run --out report.html
tierank explain umart test.txt --query 6 --above 9 --below 6
tierank export umart --to c --out model.c --verify test.txt
tierank export umart --to solr --out solr
tierank convert test.txt test.csv
tierank convert test.csv back.txt
tierank clicks describe log.csv
tierank clicks fit log.csv --model pbm --out pbm.json
tierank clicks propensities log.csv --json
tierank clicks judge log.csv --out judged.csv
tierank completion bash
tierank
tierank trian umart
tierank train umrt --train train.txt --out x
tierank train umart --train nothing.txt --out x
tierank train umart --train train.txt
tierank train umart --train train.txt --out x --set n_tres=5
tierank train umart --train train.txt --out x --set n_trees=many
tierank train umart --train train.txt --out x --set n_trees=-1
tierank train umart --train train.txt --out shop.csv
tierank train umart --train broken.txt --out x
tierank train umart --train train.txt --out x --num-leaves 5
tierank predict nothing test.txt
tierank predict umart wide.txt
tierank predict umart shop.csv
tierank evaluate test.txt train.txt
tierank evaluate test.txt short.scores
tierank evaluate test.txt umart.scores --metric ndgc@5
tierank evaluate test.txt umart.scores --metric ndcg@0
tierank evaluate test.txt umart.scores --rule trec
tierank compare test.txt umart.scores
tierank compare test.txt a=umart.scores --baseline b
tierank export umart --to lucene --out y
tierank export linear --to solr --out umart
tierank explain umart test.txt --query 99999 --above 1 --below 2
tierank cv umart --data train.txt --out cv
tierank report nothing
tierank convert test.txt test.xyz
tierank clicks fit nothing.csv
tierank describe shop.csv --query-column nobody
tierank serve
tierank list everything
"""

COMMANDS_WITH_HELP = (
    *("demo", "describe", "train", "distill", "predict", "export", "evaluate", "compare", "cv", "tune", "report"),
    *("explain", "serve", "convert", "list", "compile", "completion", "clicks", "clicks describe", "clicks fit"),
    *("clicks propensities", "clicks judge", "clicks simulate", "clicks evaluate"),
)


def write_files():
    """The files that the commands read, in the current folder."""
    parts = tierank.make_ranking(60, n_features=5, mean_length=7, max_length=12, seed=11).split(0.5, 0.25, 0.25)
    for name, part in zip(("train", "valid", "test"), parts, strict=True):
        tierank.write(part, f"{name}.txt")
    shop().to_csv("shop.csv", index=False)
    Path("broken.txt").write_text("1 qid:1 1:0.5\n0 1:0.5\n")
    Path("wide.txt").write_text("1 qid:1 9:0.5\n0 qid:1 1:0.5\n")
    Path("short.scores").write_text("1\n2\n")
    Path("folds").mkdir()
    data = tierank.make_ranking(50, n_features=5, mean_length=7, max_length=12, seed=12)
    for number, part in enumerate(data.split(0.2, 0.2, 0.2, 0.2, 0.2), start=1):
        tierank.write(part, f"folds/S{number}.txt")
    log = tierank.clicks.simulate_clicks(parts[0], parts[0].restore(parts[0].ratings), n_sessions=400, k=5, seed=1).log
    log.write("log.csv")


def transcript(command):
    """What a command prints, without what differs from run to run."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(command.split()[1:])
        except SystemExit as stop:  # argparse
            code = stop.code
    said = [f"exit {code}", *out.getvalue().splitlines(), *(f"! {line}" for line in err.getvalue().splitlines())]
    # How often progress is told depends on the time it takes; the end always is.
    return [steady(line) for line in said if not re.match(r"! training: (\d+) of (?!\1\b)", line)]


def steady(line):
    line = line.replace(str(Path.cwd()), "FOLDER").replace(tierank.__version__, "VERSION").rstrip()
    line = re.sub(r"\b\d+(\.\d+)? (ms|s|CPU s|seconds|min)\b", "TIME", line)
    line = re.sub(r'"(seconds|cpu|loaded|checksum)": [^,}]+', r'"\1": "..."', line)
    line = re.sub(r"^((?:\| )?(?:linear|lambdamart) .*) \d+\.\d( \|)?$", r"\1 TIME\2", line)  # CPU s/run
    return re.sub(r"\b(lightgbm|numpy|numba|torch|scikit-learn|Python) \d[\w.+]*", r"\1 NUMBER", line)


@contextlib.contextmanager
def somewhere_else():
    """A new current folder, and a terminal of 100 columns."""
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["COLUMNS"] = "100"
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)


def commands():
    with somewhere_else():
        write_files()
        for command in COMMANDS.strip().splitlines():
            yield command, transcript(command)
        for command in COMMANDS_WITH_HELP:
            yield f"tierank {command} --help", transcript(f"tierank {command} --help")


ROWS = [[0.1] * 5, [0.2] * 5, [0.9] * 5]
REQUESTS = (
    ("/health", None),
    ("/ready", None),
    ("/models", None),
    ("/openapi.json", None),
    ("/nowhere", None),
    ("/rank", {"features": ROWS}),
    ("/rank", {"features": ROWS, "ids": ["a", "b", "c"], "k": 1}),
    ("/rank", {"documents": [{"id": "a", "features": ROWS[0]}, {"id": "b", "features": ROWS[2]}]}),
    ("/rank", {"features": ROWS[:2], "k": 2, "explain": True}),
    ("/score", {"queries": [{"id": "q", "features": ROWS}, {"features": ROWS[:1]}]}),
    ("/score", {"queries": []}),
    ("/score", {"queries": [{"features": []}]}),
    ("/score", {"queries": [{"features": [[0.1] * 4]}]}),
    ("/score", {"queries": [{"features": [[0.1] * 5, [0.1] * 4]}]}),
    ("/score", {"queries": [{"features": [["x"] * 5]}]}),
    ("/score", {"model": "other", "queries": [{"features": ROWS}]}),
    ("/score", {"query": [{"features": ROWS}]}),
    ("/rank", {"features": ROWS, "k": 0}),
    ("/rank", {"features": ROWS, "ids": ["a", "b"]}),
    ("/rank", {"features": ROWS, "documents": []}),
    ("/score", b"[1, 2"),
    ("/score", b""),
)


def http():
    from tierank import serve

    service = serve.app({"trees": trained("umart")[0]}, threads=1)
    for path, body in REQUESTS:
        code, _, answer = ask(service, path, body)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        shown = "" if body is None else f" {body if isinstance(body, bytes) else json.dumps(body)}"
        yield f"{path}{shown}", [str(code), steady(text)]


GROUPS = {"models": models, "exports": exports, "metrics": metrics, "commands": commands, "http": http}


def answers(group):
    """What tierank answers today, by the name of the case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(GROUPS[group]())


def differences(group, today):
    """The cases in which today's answers differ from the kept ones, with both."""
    kept = json.loads((FOLDER / f"{group}.json").read_text())
    return [
        f"{case}\n  kept:  {kept.get(case)}\n  today: {today.get(case)}"
        for case in (kept | today)
        if case not in kept or case not in today or not is_same(kept[case], today[case])
    ]


def is_same(kept, today):
    """Whether two answers are equal, but for the last digits of scores that depend on the processor."""
    if not isinstance(kept, dict) or "scores" not in kept or "digest" in kept or not isinstance(today, dict):
        return kept == today
    if kept["files"] != today.get("files"):
        return False
    # Less their mean: the derivative of the last bias is 0, and Adam turns its rounding into steps.
    one, other = (np.array(scores) - np.mean(scores) for scores in (kept["scores"], today["scores"]))
    return np.allclose(one, other, rtol=0, atol=TOLERANCE * np.abs(one).max())


def main():
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")
    for group in sys.argv[1:] or GROUPS:
        found = answers(group)
        lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(answer)}" for case, answer in found.items())
        (FOLDER / f"{group}.json").write_text("{\n" + lines + "\n}\n")
        print(f"{group}: {len(found)} answers")


if __name__ == "__main__":
    main()
