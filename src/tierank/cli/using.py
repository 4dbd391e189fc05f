"""``predict``, ``export``, ``explain`` and ``serve``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.cli.console import PIPE, check_place, inputs_of, made, say
from tierank.cli.options import add_command, add_data, add_reading
from tierank.cli.own import add_import, as_own, load_model
from tierank.cli.printing import print_json, print_table
from tierank.cli.reading import read_for
from tierank.errors import DataError, ParameterError
from tierank.serve.limits import Connections, Limits
from tierank.serve.signals import Signals

if TYPE_CHECKING:
    from tierank.dataset import RankingDataset
    from tierank.rankers import Ranker


def add_predict(commands: Any) -> None:
    """Add the command."""
    predict = add_command(
        commands,
        "predict",
        "scores of a model, one per document",
        "predict model test.csv --k 10 --out top.tsv",
    )
    predict.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    add_data(predict)
    predict.add_argument(
        "--out",
        type=Path,
        metavar="F",
        help="write there (default, or -: standard output); .csv and .parquet: a table with query, document and score",
    )
    predict.add_argument("--k", type=int, help="instead of scores, the best k documents of each query as a table")
    add_import(predict)
    predict.set_defaults(run=_predict)


def add_export(commands: Any) -> None:
    """Add the command."""
    export = add_command(
        commands,
        "export",
        "write a model for another engine, and prove that it scores the same",
        "export model --to onnx --out model.onnx --verify test.txt",
    )
    export.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    export.add_argument(
        "--to",
        required=True,
        metavar="TARGET",
        help="onnx, elasticsearch, opensearch, solr, vespa, c, or your own: package.module:NAME",
    )
    export.add_argument("--out", type=Path, required=True, metavar="F", help="file, or folder for a search engine")
    export.add_argument("--verify", metavar="DATA", help="score these data by both, and compare")
    add_import(export)
    add_reading(export)
    export.set_defaults(run=_export)


def add_explain(commands: Any) -> None:
    """Add the command."""
    explain = add_command(
        commands,
        "explain",
        "why a model puts one document above another",
        "explain model test.txt --query 84 --above 1 --below 2",
    )
    explain.add_argument("model", metavar="MODEL", help="a folder that train wrote")
    add_data(explain)
    explain.add_argument("--query", dest="query_id", required=True, metavar="Q", help="its id")
    explain.add_argument("--above", required=True, metavar="A", help="a document: its id, or its row in the query")
    explain.add_argument("--below", required=True, metavar="B", help="the other document")
    explain.add_argument("--top", type=int, default=10, metavar="N", help="features to name (default: 10)")
    explain.add_argument("--json", action="store_true", help="machine-readable output, all features")
    explain.add_argument(
        "--out", type=Path, metavar="F", help="also draw it, to a file that ends in .svg, .png or .pdf"
    )
    add_import(explain)
    explain.set_defaults(run=_explain)


def add_serve(commands: Any) -> None:
    """Add the command."""
    serve = add_command(
        commands,
        "serve",
        "scores of models over HTTP",
        "serve models/products --port 8080 --workers 2 --watch 5",
        has_quiet=False,
    )
    serve.add_argument(
        "models", nargs="+", metavar="[NAME=]MODEL", help="a folder that train wrote; NAME defaults to its name"
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine)")
    serve.add_argument("--port", type=int, default=8080, help="port; 0 takes any free one (default: 8080)")
    serve.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    serve.add_argument("--threads", type=int, metavar="N", help="scoring threads per process (default: one per core)")
    serve.add_argument(
        "--watch", type=float, metavar="SECONDS", help="seconds between checks for a new model; SIGHUP checks at once"
    )
    serve.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="API keys, one per line; only requests with one of them are answered",
    )
    limits = serve.add_argument_group("limits, of each process")
    for one in (*fields(Limits), *fields(Connections)):
        kind, default = (int, f"{one.default}") if type(one.default) is int else (float, f"{one.default:g}")
        help = f"{one.metadata['what']} (default: {default})"
        limits.add_argument(f"--{one.name.replace('_', '-')}", type=kind, default=one.default, metavar="N", help=help)
    log = serve.add_mutually_exclusive_group()
    log.add_argument("--json", action="store_true", help="the log as lines of JSON")
    log.add_argument("--quiet", action="store_true", help="log problems only")
    serve.set_defaults(run=_serve)


def _predict(options: argparse.Namespace) -> None:
    from tierank.readers.columns import PARQUET_ENDINGS
    from tierank.readers.paths import check_text_ending, ending_of
    from tierank.readers.scores import NOT_TEXT, rank_lines, score_lines, text_file, write_columns
    from tierank.settings import as_whole

    if options.k is not None:
        as_whole("--k", options.k)  # before anything is read
    is_piped = options.out is None or str(options.out) == PIPE
    check_place(None if is_piped else options.out, read=inputs_of(options))
    is_table = not is_piped and (ending_of(options.out) == ".csv" or options.out.suffix.lower() in PARQUET_ENDINGS)
    if not is_piped and not is_table:
        check_text_ending(options.out, "a name that ends in .txt, .csv or .parquet", NOT_TEXT)
    ranker = load_model(options, options.model)
    data = read_for(options, ranker)
    if is_table:
        write_columns(_predicted_columns(ranker, data, options.k), made(options.out))
        say(f"wrote {options.out}")
        return
    if options.k is None:
        lines = score_lines(ranker.predict(data))
    else:
        ranked = ranker.rank(data, k=options.k)
        columns = (ranked.query, ranked.rank, ranked.row, ranked.score)
        lines = rank_lines(columns, data.caller_texts())
    if is_piped:
        sys.stdout.writelines(lines)
    else:
        with text_file(made(options.out)) as file:
            file.writelines(lines)
        say(f"wrote {options.out}")


def _predicted_columns(ranker: Ranker, data: RankingDataset, k: int | None) -> dict[str, Any]:
    """The columns of a table of predictions: the scores of all rows in order, or the best documents."""
    import numpy as np

    texts = data.caller_texts()
    if k is None:
        queries = data.restore(np.repeat(data.query_ids, data.lengths))
        documents = {} if texts is None else {"document": texts}
        return {"query": queries, **documents, "score": ranker.predict(data)}
    ranked = ranker.rank(data, k=k)
    documents = {} if texts is None else {"document": texts.take(ranked.row)}
    return {"query": ranked.query, "rank": ranked.rank, "row": ranked.row, **documents, "score": ranked.score}


def _export(options: argparse.Namespace) -> None:
    from tierank.export import as_target, check_export_place, verify

    target = as_target(as_own(options.to))
    check_place(options.out, is_folder=options.out.is_dir(), read=inputs_of(options))  # the target says which
    check_export_place(options.out)
    ranker = load_model(options, options.model)
    data = None if options.verify is None else read_for(options, ranker, options.verify)
    ranker.export(options.out, to=target)
    say(f"wrote {options.out}")
    if data is not None:
        proof = verify(ranker, options.out, target, data)
        if not proof.holds:
            raise DataError(f"{options.out}: {proof}")
        print(proof)


def _explain(options: argparse.Namespace) -> None:
    from tierank.explain import explain_pair
    from tierank.report.explanation import draw_explanation, tabulate_explanation
    from tierank.report.figures import check_figure
    from tierank.settings import as_whole

    top = as_whole("top", options.top)
    check_place(options.out, read=inputs_of(options))
    if options.out is not None:
        check_figure(options.out)
    ranker = load_model(options, options.model)
    data = read_for(options, ranker)
    explanation = explain_pair(ranker, data, options.query_id, options.above, options.below)
    if options.out is not None:
        draw_explanation(explanation, made(options.out), top)
    if options.json:
        print_json(explanation.to_dict())
    else:
        print_table(tabulate_explanation(explanation, top))


def _serve(options: argparse.Namespace) -> None:
    with Signals() as signals:  # first of all: importing the server takes seconds
        _serve_until(options, signals)


def _serve_until(options: argparse.Namespace, signals: Signals) -> None:
    """Serve until a signal stops it."""
    from tierank.serve.server import Settings, serve

    folders: dict[str, Path] = {}
    for text in options.models:
        name, equals, folder = text.partition("=")
        is_named = bool(equals) and "/" not in name
        if is_named and not folder:
            raise ParameterError(where=text, expected="NAME=MODEL", got="no model")
        path = Path(folder if is_named else text)
        name = name if is_named else path.resolve().name
        if name in folders:
            raise ParameterError(f"expected each name once, got {name!r} twice; name one: other={path}")
        folders[name] = path
    try:
        settings = Settings(
            host=options.host,
            port=options.port,
            workers=options.workers,
            threads=options.threads,
            watch=options.watch,
            api_key_file=options.api_key_file,
            log="json" if options.json else "quiet" if options.quiet else "text",
            limits=Limits(**{one.name: getattr(options, one.name) for one in fields(Limits)}),
            connections=Connections(**{one.name: getattr(options, one.name) for one in fields(Connections)}),
        )
        serve(folders, settings, signals)
    except ParameterError as error:
        if error.argument is None:
            raise
        # Each argument is an option of the same name.
        raise ParameterError(error.render(lambda name: f"--{name.replace('_', '-')}")) from None
