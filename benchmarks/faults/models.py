"""Damaged and hostile models: each is loaded and scored with; chains of splits are also explained and exported."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults.runner import Case, Table, Wrong, run

RANKERS = ("umart", "lambdamart", "urank", "uboost")
QUICK = {"umart": {"n_trees": 6}, "lambdamart": {"n_trees": 6}}
_NETWORK = {"max_epochs": 2, "hidden": [8, 4]}
BAD_NUMBERS = ["", "nan", "inf", "-1", "1e999", "99999999999999999999", "x", "0x10", "1_0", "-", "2 2", "1.5"]
BAD_VALUES = [None, True, -1, 0, 2**70, 1e300, "", "x" * 5000, "../../etc/passwd", [], {}, [[]], {"a": {}}, [1e9] * 3]
# Splits of a tree that is one long chain.
DEPTHS = (50, 3_000, 30_000)
_OF_NODES = ("value", "weight", "count")
USES = ("predict", "explain", "onnx", "vespa", "c")


def make_models(folder: Path, names: tuple[str, ...] = RANKERS) -> dict[str, Path]:
    """Small models, by the names of their rankers."""
    import tierank

    data = tierank.make_ranking(30, n_features=4, mean_length=12, max_length=20)
    for name in names:
        settings = QUICK.get(name, _NETWORK)
        tierank.RANKERS[name](n_jobs=1, **settings).fit(data).save(folder / name)
    return {name: folder / name for name in names}


# Ways to damage a model. Each changes the files of a folder; those named "forged" also correct the checksum.


def flip_bit(folder: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(folder.iterdir()))
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut_off(folder: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(folder.iterdir()))
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def forged_bits(folder: Path, rng: random.Random) -> None:
    file = _payload(folder, rng)
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 10])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    _forge(file, bytes(content))


def forged_cut(folder: Path, rng: random.Random) -> None:
    file = _payload(folder, rng)
    content = file.read_bytes()
    a, b = sorted(rng.randrange(len(content)) for _ in range(2))
    _forge(file, rng.choice([content[:a], content[:a] + content[b:], content + content[a:b], b""]))


def forged_text(folder: Path, rng: random.Random) -> None:
    """Change one value of a line of the trees, or empty, drop or double a line; sizes are corrected."""
    files = sorted(folder.glob("*trees.txt"))
    if not files:
        return forged_header(folder, rng)
    file = rng.choice(files)
    lines = file.read_text().split("\n")
    places = [i for i, line in enumerate(lines) if "=" in line and i < lines.index("end of trees")]
    place = rng.choice(places)
    name, _, values = lines[place].partition("=")
    parts = values.split(" ")
    parts[rng.randrange(len(parts))] = rng.choice([*BAD_NUMBERS, "0", "1", "3", "1000", "-5"])
    changed = [f"{name}={' '.join(parts)}"]
    lines[place : place + 1] = rng.choice([changed, changed, changed, [f"{name}="], [], [lines[place]] * 2])
    return _forge(file, with_sizes("\n".join(lines)).encode())


def forged_header(folder: Path, rng: random.Random) -> None:
    """Change the header of a safetensors file: offsets, shapes, types, lengths."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return forged_bits(folder, rng)
    file = rng.choice(files)
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    name = rng.choice([key for key in header if key != "__metadata__"])
    header[name] |= rng.choice(
        [
            {"shape": [2**62, 4]}, {"shape": [-1]}, {"shape": []}, {"dtype": "I64"}, {"dtype": "F8"},
            {"data_offsets": [0, 2**63]}, {"data_offsets": [5, 1]}, {"data_offsets": [-4, 8]},
        ]
    )  # fmt: skip
    if rng.random() < 0.3:
        header["member0.more"] = header.pop(name)
    text = json.dumps(header).encode()
    claimed = rng.choice([len(text), len(text), len(text), 2**63, 2**40, 0])
    return _forge(file, struct.pack("<Q", claimed) + text + content[8 + length :])


def hostile_json(folder: Path, rng: random.Random) -> None:
    """Replace a value anywhere in the description, or all of it."""
    file = folder / "model.json"
    text = file.read_text()
    whole = ["[" * 100_000, '{"a":' * 100_000, "1" * 100_000, "NaN", "null", "[]", "", "\x00"]
    whole += [
        text.replace(*change, 1)
        for change in (
            ("{", '{"format": 1,'),
            ('"format": 1', '"format": 2'),
            ('"n_rounds"', '"n_rounds": 1e999, "x"'),
            ('"n_members"', '"n_members": 1e15, "x"'),
            ('"settings": {', '"settings": {"seed": NaN,'),
            ('"hidden": [', '"hidden": [40000, 40000, '),
            ('"trees.txt"', '"../umart/trees.txt"'),
        )
    ]
    if rng.random() < 0.2:
        file.write_bytes(rng.choice([*(w.encode() for w in whole), b"\xff\xfe" + text.encode()]))
        return
    described = json.loads(text)
    place, key = described, rng.choice(list(described))
    while isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.8:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    place[key] = rng.choice(BAD_VALUES)
    file.write_text(json.dumps(described))


DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {
    "flipped bits": flip_bit,
    "truncated files": cut_off,
    "flipped bits, checksum recomputed": forged_bits,
    "truncated files, checksum recomputed": forged_cut,
    "tree text changed, checksum recomputed": forged_text,
    "tensor header changed, checksum recomputed": forged_header,
    "hostile JSON": hostile_json,
}


def _payload(folder: Path, rng: random.Random) -> Path:
    return rng.choice([file for file in sorted(folder.iterdir()) if file.name != "model.json"])


def _forge(file: Path, content: bytes) -> None:
    """Replace a file of a model, and its checksum, as somebody with access to the folder can."""
    file.write_bytes(content)
    description = json.loads((file.parent / "model.json").read_text())
    description["files"][file.name] = hashlib.sha256(content).hexdigest()
    (file.parent / "model.json").write_text(json.dumps(description))


def with_sizes(text: str) -> str:
    """The text with the right ``tree_sizes``, if it still has trees."""
    head, _, rest = text.partition("\n\n")
    body = rest.split("end of trees")[0]
    starts = [i for i in range(len(body)) if body.startswith("Tree=", i) and (i == 0 or body[i - 1] == "\n")]
    sizes = " ".join(str(b - a) for a, b in zip(starts, [*starts[1:], len(body)], strict=True))
    lines = [f"tree_sizes={sizes}" if line.startswith("tree_sizes=") else line for line in head.split("\n")]
    return "\n".join(lines) + "\n\n" + rest


# Calls in another process


def load_and_score(folder: str) -> None:
    """Load a model and score with it."""
    import numpy as np

    import tierank

    X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    if tierank.load(folder).predict(X, qid=np.repeat([1, 2], 6)).shape != (12,):
        raise Wrong("another number of scores than of documents")


def use(folder: str, what: str) -> None:
    """Load a model, and score, explain or export with it."""
    import tierank

    ranker = tierank.load(folder)
    data = tierank.make_ranking(3, n_features=4, mean_length=5, max_length=8)
    if what == "predict":
        ranker.predict(data)
    elif what == "explain":
        tierank.explain_pair(ranker, data, data.query_ids[0], 1, 2)
    else:
        ranker.export(Path(folder, "export"), to=what)


def try_models(n_cases: int, folder: Path, seed: int = 0) -> dict[str, Counter[str]]:
    """Damage models in many ways, load them in other processes, and count the outcomes."""
    table = Table(folder / "kept")
    run(table, damaged_models(n_cases, folder, seed))
    return table.rows


def damaged_models(n_cases: int, folder: Path, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    models = make_models(folder / "sound")
    for number in range(n_cases):
        way = list(DAMAGE)[number % len(DAMAGE)]
        place = folder / f"case{number}"
        shutil.copytree(models[rng.choice(RANKERS)], place)
        DAMAGE[way](place, rng)
        yield Case(way, load_and_score, (str(place),), place)


def chains(folder: Path) -> Iterator[Case]:
    """Models with a tree that is one chain of splits: recursion over trees must be limited."""
    sound = make_models(folder / "chains", ("umart",))["umart"]
    for depth in DEPTHS:
        for what in USES:
            place = folder / f"chain{depth}-{what}"
            shutil.copytree(sound, place)
            forge_chain(place, depth)
            yield Case("chains of splits, new checksum", use, (str(place), what), place, f"{depth} splits, {what}")


def forge_chain(folder: Path, depth: int) -> None:
    """Replace the first tree by one with this many splits, each the right child of the one above."""
    file = folder / "trees.txt"
    before, after = file.read_text().split("Tree=0\n")
    tree, mark, after = after.partition("\n\n\n")
    splits, leaves = range(depth), range(depth + 1)
    values = {
        "num_leaves": [depth + 1],
        "split_feature": [k % 4 for k in splits],
        "threshold": [k / depth for k in splits],
        "decision_type": [2 for k in splits],
        "left_child": [~k for k in splits],
        "right_child": [*(k + 1 for k in splits[:-1]), ~depth],
        "leaf_value": [k / depth for k in leaves],
    }
    values |= {name: [1 for k in leaves] for name in ("leaf_weight", "leaf_count")}
    values |= {name: [1 for k in splits] for name in ("split_gain", *(f"internal_{w}" for w in _OF_NODES))}
    for name, row in values.items():
        tree = re.sub(rf"^{name}=.*$", f"{name}={' '.join(map(str, row))}", tree, flags=re.MULTILINE)
    _forge(file, with_sizes(f"{before}Tree=0\n{tree}{mark}{after}").encode())


def attack(table: Table, folder: Path, count: int, seed: int) -> None:
    """Damage this many models, and try chains of splits."""
    run(table, damaged_models(count, folder, seed))
    run(table, chains(folder))
