"""``predict``, ``export``, ``explain`` and ``serve``."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.commands import command
from tierank.cli.console import check_place, made, say, show
from tierank.cli.data import read_for, reading_options
from tierank.cli.options import MODEL_FOLDER, PIPE, by_name, given_to
from tierank.cli.plugins import as_own, load_model
from tierank.errors import DataError
from tierank.serve import Connections, Limits

if TYPE_CHECKING:
    from tierank.data.dataset import RankingDataset
    from tierank.rankers.base import Ranker


@command(reading_options, load_model)
def predict(options: argparse.Namespace) -> None:
    """Scores of a model, one per document.

    Example: tierank predict model test.csv --k 10 --out top.tsv

    model MODEL : model
    data DATA : data
    --out F : path
        write there (default, or -: standard output); .csv and .parquet: a table with query, document and score
    --k : integer
        instead of scores, the best k documents of each query as a table
    """
    from tierank.io.layout import PARQUET_ENDINGS
    from tierank.io.paths import check_text_ending, ending_of
    from tierank.io.scores import NOT_TEXT, rank_lines, score_lines, text_file, write_columns
    from tierank.settings import as_whole

    if options.k is not None:
        as_whole("k", options.k)  # before anything is read
    out = None if options.out is None or str(options.out) == PIPE else options.out
    check_place(options, out)
    is_table = out is not None and (ending_of(out) == ".csv" or out.suffix.lower() in PARQUET_ENDINGS)
    if out is not None and not is_table:
        check_text_ending(out, "a name that ends in .txt, .csv or .parquet", NOT_TEXT)
    ranker = load_model(options, options.model)
    data = read_for(options, ranker)
    if is_table:
        write_columns(_predicted_columns(ranker, data, options.k), made(options.out))
    else:
        if options.k is None:
            lines = score_lines(ranker.predict(data), None if out is None else data)  # pipes go to other programs
        else:
            ranked = ranker.rank(data, k=options.k)
            lines = rank_lines((ranked.query, ranked.rank, ranked.row, ranked.score), data.caller_texts())
        if out is None:
            sys.stdout.writelines(lines)
            return
        with text_file(made(out)) as file:
            file.writelines(lines)
    say(f"wrote {out}")


def _predicted_columns(ranker: Ranker, data: RankingDataset, k: int | None) -> dict[str, Any]:
    """The columns of a table of predictions: the scores of all rows in order, or the best documents."""
    import numpy as np

    texts = data.caller_texts()
    if k is None:
        queries = data.restore(np.repeat(data.query_ids, data.lengths))
        documents = {} if texts is None else {"document": texts}
        return {"query": queries, **documents, "score": ranker.predict(data)}
    ranked = ranker.rank(data, k=k)
    documents = {} if texts is None else {"document": texts[ranked.row]}
    return {"query": ranked.query, "rank": ranked.rank, "row": ranked.row, **documents, "score": ranked.score}


@command(reading_options, load_model, set="--set")
def export(options: argparse.Namespace) -> None:
    """Write a model for another engine, and prove that it scores the same.

    Example: tierank export model --to onnx --out model.onnx --verify test.txt

    model MODEL : model
    --to TARGET : target, required
        onnx, elasticsearch, opensearch, solr, vespa, c, or your own: package.module:NAME
    --out F : path, required
        file, or folder for a search engine
    --verify DATA : file
        score these data by both, and compare
    """
    from tierank.export import as_target, check_export_place, verify

    target = as_target(as_own(options.to))
    check_place(options, options.out, is_folder=options.out.is_dir())  # the target says which
    check_export_place(options.out)
    ranker = load_model(options, options.model)
    data = None if options.verify is None else read_for(options, ranker, options.verify)
    ranker.export(options.out, to=target)
    say(f"wrote {options.out}")
    if data is not None:
        proof = verify(ranker, options.out, target, data)
        if not proof.holds:
            raise DataError(where=options.out, expected="the same scores as the model's", got=f"{proof}")
        print(proof)


@command(reading_options, load_model, query="--query")
def explain(options: argparse.Namespace) -> None:
    """Why a model puts one document above another.

    Example: tierank explain model test.txt --query 84 --above 1 --below 2

    model MODEL : model
    data DATA : data
    --query Q : text, as query_id, required
        its id
    --above A : text, required
        a document: its id, or its row in the query
    --below B : text, required
        the other document
    --top N : integer, default 10
        features to name
    --json : json
        machine-readable output, all features
    --out F : path
        also draw it, to a file that ends in .svg, .png or .pdf
    """
    from tierank.rankers.explain import explain_pair
    from tierank.report.figures import check_figure, draw_explanation
    from tierank.report.tabulate import tabulate_explanation
    from tierank.settings import as_whole

    top = as_whole("top", options.top)
    check_place(options, options.out)
    if options.out is not None:
        check_figure(options.out)
    ranker = load_model(options, options.model)
    data = read_for(options, ranker)
    explanation = explain_pair(ranker, data, options.query_id, options.above, options.below)
    if options.out is not None:
        draw_explanation(explanation, made(options.out), top)
    show(options, explanation.to_dict(), [tabulate_explanation(explanation, top)])


@command()
def serve(options: argparse.Namespace) -> None:
    """Scores of models over HTTP.

    Example: tierank serve models/products --port 8080 --workers 2 --watch 5

    models [NAME=]MODEL : models, at least one
        a folder that train wrote; NAME defaults to its name
    --host : text, default 127.0.0.1
        address to listen at; 127.0.0.1 is this machine
    --port : integer, default 8080
        port; 0 takes any free one
    --workers N : integer, default 1
        processes
    --threads N : integer
        scoring threads per process (default: one per core)
    --watch SECONDS : number
        seconds between checks for a new model; SIGHUP checks at once
    --api-key-file FILE : path
        API keys, one per line; only requests with one of them are answered
    --header-timeout N : number
        deprecated, without effect
    --json : switch, either log
        the log as lines of JSON
    --quiet : switch, either log
        log problems only

    Limits, of each process
    -----------------------
    --max-bytes N, --max-large-bytes N, --max-documents N, --max-waiting N, --max-explaining N : serve:Limits
    --body-timeout N, --timeout N : serve:Limits
    --max-connections N, --idle-timeout N, --drain-timeout N : serve:Connections
    """
    from tierank.serve.signals import Signals

    with Signals() as signals:  # first of all: importing the server takes seconds
        from tierank.io.paths import kind_of

        if options.header_timeout is not None:
            what = "--header-timeout has no effect any more: if clients may be slow, put a proxy in front of the server"
            warnings.warn(what, DeprecationWarning, stacklevel=1)
        folders = {name: Path(folder) for name, folder in by_name(options.models).items()}
        for folder in folders.values():
            kind_of(folder, MODEL_FOLDER)
        from tierank.serve.server import Settings, serve

        settings = Settings(
            **given_to(Settings, options),
            log="json" if options.json else "quiet" if options.quiet else "text",
            limits=Limits(**given_to(Limits, options)),
            connections=Connections(**given_to(Connections, options)),
        )
        serve(folders, settings, signals)
