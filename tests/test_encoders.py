"""Text encoders as a kind of column: vectors once per text, the same features everywhere, and plain refusals."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from serve_tools import ask
from test_text_columns import shop

import tierank
from tierank import Columns, DataError, LinearRanker, TextEncoder, UMart
from tierank.cli import main
from tierank.data.columns import Encoded
from tierank.data.vectors import similarities

TREES = {"n_trees": 6, "min_documents": 3, "n_jobs": 1}
CALLS: list[list[str]] = []


def encode(texts):
    """A vector of letters for each text."""
    CALLS.append(list(texts))
    return [[text.lower().count(letter) + 0.01 for letter in "abcdefghilnorstuw"] for text in texts]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TIERANK_CACHE", str(tmp_path / "cache"))
    CALLS.clear()
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def frame():
    return shop()


@pytest.fixture
def columns():
    return Columns(texts={"term": "title"}, encoder=TextEncoder(encode))


def cosine(one, other):
    return one @ other / np.sqrt((one @ one) * (other @ other))


def test_the_features_are_those_of_the_formulas(frame, columns):
    data = tierank.read(frame, query="term", columns=columns)
    learned = LinearRanker().fit(data).match_features(data)
    names = list(learned.feature_names)
    made = {part: learned.features[:, names.index(f"term~title.{part}")] for part in ("cosine", "list_cosine")}
    for first, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        rows = data.source_rows[first:end]
        query = np.array(encode([frame["term"][rows[0]]])[0])
        titles = [frame["title"][row] for row in rows]
        vectors = {k: np.array(encode([text])[0]) for k, text in enumerate(titles) if isinstance(text, str)}
        units = {k: one / np.sqrt(one @ one) for k, one in vectors.items()}
        alike = {k: cosine(query, one) for k, one in units.items()}
        about = sum(np.exp(alike[k] / 0.1) * one for k, one in units.items())
        for k in range(end - first):
            expected = (alike[k], cosine(about, units[k])) if k in units else (np.nan, np.nan)
            got = [made[part][first + k] for part in ("cosine", "list_cosine")]
            np.testing.assert_allclose(got, expected, atol=2e-3)  # vectors have 16 bits


def test_a_text_is_encoded_once_and_the_order_of_rows_changes_no_bit(frame, columns):
    data = tierank.read(frame, query="term", columns=columns)
    ranker = UMart(**TREES).fit(data)
    told = [text for batch in CALLS for text in batch]
    assert sorted(told) == sorted({*frame["term"], *frame["title"].dropna()})
    scores = ranker.predict(frame)
    shuffled = np.random.default_rng(0).permutation(len(frame))
    np.testing.assert_array_equal(ranker.predict(frame.iloc[shuffled]), scores[shuffled])
    assert len([text for batch in CALLS for text in batch]) == len(told)
    assert ranker.needs_list()


def test_batches_are_of_texts_of_similar_length():
    texts = ["x" * (k * 7 % 100 + 1) for k in range(100)]
    TextEncoder(encode).vectors(texts)
    lengths = [len(text) for batch in CALLS for text in batch]
    assert lengths == sorted(lengths)
    assert max(map(len, CALLS)) <= 32


def test_vectors_are_cached_on_disk_if_a_function_has_a_version(cache):
    texts = [f"a text {k}" for k in range(40)]
    first = TextEncoder(encode, version="1").vectors(texts)
    CALLS.clear()
    again = TextEncoder(encode, version="1").vectors(texts)
    assert CALLS == []
    np.testing.assert_array_equal(first, again)
    TextEncoder(encode, version="2").vectors(texts)
    assert sum(map(len, CALLS)) == 40
    for file in cache.rglob("*.safetensors"):  # damaged files are computed again
        file.write_bytes(b"damaged")
    np.testing.assert_array_equal(TextEncoder(encode, version="1").vectors(texts), first)
    CALLS.clear()
    TextEncoder(encode).vectors(texts)
    assert CALLS  # without a version nothing is kept


def test_many_files_of_the_cache_are_joined(cache):
    for k in range(70):
        TextEncoder(encode, version="1").vectors([f"text {k} {j}" for j in range(16)])
    assert len(list(cache.rglob("*.safetensors"))) < 10
    CALLS.clear()
    TextEncoder(encode, version="1").vectors([f"text {k} {j}" for k in range(70) for j in range(16)])
    assert CALLS == []


@pytest.mark.parametrize(
    ("made", "got"),
    [([1.0, 2.0], r"shape \(2,\)"), ([[np.nan], [1.0]], r"shape \(2, 1\)"), ([[1.0]], r"shape \(1, 1\)")],
)
def test_what_is_no_vector_is_refused(made, got):
    with pytest.raises(DataError, match=got) as raised:
        TextEncoder(lambda _: made).vectors(["a", "b"])
    assert raised.value.argument == "encoder"


def test_wrong_declarations_are_refused(tmp_path):
    with pytest.raises(tierank.ParameterError, match="texts to encode") as raised:
        Columns(encoder=encode)
    assert raised.value.argument == "encoder"
    with pytest.raises(tierank.ParameterError, match="name or folder of a sentence-transformers model"):
        Columns(texts={"term": "title"}, encoder=3)
    with pytest.raises(tierank.ParameterError, match="None for a model"):
        TextEncoder(tmp_path, version="1")
    with pytest.raises(DataError, match="weights in safetensors"):
        TextEncoder(tmp_path)


def test_a_model_is_the_same_after_a_file_and_names_its_encoder(frame, columns, tmp_path):
    ranker = LinearRanker().fit(tierank.read(frame, query="term", columns=columns))
    scores = ranker.predict(frame)
    ranker.save(tmp_path / "model")
    kinds = json.loads((tmp_path / "model" / "model.json").read_text())["columns"]
    described = kinds["term~title.cosine"]
    assert described["encoder"] == f"function {__name__}.encode"
    assert described["weights"] == TextEncoder(encode).digest
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(frame), scores)
    assert loaded.columns_.encoder == described["encoder"]
    assert loaded.columns_.texts == (("term", "title"),)
    again = tierank.read(frame, query="term", columns=loaded.columns_)
    np.testing.assert_array_equal(loaded.predict(again), scores)


def test_a_process_without_the_function_says_what_to_do(frame, columns, tmp_path, monkeypatch):
    LinearRanker().fit(tierank.read(frame, query="term", columns=columns)).save(tmp_path / "model")
    monkeypatch.setattr("tierank.data.vectors._KNOWN", {})
    loaded = tierank.load(tmp_path / "model")
    with pytest.raises(DataError, match=r"the function .*encode, got none") as raised:
        loaded.predict(frame)
    assert raised.value.fix is not None
    TextEncoder(encode)
    assert loaded.predict(frame).shape == (len(frame),)


def test_two_functions_of_one_name_are_told_apart_by_their_version(frame, tmp_path):
    columns = Columns(texts={"term": "title"}, encoder=TextEncoder(encode, version="1"))
    ranker = LinearRanker().fit(tierank.read(frame, query="term", columns=columns))
    TextEncoder(encode, version="2")
    assert ranker.predict(frame).shape == (len(frame),)  # the first one is still here


def test_a_served_model_has_the_same_features(frame, columns):
    ranker = UMart(**TREES).fit(tierank.read(frame, query="term", columns=columns))
    application = tierank.serve.app({"shop": ranker}, threads=1)
    table = frame[["term", "title", "price"]].head(8)
    rows = [[value if value == value else None for value in row] for row in table.to_numpy(object).tolist()]
    documents = [{"features": dict(zip(table.columns, row, strict=True))} for row in rows]
    code, _, found = ask(application, "/score", {"queries": [{"documents": documents}]})
    assert code == 200, found
    assert found["queries"][0]["scores"] == ranker.predict(table).tolist()
    assert ask(application, "/rank", {"documents": documents, "k": 3, "explain": True})[0] == 200


def test_missing_vectors_have_no_similarity():
    queries, documents = np.eye(2, dtype=np.float32)[[0, 0, 0]], np.eye(2, dtype=np.float32)[[0, 1, 1]]
    documents[2] = 0
    made = similarities(queries, documents, np.array([0, 3]))
    np.testing.assert_array_equal(made["cosine"], [1, 0, np.nan])
    about = np.array([np.e**10, 1]) / np.hypot(np.e**10, 1)
    np.testing.assert_allclose(made["list_cosine"], [*about, np.nan])
    assert list(similarities(queries, documents, None)) == ["cosine"]


def test_without_the_library_an_encoder_says_which_line_installs_it(monkeypatch):
    monkeypatch.setattr("tierank.extras.find_spec", lambda _: None)
    with pytest.raises(tierank.TierankError, match=r"pip install 'tierank\[text\]'"):
        TextEncoder("no/such-model")


# What rankers start from


def text_scores(data, ranker):
    """min-max of the cosine, and of the cosine with the list, and half of that of the words found; per query."""
    matched = ranker.match_features(data)
    names, total = list(matched.feature_names), np.zeros(matched.n_documents)
    for part, weight in {"cosine": 1.0, "list_cosine": 1.0, "fuzzy_found": 0.5}.items():
        values = np.nan_to_num(matched.features[:, names.index(f"term~title.{part}")], nan=-np.inf)
        for first, end in zip(matched.offsets[:-1], matched.offsets[1:], strict=True):
            own = values[first:end]
            low, high = own[np.isfinite(own)].min(), own.max()
            total[first:end] += weight * (np.maximum(own, low) - low) / (high - low if high > low else 1)
    return matched.restore(total)


def test_trees_start_from_the_ranking_by_texts(frame, columns, tmp_path):
    data = tierank.read(frame, query="term", columns=columns)
    ranker = UMart(n_trees=3, learning_rate=1e-9, min_documents=3).fit(data)
    np.testing.assert_allclose(ranker.predict(frame), text_scores(data, ranker), atol=1e-5)
    ranker = UMart(**TREES).fit(data)
    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(frame), ranker.predict(frame))
    more = UMart(**TREES).fit(data, start=loaded)
    assert more.n_rounds_ == 12
    only = UMart(**TREES, base=LinearRanker(ridge=1.0)).fit(data)  # a base of the caller's own comes first
    assert type(only.base_) is LinearRanker
    assert ranker.base_ is None


def test_trees_for_an_engine_without_lists_start_from_nothing(frame, columns):
    data = tierank.read(frame, query="term", columns=columns)
    ranker = UMart(**TREES, for_target="solr", use_missing=False).fit(data)
    ranker.export(Path(os.environ["TIERANK_CACHE"]).parent / "solr.json", to="solr")


def test_a_strong_ridge_ranks_by_texts(frame, columns):
    data = tierank.read(frame, query="term", columns=columns)
    ranker = LinearRanker(ridge=1e9).fit(data)
    expected = text_scores(data, ranker)
    slope = np.polyfit(expected, ranker.predict(frame), 1)[0]
    assert slope > 0
    np.testing.assert_allclose(ranker.predict(frame), slope * (expected - expected.mean()), atol=1e-4 * slope)


# With sentence-transformers


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder of a random model of sentence-transformers."""
    pytest.importorskip("sentence_transformers")
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{k}" for k in "abcdefghijklmnopqrstuvwxyz"),
    ]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(folder / "bert")
    BertTokenizerFast(vocab={word: place for place, word in enumerate(words)}).save_pretrained(folder / "bert")
    bert = modules.Transformer(str(folder / "bert"))
    SentenceTransformer(modules=[bert, modules.Pooling(16)], device="cpu").save(str(folder / "model"))
    return folder / "model"


def test_a_model_of_sentence_transformers(tiny, frame, tmp_path):
    columns = Columns(texts={"term": "title"}, encoder=str(tiny))
    ranker = LinearRanker().fit(tierank.read(frame, query="term", columns=columns))
    ranker.save(tmp_path / "model")
    frame.to_csv(tmp_path / "shop.csv", index=False)
    loaded = tierank.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(frame), ranker.predict(frame))
    assert TextEncoder.of(str(tiny)) is TextEncoder.of(str(tiny))
    moved = shutil.copytree(tiny, tmp_path / "moved")
    assert TextEncoder(moved).digest == TextEncoder(tiny).digest
    (moved / "config_sentence_transformers.json").write_text("{}")
    assert TextEncoder(moved).digest != TextEncoder(tiny).digest


def test_the_command_line_from_a_csv_file_to_scores(tiny, frame, tmp_path, capsys):
    frame.to_csv(tmp_path / "shop.csv", index=False)
    table, model = str(tmp_path / "shop.csv"), str(tmp_path / "model")
    options = ["--query-column", "term", "--texts", "term:title", "--encoder", str(tiny), "--no-cache"]
    assert main(["train", "linear", "--train", table, "--out", model, *options]) == 0
    out = ["--out", str(tmp_path / "scores.csv")]
    assert main(["predict", model, table, *out, "--query-column", "term", "--no-cache"]) == 0
    kinds = tierank.load(model).seen_.columns.kinds.values()
    assert {kind.part for kind in kinds if isinstance(kind, Encoded)} == {"cosine", "list_cosine"}


# Losses for the training of text models


@pytest.mark.parametrize("name", ["urank", "listmle", "plistmle"])
def test_losses_for_cross_encoders_have_the_gradients_of_the_formulas(tiny, name):
    import torch
    from sentence_transformers import CrossEncoder

    from tierank import losses, paper
    from tierank.integrations.sentence_transformers import CrossEncoderLoss

    model = CrossEncoder(str(tiny.parent / "bert"), num_labels=1, device="cpu")
    model.eval()
    queries, documents = ["red hat", "blue"], [["red hat", "a hat", "shoe", "hats"], ["blue", "green"]]
    labels = [torch.tensor([2.0, 1, 0, 1]), torch.tensor([1.0, 0])]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    found = CrossEncoderLoss(model, name, mini_batch_size=3)([queries, documents], labels)
    gradients = torch.autograd.grad(found, weights, allow_unused=True)
    expected = 0.0
    for query, texts, ratings in zip(queries, documents, labels, strict=True):
        scores = model(model.preprocess([(query, text) for text in texts]))["scores"].view(-1)
        formula = paper.urank_loss if name == "urank" else lambda r, f: getattr(losses, name)(f, r)
        expected = expected + formula(ratings, scores) / 2
    torch.testing.assert_close(found, expected)
    for got, wanted in zip(gradients, torch.autograd.grad(expected, weights, allow_unused=True), strict=True):
        if wanted is not None:
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-4)


def test_a_loss_for_bi_encoders_takes_lists_of_unequal_lengths(tiny):
    import torch
    from sentence_transformers import SentenceTransformer

    from tierank import paper
    from tierank.integrations.sentence_transformers import BiEncoderLoss

    model = SentenceTransformer(str(tiny), device="cpu").eval()
    columns = [["red hat", "blue"], ["red hat", "blue"], ["a hat", "green"], ["shoe", ""]]
    ratings = torch.tensor([[2.0, 0.0, 1.0], [1.0, 0.0, float("nan")]])
    found = BiEncoderLoss(model, scale=10.0)([model.preprocess(texts) for texts in columns], ratings)
    vectors = [model.encode(texts, convert_to_tensor=True) for texts in columns]
    expected = 0.0
    for row, length in enumerate([3, 2]):
        scores = torch.stack([torch.cosine_similarity(vectors[0][row], one[row], dim=0) for one in vectors[1:]])
        expected = expected + paper.urank_loss(ratings[row, :length], 10 * scores[:length]) / 2
    torch.testing.assert_close(found, expected)
    with pytest.raises(DataError, match="2 x 3 ratings"):
        BiEncoderLoss(model)([model.preprocess(texts) for texts in columns], ratings[:, :2])
    with pytest.raises(tierank.ParameterError, match="unknown loss"):
        BiEncoderLoss(model, "urnak")


def test_a_cross_encoder_learns_an_order(tiny):
    import torch
    from sentence_transformers import CrossEncoder

    from tierank.integrations.sentence_transformers import CrossEncoderLoss

    torch.manual_seed(0)
    model = CrossEncoder(str(tiny.parent / "bert"), num_labels=1, device="cpu")
    loss, optimizer = CrossEncoderLoss(model), torch.optim.Adam(model.parameters(), 1e-2)
    batch = [["a"] * 4, [["zz", "b", "zz b", "q"]] * 4], [torch.tensor([0.0, 2, 1, 0])] * 4
    model.eval()
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        value = loss(*batch)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0] / 4
