"""Qrels and runs of any tool are judged without features, as the tools of the field judge them."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tierank
from tierank import DataError, ParameterError, cli
from tierank.io.scores import is_qrels

QRELS = {"q1": {"a": 2, "b": 0, "c": 1}, "q2": {"a": 1, "d": 0}}
RUN = {"q1": {"b": 3.0, "a": 2.0, "x": 1.0}, "q2": {"d": 5.0, "a": 4.5}}


def mean(qrels, run, metric, rule="trec_eval"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of queries that one of the two does not have
        return tierank.evaluate(qrels, run, metric, rule).mean(metric)


def test_metrics_of_a_run_by_hand():
    # q1: b (0), a (2), x (unjudged); c is not found. q2: d (0), a (1).
    found = tierank.evaluate(QRELS, RUN, ["P@2", "R@2", "AP", "RR", "ndcg", "hit_rate@1"], "trec_eval")
    values = {name: found.per_query[name].tolist() for name in found.metrics}
    assert values["precision@2"] == [0.5, 0.5]
    assert values["recall@2"] == [0.5, 1.0]
    assert values["map"] == [0.25, 0.5]
    assert values["mrr"] == [0.5, 0.5]
    assert values["ndcg"] == pytest.approx([(2 / np.log2(3)) / (2 + 1 / np.log2(3)), 1 / np.log2(3)])
    assert values["hit_rate@1"] == [0, 0]
    assert found.query_ids.tolist() == ["q1", "q2"]


def as_files(folder):
    lines = {
        "q.qrels": [f"{q} 0 {d} {r}" for q, documents in QRELS.items() for d, r in documents.items()],
        "r.run": [f"{q} Q0 {d} 1 {s} mine" for q, documents in RUN.items() for d, s in documents.items()],
    }
    for name, rows in lines.items():
        (folder / name).write_text("\n".join(rows) + "\n")
    return folder / "q.qrels", str(folder / "r.run")


def as_rows(values, names):
    return pd.DataFrame([(q, d, v) for q, documents in values.items() for d, v in documents.items()], columns=names)


def as_objects(values, name):
    return [
        SimpleNamespace(query_id=q, doc_id=d, **{name: v})
        for q, documents in values.items()
        for d, v in documents.items()
    ]


def test_every_form_of_qrels_and_runs_gives_the_same(tmp_path):
    ir_measures = ["query_id", "doc_id"]
    pyterrier = ["qid", "docno"]
    forms = [
        as_files(tmp_path),
        (as_rows(QRELS, [*ir_measures, "relevance"]), as_rows(RUN, [*ir_measures, "score"])),
        (as_rows(QRELS, [*pyterrier, "label"]), as_rows(RUN, [*pyterrier, "score"]).assign(rank=1)),
        (polars.from_pandas(as_rows(QRELS, [*pyterrier, "label"])), RUN),
        (QRELS, as_objects(RUN, "score")),
    ]
    expected = tierank.evaluate(QRELS, RUN, "ndcg@10")
    for qrels, run in forms:
        assert str(tierank.evaluate(qrels, run, "ndcg@10")) == str(expected)


def test_objects_of_ranx():
    ranx = pytest.importorskip("ranx")
    assert mean(ranx.Qrels(QRELS), ranx.Run(RUN), "ndcg") == mean(QRELS, RUN, "ndcg")


IDS = st.integers(0, 11).map("d{}".format)
LISTS = st.dictionaries(st.integers(0, 5).map("q{}".format), st.dictionaries(IDS, st.integers(0, 3), min_size=1))


@given(LISTS.filter(bool), LISTS.filter(bool))
def test_values_are_those_of_ir_measures(qrels, run):
    ir_measures = pytest.importorskip("ir_measures")
    from ir_measures import AP, RR, Bpref, P, R, Rprec, Success, nDCG

    asked = [nDCG @ 3, nDCG, AP, AP @ 2, RR, P @ 2, R @ 3, Success @ 2, Rprec, Bpref]
    theirs = {(str(one.measure), one.query_id): one.value for one in ir_measures.iter_calc(asked, qrels, run)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = tierank.evaluate(qrels, run, asked, "trec_eval")
    for measure, name in zip(asked, ours.metrics, strict=True):
        for query, value in zip(ours.query_ids.tolist(), ours.per_query[name].tolist(), strict=True):
            assert value == pytest.approx(theirs.get((str(measure), query), 0.0), abs=1e-12), (name, query)


def test_queries_that_one_of_the_two_misses_are_said():
    with pytest.warns(UserWarning, match="1 of 2 queries of the qrels are not in the run: their lists are empty"):
        found = tierank.evaluate(QRELS, {"q1": RUN["q1"]}, "mrr")
    assert found.per_query["mrr"].tolist() == [0.5, 0.0]
    with pytest.warns(UserWarning, match="1 of 3 queries of the run are not in the qrels: they are left out"):
        assert tierank.evaluate(QRELS, RUN | {"q3": {"a": 1.0}}, "mrr").n_queries == 2


def test_unjudged_documents_can_be_taken_out():
    run = {"q1": {"x": 3.0, "a": 2.0}, "q2": RUN["q2"]}
    assert mean(QRELS, run, "P@1", "trec_eval") == 0
    assert mean(QRELS, run, "P@1", "trec_eval:condense") == 0.5
    assert mean(QRELS, run, "judged@2") == 0.75


def test_runs_are_compared():
    better = {"q1": {"a": 3.0, "c": 2.0}, "q2": {"a": 5.0, "d": 4.5}}
    found = tierank.compare(QRELS, {"old": RUN, "new": better}, metrics=["nDCG@10"])
    assert found.evaluations["new"].mean("ndcg@10") == 1
    assert found.contrasts["new"]["ndcg@10"].wins == 2


def test_documents_that_no_run_lists_do_not_change_a_metric_of_lists():
    """Whatever is added to the other run, as both share the documents of one data set."""
    alone = tierank.evaluate(QRELS, RUN, ["ndcg", "precision", "recall", "map", "rbp"])
    beside = {"q1": {f"y{i}": float(i) for i in range(50)}, "q2": {"z": 1.0}}
    found = tierank.compare(QRELS, {"a": RUN, "b": beside}, metrics=list(alone.metrics))
    for metric in alone.metrics:
        assert found.evaluations["a"].per_query[metric] == pytest.approx(alone.per_query[metric], abs=1e-15)


@pytest.mark.parametrize(
    ("qrels", "run", "where"),
    [
        ({"q": {"a": 1}}, {"q": {"a": np.nan}}, "run, query 'q', document 'a'"),
        ({"q": {"a": "high"}}, {"q": {"a": 1}}, "qrels, query 'q', document 'a'"),
        (pd.DataFrame({"qid": ["q", "q"], "docno": ["a", "a"], "label": [1, 0]}), RUN, "qrels, row 1"),
        ({}, RUN, "qrels"),
    ],
)
def test_wrong_values_are_named(qrels, run, where):
    with pytest.raises(DataError, match="expected") as error:
        tierank.evaluate(qrels, run)
    assert error.value.where == where


@pytest.mark.parametrize(
    ("qrels", "run", "argument"),
    [
        (pd.DataFrame({"query": ["q"], "rating": [1]}), RUN, "qrels"),
        (QRELS, 3, "run"),
        (QRELS, {"q1": [1, 2]}, "run"),
    ],
)
def test_other_things_are_refused(qrels, run, argument):
    with pytest.raises(DataError, match="expected") as error:
        tierank.evaluate(qrels, run)
    assert error.value.argument == argument


def test_files_that_are_no_runs_are_refused_with_the_line(tmp_path):
    qrels, _ = as_files(tmp_path)
    with pytest.raises(DataError, match="query Q0 document") as error:
        tierank.evaluate(qrels, qrels)
    assert error.value.where == f"{qrels}:1"
    with pytest.raises(DataError, match="a file that can be read"):
        tierank.evaluate(qrels, tmp_path / "no.run")


def test_metrics_of_all_scores_are_refused():
    with pytest.raises(ParameterError, match="'auc'") as error:
        tierank.evaluate(QRELS, RUN, "auc")
    assert error.value.argument == "metrics"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with q.qrels, r.run, and better.run, which finds what the other misses."""
    as_files(tmp_path)
    better = {"q1": {"a": 3.0, "c": 2.0}, "q2": {"a": 5.0, "d": 4.5}}
    lines = [f"{q} Q0 {d} 1 {s} mine" for q, documents in better.items() for d, s in documents.items()]
    (tmp_path / "better.run").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(capsys, *words):
    code = cli.main([*map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command_judges_runs(folder, capsys):
    options = ["--metric", "nDCG@10,AP", "--rule", "trec_eval"]
    code, out, _ = command(capsys, "evaluate", "q.qrels", "r.run", *options, "--json")
    assert code == 0
    assert json.loads(out) == tierank.evaluate(QRELS, RUN, ["ndcg@10", "map"], "trec_eval").to_dict()
    _, alone, _ = command(capsys, "evaluate", "q.qrels", "better.run", *options, "--markdown")
    _, first, _ = command(capsys, "evaluate", "q.qrels", "r.run", *options, "--markdown")
    assert command(capsys, "evaluate", "q.qrels", "r.run", "better.run", *options, "--markdown")[1] == first + alone
    _, out, _ = command(capsys, "evaluate", "q.qrels", "r.run", "better.run", *options, "--json")
    assert {name: found["metrics"]["map"]["mean"] for name, found in json.loads(out).items()} == {
        "r.run": mean(QRELS, RUN, "map"),
        "better.run": 1.0,
    }


def test_the_command_prints_values_per_query(folder, capsys):
    options = ["--metric", "RR", "--per-query"]
    assert command(capsys, "evaluate", "q.qrels", "r.run", *options, "-")[1] == "query,mrr\nq1,0.5\nq2,0.5\n"
    code, _, err = command(capsys, "evaluate", "q.qrels", "r.run", "better.run", *options, "-")
    assert (code, err) == (2, "tierank: --per-query: expected one system, got 2\n")


def test_the_command_splits_by_attributes_of_queries(folder, capsys):
    (folder / "queries.csv").write_text("query,device\nq1,phone\nq2,desk\n")
    options = ["--metric", "RR", "--by", "device", "--attributes", "queries.csv", "--json"]
    found = json.loads(command(capsys, "evaluate", "q.qrels", "r.run", *options)[1])
    assert {(one["value"], one["n_queries"]) for one in found["segments"]} == {("phone", 1), ("desk", 1)}


def test_the_command_compares_runs(folder, capsys):
    options = ["--metric", "nDCG@10", "--json"]
    code, out, _ = command(capsys, "compare", "q.qrels", "r.run", "better.run", *options)
    assert code == 0
    assert json.loads(out)["contrasts"]["better.run"]["ndcg@10"]["wins"] == 2
    for baseline in ("better", "better.run"):
        out = command(capsys, "compare", "q.qrels", "r.run", "better.run", "--baseline", baseline, *options)[1]
        assert json.loads(out)["contrasts"]["r.run"]["ndcg@10"]["losses"] == 2
    code, _, err = command(capsys, "compare", "q.qrels", "r.run", "better.run", "--out", "kept")
    assert (code, err) == (2, "tierank: --out: expected a data set, which the run keeps, got qrels\n")


@pytest.mark.parametrize("name", ["judged.txt", "judged", "judged.csv"])
def test_qrels_are_known_by_their_content(folder, name, capsys):
    (folder / name).write_bytes(b"\n" + (folder / "q.qrels").read_bytes())
    out = command(capsys, "evaluate", name, "r.run", "--metric", "AP")[1]
    assert out == command(capsys, "evaluate", "q.qrels", "r.run", "--metric", "AP")[1]


@pytest.mark.parametrize("line", ["2 qid:1 1:0.5 2:1", "2 qid:1 # 7", "1 1:0.5 2:1 3:1"])
def test_text_of_four_fields_is_no_qrels(tmp_path, line):
    (tmp_path / "data.txt").write_text(f"{line}\n")
    assert not is_qrels(tmp_path / "data.txt")


@pytest.mark.parametrize(
    ("qrels", "run", "said"),
    [
        ("q.qrels", "scores.txt", "scores.txt:1: expected a line of a run: query Q0 document rank score name"),
        ("wrong.qrels", "r.run", "wrong.qrels:1: expected a line of qrels: query 0 document rating, got 1 fields"),
        ("q.qrels", "model", "q.qrels: expected data with features, as a model is to be judged, got qrels"),
        ("q.qrels", "no.run", "no.run: expected a file of scores, or a model folder, got nothing there"),
    ],
)
def test_the_command_says_what_is_expected(folder, qrels, run, said, capsys):
    (folder / "scores.txt").write_text("0.5\n0.25\n")
    (folder / "wrong.qrels").write_text("0.5\n")
    tierank.LambdaMART(n_trees=1).fit([[0.0], [1.0]] * 20, [0, 1] * 20, np.repeat(range(20), 2)).save(folder / "model")
    code, out, err = command(capsys, "evaluate", qrels, run)
    assert (code, out) == (2, "")
    assert err.startswith(f"tierank: {said}")


@pytest.mark.filterwarnings("default")
def test_queries_that_a_run_misses_are_named_with_the_run(folder, capsys):
    (folder / "half.run").write_text("q1 Q0 a 1 1.0 mine\n")
    err = command(capsys, "evaluate", "q.qrels", "half.run")[2]
    assert err == "WARNING: half.run: 1 of 2 queries of the qrels are not in the run: their lists are empty\n"
