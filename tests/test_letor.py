"""LETOR text: the compiled reader against a slow twin, scikit-learn, and every way a file can be wrong."""

import gzip
import os

import numpy as np
import pytest
import reference_letor
from hypothesis import example, given
from hypothesis import strategies as st
from running import examples

from tierank import DataError, RankingDataset, read, write
from tierank.io import letor


def read_bytes(folder, content: bytes, **options) -> RankingDataset:
    path = folder / "data.txt"
    path.write_bytes(content)
    return read(path, **options)


def assert_same(data: RankingDataset, documents) -> None:
    """The data set holds these documents of the slow twin."""
    assert data.n_documents == len(documents)
    assert data.n_features == max(1, max((max(f, default=0) for _, _, f in documents), default=1))
    ids = [str(i) for i in np.repeat(data.query_ids, data.lengths)]
    for row, source in enumerate(data.source_rows):
        rating, query, features = documents[source]
        assert (data.ratings[row], ids[row]) == (rating, query)
        expected = np.zeros(data.n_features, np.float32)
        for index, value in features.items():
            expected[index - 1] = value
        np.testing.assert_array_equal(data.features[row], expected)


def test_reads_what_the_format_allows(tmp_path):
    data = read_bytes(
        tmp_path,
        b"\xef\xbb\xbf# a comment line\n\n"
        b"2 qid:10 1:0.5 2:-3 3:1e-2 #docid = GX-1 inc = 1\r\n"
        b"  0\tqid:10\t3:+7 1:.5   \n"
        b"1.5 qid:10 2:NULL 3:nan 1:5.# second document\n"
        b"0 qid:9\n"
        b"3 qid:10 1:1E3 2:0.00000000000000000000001 3:123456789012345678901234567890",
    )
    np.testing.assert_array_equal(
        data.features,
        np.array(
            [
                [0.5, -3, 0.01],
                [0.5, 0, 7],
                [5, np.nan, np.nan],
                [1000, 1e-23, 123456789012345678901234567890],
                [0, 0, 0],
            ],
            np.float32,
        ),
    )
    assert data.ratings.tolist() == [2, 0, 1.5, 3, 0]
    assert data.query_ids.tolist() == [10, 9]
    assert data.offsets.tolist() == [0, 4, 5]
    assert data.source_rows.tolist() == [0, 1, 2, 4, 3]
    assert data.document_ids == ["GX-1", "", "second document", "", ""]


def test_scattered_rows_are_the_same_data(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{rng.integers(3)} qid:{q} 1:{rng.random():.4f}\n".encode() for q in (3, 1, 2) for _ in range(4)]
    together = read_bytes(tmp_path, b"".join(lines))
    order = np.array([0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11])
    scattered = read_bytes(tmp_path, b"".join(lines[i] for i in order))
    np.testing.assert_array_equal(scattered.features, together.features)
    np.testing.assert_array_equal(scattered.offsets, together.offsets)
    np.testing.assert_array_equal(scattered.restore(scattered.ratings), together.ratings[order])


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["-5", "9223372036854775", "0"], [-5, 9223372036854775, 0]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
        (["7", "007", "+7"], ["7", "007", "+7"]),
        (["-0", "0"], ["-0", "0"]),
        (["apples", "pears/2", "ä"], ["apples", "pears/2", "ä"]),
        (["x" * 5000, "x" * 5001], ["x" * 5000, "x" * 5001]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_query_ids_of_any_kind(tmp_path, ids, expected):
    data = read_bytes(tmp_path, "".join(f"0 qid:{i} 1:1\n" for i in ids).encode())
    assert data.query_ids.tolist() == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected at least one line"),
        (b"# nothing here\n\n", "expected at least one line"),
        (b"0 qid:1 1:2\n1 1:0.5\n", r"data.txt:2: expected qid:<id> as the second field, got '1:0.5'"),
        (b"1 1:0.5\n", r"data.txt:1: expected qid:<id> as the second field, got '1:0.5'"),
        (b"1 qid:\n", r"data.txt:1: expected qid:<id> as the second field, got 'qid:'"),
        (b"1\n", r"data.txt:1: expected qid:<id> as the second field, got nothing"),
        (b"1 qid:1 1:2 qid:3\n", r"data.txt:1: expected qid:<id> as the second field, got it after a feature"),
        (b"\n\n-1 qid:1 1:2\n", r"data.txt:3: expected a finite rating that is not negative, got '-1'"),
        (b"1e999 qid:1 1:2\n", "expected a finite rating that is not negative, got '1e999'"),
        (b"inf qid:1 1:2\n", "expected a finite rating that is not negative, got 'inf'"),
        (b"good qid:1 1:2\n", "expected a rating as the first field, got 'good'"),
        (b"0 qid:1 1:2 2:3 1:4\n", "expected each feature once, got feature 1 twice"),
        (b"0 qid:1 2:2 2:3\n", "expected each feature once, got feature 2 twice"),
        (b"0 qid:1 0:2\n", "expected feature indices >= 1, got '0:2'; or read with zero_based=True"),
        (b"0 qid:1 1:inf\n", "expected a value that float32 can hold, got '1:inf'"),
        (b"0 qid:1 1:-1e39\n", "expected a value that float32 can hold, got '1:-1e39'"),
        (b"0 qid:1 1:abc\n", "expected a number after '1:', got 'abc'"),
        (b"0 qid:1 1:\n", "expected a number after '1:', got nothing"),
        (b"0 qid:1 1:1e\n", "expected a number after '1:', got '1e'"),
        (b"0 qid:1 1:0x10\n", "expected a number after '1:', got '0x10'"),
        (b"0 qid:1 1:1_000\n", "expected a number after '1:', got '1_000'"),
        (b"0 qid:1 1 0.5\n", "expected <index>:<value>, got '1'"),
        (b"0 qid:1 price:3\n", "expected <index>:<value>, got 'price:3'"),
        (b"0 qid:1 -3:3\n", "expected <index>:<value>, got '-3:3'"),
        (b"0 qid:1 123456789:3\n", "expected a feature index of at most 7 digits, got '123456789:3'"),
        (b"\x00\x01\x02", "expected a rating as the first field"),
        (b"0 qid:1 1:--inf\n", "expected a number after '1:', got '--inf'"),
        (b"0 qid:1 1:+-3\n", r"expected a number after '1:', got '\+-3'"),
        (b"0 qid:1 1:\xef\xbc\x91\n", "expected a number after '1:', got '\uff11'"),
        (b"0 qid:1 1:-infinity\n", "expected a value that float32 can hold, got '1:-infinity'"),
        (b"+-inf qid:1 1:2\n", r"expected a rating as the first field, got '\+-inf'"),
        (b"# a comment\n0 qid:1 1:x", r"data.txt:2: expected a number after '1:', got 'x'"),
        (
            b"0 qid:\xff 1:1\n0 qid:\\xff 1:1\n",
            r"data.txt: expected query ids that differ as texts, got b'\\\\xff' and b'\\xff'",
        ),
        (b"0 qid:\0 1:1\n0 qid:\\x00 1:1\n", "expected query ids that differ as texts"),
    ],
)
def test_wrong_content_is_refused_with_its_place(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_bytes(tmp_path, content)


def test_the_place_of_a_late_mistake(tmp_path):
    lines = b"0 qid:1 1:2 2:3\n" * 200_000
    for end in (b"0 qid:1 1:2 2:x\n", b"0 qid:1 1:2 2:x"):
        with pytest.raises(DataError, match=r"data.txt:200001: expected a number after '2:', got 'x'"):
            read_bytes(tmp_path, lines + end)


def test_width(tmp_path):
    rows = b"0 qid:1 1:1\n" * (letor._GUESS + 1) + b"0 qid:1 9:1\n"
    assert read_bytes(tmp_path, rows).n_features == 9  # a later line may be the widest
    assert read_bytes(tmp_path, rows, n_features=12).n_features == 12
    with pytest.raises(DataError, match="expected at most 5 features, as n_features or the model says, got 9"):
        read_bytes(tmp_path, rows, n_features=5)
    assert read_bytes(tmp_path, b"0 qid:1 0:1 2:3\n", zero_based=True).features.tolist() == [[1, 0, 3]]
    with pytest.raises(
        DataError, match=r"the memory of this machine, got .* features; is the feature index 9999999 a mistake\?"
    ):
        read_bytes(tmp_path, b"0 qid:1 9999999:1\n" * 200_000)


def test_gzip(tmp_path):
    content = b"1 qid:a 1:2.5\n0 qid:a 1:1\n"
    (tmp_path / "data.txt.gz").write_bytes(gzip.compress(content))
    assert read(tmp_path / "data.txt.gz").features.tolist() == [[2.5], [1.0]]
    packed = gzip.compress(content * 1000)
    (tmp_path / "cut.txt.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"cut.txt.gz: expected a whole gzip file, got a damaged or truncated one"):
        read(tmp_path / "cut.txt.gz")
    (tmp_path / "bad.txt.gz").write_bytes(packed[:40] + b"\0" * 40 + packed[80:])
    with pytest.raises(DataError, match="expected a whole gzip file"):
        read(tmp_path / "bad.txt.gz")


def test_lightgbm_text(tmp_path):
    file = tmp_path / "rank.train"
    file.write_bytes(b"1 0:0.5 2:1\n0 1:3\n2 0:1\n")
    with pytest.raises(DataError, match=r"rank.train:1: expected qid:<id> as the second field, got '0:0.5'"):
        read(file)
    (tmp_path / "rank.train.query").write_text("2\n1\n")
    (tmp_path / "rank.train.weight").write_text("1\n0.5\n2\n")
    data = read(file)
    assert data.features.tolist() == [[0.5, 0, 1], [0, 3, 0], [1, 0, 0]]
    assert data.offsets.tolist() == [0, 2, 3]
    assert data.row_weight.tolist() == [1, 0.5, 2]
    (tmp_path / "rank.train.query").write_text("2\n2\n")
    with pytest.raises(DataError, match=r"rank.train.query: expected sizes that sum to the 3 rows of .*, got 4"):
        read(file)
    (tmp_path / "rank.train.query").write_text("2\nx\n")
    with pytest.raises(DataError, match=r"rank.train.query: expected a number, got 'x'"):
        read(file)


def test_lightgbm_example_agrees_with_lightgbm(real_data):
    lightgbm = pytest.importorskip("lightgbm")
    path = real_data / "LightGBM-example" / "rank.test"
    data = read(path, cache=False)
    theirs = lightgbm.Dataset(str(path), params={"verbose": -1}).construct()
    assert (data.n_documents, data.n_features) == (theirs.num_data(), theirs.num_feature())
    np.testing.assert_array_equal(data.ratings, theirs.get_label())
    np.testing.assert_array_equal(data.lengths, theirs.get_group())


@pytest.mark.parametrize("name", ["OHSUMED/S1.txt", "MQ2007-85/S3.txt"])
def test_real_files_agree_with_scikit_learn(real_data, name):
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    features, ratings, queries = sklearn_datasets.load_svmlight_file(
        real_data / name, dtype=np.float32, query_id=True, zero_based=False
    )
    data = read(real_data / name, cache=False)
    np.testing.assert_array_equal(data.features, features.toarray())
    np.testing.assert_array_equal(data.ratings, ratings)
    np.testing.assert_array_equal(np.repeat(data.query_ids, data.lengths), queries)
    assert len(set(data.document_ids)) > 1


# Numbers as files write them: plain, long, tiny, huge, halfway between two float32.
float32_ties = st.integers(1, 2**24 - 1).map(lambda m: (m + 0.5) * 2.0**-20).map(lambda v: f"{v:.40f}")
decimals = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"[+-]?[0-9]{0,25}\.[0-9]{1,30}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    float32_ties,
)


@given(st.lists(decimals, min_size=1, max_size=20))
@example(["1.00000005960464477539062500000000000000001"])  # a hair above halfway
@example(["7.0064923216240854e-46", "1.4012984643248170e-45", "3.4028235677973366e38", "5e-324"])
@examples(300)
def test_every_number_is_rounded_as_python_does(tmp_path_factory, numbers):
    content = "".join(f"0 qid:1 1:{number}\n" for number in numbers).encode()
    with np.errstate(over="ignore"):
        expected = np.array([float(number) for number in numbers]).astype(np.float32)
    folder = tmp_path_factory.mktemp("numbers")
    if np.isinf(expected).any():
        with pytest.raises(DataError, match="expected a value that float32 can hold"):
            read_bytes(folder, content)
    else:
        np.testing.assert_array_equal(read_bytes(folder, content).features[:, 0], expected)


@given(st.lists(st.floats(0, 1e300, allow_subnormal=True), min_size=1, max_size=20))
@examples(100)
def test_ratings_keep_every_bit(tmp_path_factory, ratings):
    content = "".join(f"{rating!r} qid:1 1:0\n" for rating in ratings).encode()
    assert read_bytes(tmp_path_factory.mktemp("ratings"), content).ratings.tolist() == ratings


fields = st.one_of(
    st.sampled_from(["0", "1", "2.5", "-1", "abc", "1e", ".", "\r", "\t", "#", "# docid = d1"]),
    st.sampled_from(["qid:1", "qid:2", "qid:", "qid:x", "qid:x\0", "qid:x\\x00"]),
    st.sampled_from(["1:--inf", "1:+-3", "1:-Infinity", "-inf", "1:0x10", "1:1_0", "1:\uff11", "1:+nan", "2:-.5"]),
    st.sampled_from(
        ["1:1", "2:0.5", "3:nan", "1:NULL", "1:", ":1", "0:1", "1:1e5", "7:1", "2:inf", "1:1:1", "99:-.5e-3"]
    ),
)
texts = st.lists(st.lists(fields, max_size=6).map(" ".join), max_size=6).map("\n".join).map(str.encode)


@given(st.one_of(texts, st.binary(max_size=200), st.tuples(texts, st.binary(max_size=5)).map(b"".join)))
@example(b"0 qid:1 1:1 2:2#3\n")
@example(b"0 qid:1 1:\xff\n")
@example(b"0\r\nqid:1")
@examples(1500)
def test_any_bytes_give_the_right_data_or_an_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.txt"
    path.write_bytes(content)
    try:
        expected = reference_letor.read(content)
    except reference_letor.Malformed:
        with pytest.raises(DataError, match="expected"):
            read(path)
    else:
        assert_same(read(path), expected)


def rewritten(path, changed):
    """What happens to a file between the two walks through it."""
    text = path.read_bytes()
    if changed == "cut":
        os.truncate(path, len(text) // 2)
    elif changed == "emptied":
        os.truncate(path, 0)
    elif changed == "longer":
        path.write_bytes(text + b"0 qid:1 1:1\n")
    else:
        path.write_bytes(text.replace(b"\n", b" ") if changed == "one line" else text[::-1])
        os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("changed", ["cut", "emptied", "longer", "one line", "reversed"])
@pytest.mark.parametrize("n_rows", [3, 5000])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, changed, n_rows):
    monkeypatch.setattr(letor, "_PART", 1 << 12)
    path = tmp_path / "data.txt"
    path.write_bytes(b"".join(b"0 qid:%d 1:%d #docid = d%d\n" % (i // 7, i, i) for i in range(n_rows)))
    parsed = letor._Reader.parse

    def later(*arguments):
        rewritten(path, changed)
        return parsed(*arguments)

    monkeypatch.setattr(letor._Reader, "parse", later)
    with pytest.raises(DataError, match=r"data.txt: expected .* while it (is|was) read.* when nothing writes to it"):
        read(path, cache=False)


def test_a_line_may_be_longer_than_what_is_read_in_one_go(tmp_path, monkeypatch):
    monkeypatch.setattr(letor, "_PART", 1 << 8)
    monkeypatch.setattr(letor, "_LOOK", 1 << 4)
    lines = [b"1 qid:%d " % (i // 3) + b" ".join(b"%d:%d" % (k, k) for k in range(1, 300)) for i in range(5)]
    lines[3] += b"#" + b"x" * 5000
    data = read_bytes(tmp_path, b"\n\n".join(lines))
    assert data.features.tolist() == [list(range(1, 300))] * 5
    assert data.offsets.tolist() == [0, 3, 5]
    assert data.document_ids == ["", "", "", "x" * 5000, ""]


@given(
    st.lists(st.floats(width=32, allow_infinity=False), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 4.0, 1e6]), min_size=1, max_size=30),
)
@examples(200)
def test_written_text_reads_back_as_the_same_bits(tmp_path_factory, values, ratings):
    n = min(len(values), len(ratings))
    features = np.array(values[:n], np.float32)[:, None] * np.ones((1, 2), np.float32)
    data = RankingDataset(features, ratings[:n], qid=[f"q{i % 3}" for i in range(n)], document_ids=range(n))
    path = tmp_path_factory.mktemp("written") / "data.txt"
    write(data, path)
    back = read(path)
    np.testing.assert_array_equal(back.features, data.features)
    np.testing.assert_array_equal(np.signbit(back.features), np.signbit(data.features) & ~np.isnan(data.features))
    np.testing.assert_array_equal(back.ratings, data.ratings)
    assert back.query_ids.tolist() == data.query_ids.tolist()
    assert back.document_ids == data.document_ids


def test_written_text_is_short(tmp_path):
    values = np.array([[0.1, 1e-7, 123456.7, 16777216, -2.5e-38, 3e20, 0.00025, 9.999996]], np.float32)
    write(RankingDataset(values, [1]), tmp_path / "data.txt")
    text = (tmp_path / "data.txt").read_text()
    assert text == "1 qid:0 1:0.1 2:1e-07 3:123456.7 4:1.6777216e+07 5:-2.5e-38 6:3e+20 7:0.00025 8:9.999996\n"


def test_ids_that_text_cannot_hold_are_refused(tmp_path):
    data = RankingDataset([[1.0]], [1], qid=["two words"])
    with pytest.raises(DataError, match=r"expected query ids without blanks and '#'.* got 'two words'"):
        write(data, tmp_path / "data.txt")


@given(st.text(min_size=1, max_size=6))
@example("a b")
@example("a\nb")
@example("=a")
@example("#a")
@example("docid")
@examples(200)
def test_document_ids_read_back_or_are_refused(tmp_path_factory, name):
    path = tmp_path_factory.getbasetemp() / "documents.txt"
    data = RankingDataset([[1.0], [2.0]], [1, 0], document_ids=[name, "other"])
    if name.startswith("=") or any(letter <= " " or letter == "#" for letter in name):
        with pytest.raises(DataError, match=r"expected document ids without blanks and '#'.* CSV and Parquet can"):
            write(data, path)
    else:
        write(data, path)
        assert read(path).document_ids == [name, "other"]


def test_threads_change_nothing(tmp_path):
    rng = np.random.default_rng(1)
    data = RankingDataset(rng.normal(size=(60_000, 8)), rng.integers(0, 5, 60_000), qid=np.arange(60_000) // 7)
    write(data, tmp_path / "data.txt")
    for n_jobs in (1, 3):
        back = read(tmp_path / "data.txt", n_jobs=n_jobs, cache=False)
        np.testing.assert_array_equal(back.features, data.features)
        np.testing.assert_array_equal(back.offsets, data.offsets)
