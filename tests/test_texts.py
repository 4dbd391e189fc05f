"""Match features: word breaking by hand, numbers by a slow twin, and what must not change them."""

import math
import re
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

from tierank.data.text import PARTS, BM25Statistics
from tierank.errors import DataError
from tierank.kernels.texts import different_grams

DOCUMENTS = [
    "Simpson Strong-Tie 12-Gauge Angle",
    "BEHR Premium Textured DeckOver 1-gal. Wood and Concrete Coating",
    "angle angle bracket 12 in.",
    "Delta Vero 1-Handle Shower Only Faucet Trim Kit",
    "",
    "Straße 3.5 V, l'été",
]
QUERIES = ["angle bracket", "deck over", "12 gauge angle", "shower", "angle", "strasse 3.5", "été", ""]


def slow_words(text):
    """Words of Latin texts: letters and digits in a row, joined by a mark between two letters or two digits."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    letter, digit = r"[^\W\d]", r"\d"
    rule = rf"(?:\w|(?<={letter})[.':](?={letter})|(?<={digit})[.',;](?={digit}))+"
    return re.findall(rule, plain)


def slow_grams(word):
    padded = f" {word} "
    return [padded[i : i + 3] for i in range(len(word))]


def slow_statistics(documents):
    broken = [slow_words(text) for text in dict.fromkeys(filter(None, documents))]
    words = Counter(word for text in broken for word in set(text))
    grams = Counter(gram for text in broken for gram in {gram for word in text for gram in slow_grams(word)})
    return len(broken), sum(map(len, broken)) / len(broken), words, grams


def dice(one, other):
    a, b = slow_grams(one), slow_grams(other)
    return min(2 * sum(gram in b for gram in a) / (len(a) + len(b)), 1.0)


def slow_match(query, document, statistics):
    n, mean, word_counts, gram_counts = statistics
    q, d = slow_words(query), slow_words(document)
    found = dict.fromkeys(PARTS, 0.0) | {"query_length": len(q), "document_length": len(d), "first_place": 1.0}
    if not q or not d:
        return found

    def rarity(count):
        return math.log(1 + (n - count + 0.5) / (count + 0.5))

    weight = {word: rarity(word_counts[word]) for word in q + d}
    tf = Counter(d)
    found["bm25"] = sum(weight[word] * tf[word] * 2.2 / (tf[word] + 1.2 * (0.25 + 0.75 * len(d) / mean)) for word in q)
    vectors = [{word: count * weight[word] for word, count in Counter(text).items()} for text in (q, d)]
    found["tfidf_cosine"] = cosine(*vectors)
    sets = [{gram for word in text for gram in slow_grams(word)} for text in (q, d)]
    found["gram_cosine"] = cosine(*({gram: rarity(gram_counts[gram]) for gram in grams} for grams in sets))
    found["grams_found"] = len(sets[0] & sets[1]) / len(sets[0])
    total = sum(weight[word] for word in q)
    found["words_found"] = sum(word in d for word in q) / len(q)
    found["weight_found"] = sum(weight[word] for word in q if word in d) / total
    found["document_words_found"] = sum(word in q for word in d) / len(d)
    best = {word: 1.0 if word in d else max(dice(word, other) for other in d) for word in q}
    found["fuzzy_found"] = sum(weight[word] * best[word] for word in q) / total
    pairs = [any(d[j : j + 2] == q[i : i + 2] for j in range(len(d) - 1)) for i in range(len(q) - 1)]
    found["pairs_found"] = sum(pairs) / len(pairs) if pairs else found["words_found"]
    numbers = [word for word in q if any(character.isdigit() for character in word)]
    found["numbers_found"] = sum(word in d for word in numbers) / len(numbers) if numbers else 1.0
    found["first_word_found"], found["last_word_found"] = q[0] in d, q[-1] in d
    found["first_place"] = min([d.index(word) for word in q if word in d], default=len(d)) / len(d)
    found["is_equal"], found["starts_with"] = q == d, d[: len(q)] == q
    found["contains"] = any(d[j : j + len(q)] == q for j in range(len(d)))
    return found


def cosine(one, other):
    product = sum(value * other.get(key, 0.0) for key, value in one.items())
    return product / math.sqrt(sum(v * v for v in one.values()) * sum(v * v for v in other.values()))


def test_every_part_is_what_its_formula_says():
    queries, documents = zip(*[(query, document) for query in QUERIES for document in DOCUMENTS], strict=True)
    numbers = BM25Statistics.learn(DOCUMENTS).match(queries, documents)
    slow = slow_statistics(DOCUMENTS)
    for row, query, document in zip(numbers, queries, documents, strict=True):
        expected = slow_match(query, document, slow)
        np.testing.assert_allclose(row, [expected[part] for part in PARTS], rtol=1e-6, err_msg=f"{query} / {document}")


texts = st.lists(st.sampled_from(["a", "ab", "abc", "b2", "3.5", "l'eau", "x:y", "-", "Ä", "ß"]), max_size=12).map(
    " ".join
)


@examples(60)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=8))
def test_random_texts_match_as_the_slow_twin_says(pairs):
    queries, documents = zip(*pairs, strict=True)
    statistics = BM25Statistics.learn([*documents, "a b"])
    slow = slow_statistics([*documents, "a b"])
    for row, (query, document) in zip(statistics.match(queries, documents), pairs, strict=True):
        expected = slow_match(query, document, slow)
        np.testing.assert_allclose(row, [expected[part] for part in PARTS], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop", 2),
        ("3.5 kg, 1,000 pcs.", 4),
        ("e.g. x:y z;w", 4),
        ("a_b c-d", 3),
        ("東京タワー", 3),  # two ideographs and one word of katakana
        ("これ", 2),
        ("don’t ＡＢＣ １２", 3),
        ("naïve naïve", 2),
        ("\0 \t\n", 0),
        ("🙂", 0),
        ("\ud800a", 1),
    ],
)
def test_words_are_broken_as_unicode_does(text, words):
    row = BM25Statistics.learn([text]).match([text], [text])[0]
    assert row[PARTS.index("query_length")] == row[PARTS.index("document_length")] == words
    if words:
        assert row[PARTS.index("is_equal")] == 1


def test_forms_of_the_same_text_are_the_same():
    one, other = "ＣＡＦÉ ﬁne ℌ", "café fine h"
    statistics = BM25Statistics.learn([one])
    np.testing.assert_array_equal(statistics.match([one], [other]), statistics.match([other], [one]))
    assert statistics.match([one], [other])[0, PARTS.index("is_equal")] == 1
    assert statistics.match(["straße"], ["STRASSE"])[0, PARTS.index("is_equal")] == 1


def test_a_pair_gives_the_same_bits_alone_and_among_others(monkeypatch):
    queries, documents = zip(*[(query, document) for query in QUERIES for document in DOCUMENTS], strict=True)
    statistics = BM25Statistics.learn(DOCUMENTS)
    together = statistics.match(queries, documents)
    alone = [statistics.match([query], [document])[0] for query, document in zip(queries, documents, strict=True)]
    assert together.tobytes() == np.array(alone).tobytes()
    monkeypatch.setattr("tierank.data.text._AT_A_TIME", 5)
    assert statistics.match(queries, documents, n_jobs=2).tobytes() == together.tobytes()
    assert BM25Statistics.learn(DOCUMENTS[::-1]).match(queries, documents).tobytes() == together.tobytes()


def test_statistics_are_kept_in_arrays():
    statistics = BM25Statistics.learn(DOCUMENTS)
    arrays = statistics.arrays()
    again = BM25Statistics.from_arrays(arrays)
    assert again.match(QUERIES, QUERIES).tobytes() == statistics.match(QUERIES, QUERIES).tobytes()
    damaged = [
        {name: value for name, value in arrays.items() if name != "words"},
        arrays | {"words": arrays["words"][::-1]},
        arrays | {"word_counts": arrays["word_counts"][1:]},
        arrays | {"gram_counts": arrays["gram_counts"] * 100},
        arrays | {"sizes": np.array([np.nan, 1.0])},
    ]
    for each in damaged:
        with pytest.raises(DataError, match="expected the statistics of texts, got a damaged file"):
            BM25Statistics.from_arrays(each)


def test_no_documents_and_no_words():
    statistics = BM25Statistics.learn([])
    assert np.isfinite(statistics.match(["a", "", "b"], ["a", "b", ""])).all()
    assert statistics.match([], []).shape == (0, len(PARTS))
    with pytest.raises(DataError, match="expected 1 documents, one per query, got 2"):
        statistics.match(["a"], ["a", "b"])


@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 600])
def test_different_grams_are_those_of_numpy_for_texts_of_any_length(n):
    """Two texts of one word each, with many equal grams and with few: short ones are sorted by counting."""
    rng = np.random.default_rng(n)
    grams = np.concatenate([rng.integers(0, 9, n, np.uint64), rng.integers(0, 1 << 63, n, np.uint64) * np.uint64(2)])
    starts, gram_starts = np.arange(3), np.array([0, n, 2 * n])
    set_starts, sets = np.empty(3, np.int64), np.empty(2 * n, np.uint64)
    assert different_grams(starts, gram_starts, grams, set_starts, sets) == set_starts[2]
    np.testing.assert_array_equal(sets[: set_starts[1]], np.unique(grams[:n]))
    np.testing.assert_array_equal(sets[set_starts[1] : set_starts[2]], np.unique(grams[n:]))
