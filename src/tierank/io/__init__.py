"""Reading and writing data sets: files and tables to RankingDataset, and back. One module per format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import MOST_FEATURES, Allocator, check_width, in_memory
from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.data.leaks import find_outcomes, warn_of_columns
from tierank.data.tables import as_name, as_name_list, check_known, column_names, is_table, load_stream
from tierank.errors import DataError, ParameterError, located
from tierank.files import as_path
from tierank.io.cache import SUFFIX, held_beside, held_in, read_folder, write_folder
from tierank.io.csv_files import read_attributes, read_columns, read_csv, write_csv
from tierank.io.layout import (
    PARQUET_ENDINGS,
    TableSource,
    files_of,
    left_over,
    read_parquet,
    read_parts,
    to_arrow,
    write_parquet,
)
from tierank.io.letor import read_letor, write_letor
from tierank.io.paths import check_text_ending, ending_of, kind_of, near_path, piped, unreadable
from tierank.io.scores import read_scores, write_qrels, write_run, write_scores
from tierank.settings import as_choice, as_flag, as_whole

__all__ = [
    "FORMATS",
    "convert",
    "read",
    "read_attributes",
    "read_columns",
    "read_fold",
    "read_scores",
    "to_arrow",
    "write",
    "write_qrels",
    "write_run",
    "write_scores",
]


class Format(NamedTuple):
    """A file format: its file name endings, and the functions that read and write it."""

    endings: tuple[str, ...]
    read: Callable[..., RankingDataset] | None
    write: Callable[[RankingDataset, Path], None]


# The first format that lists the ending of a file (without ".gz") is its format; any other ending is LETOR text.
FORMATS = {
    "letor": Format((".txt", ".letor", ".svm", ".libsvm", ".svmlight", ".dat"), read_letor, write_letor),
    "csv": Format((".csv", ".tsv"), read_csv, write_csv),
    "parquet": Format(PARQUET_ENDINGS, read_parquet, write_parquet),
    "tierank": Format((SUFFIX,), read_folder, write_folder),
    "qrels": Format((".qrels",), None, write_qrels),
}

# What arguments are for, and what has been given instead, where they would have no effect.
_A_TABLE = "a table with such a column, CSV or Parquet"
_NO_NUMBERS = ("text, whose features are numbered", "data whose features have names")

# Arguments of ``read`` that name columns with a number for each document or query.
_OF_ROWS = ("position", "row_weight", "query_weight")


def read(
    source: Any,
    *,
    format: str | None = None,
    n_features: int | None = None,
    zero_based: bool | None = None,
    query: str | None = None,
    rating: str | None = None,
    document: str | None = None,
    position: str | None = None,
    row_weight: str | None = None,
    query_weight: str | None = None,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    columns: Columns | None = None,
    cache: bool | str | os.PathLike[str] = True,
    n_jobs: int | None = None,
) -> RankingDataset:
    """Read a data set from a file or from a table in memory.

    Files are LETOR/SVMLight text (also ``.gz``), LightGBM text with a ``<file>.query``, CSV and Parquet with
    named columns, folders of Parquet files, and the ``.tierank`` folders that ``write`` makes. Tables are those of
    pandas, polars and Arrow, and streams of Arrow, such as DuckDB's relations. Warns (``ColumnWarning``) of columns
    that look like outcomes or give the ratings away, unless ``features`` names the columns.

    The first call caches a large file in a binary folder next to it, whose features are memory-mapped; later calls read
    the cache. Text and Parquet files may be larger than memory: reading needs some tens of bytes per document.

    Parameters
    ----------
    source : path or table
        The file or folder, or a pandas, polars or Arrow table, or what has ``__arrow_c_stream__``.
    format : {"letor", "csv", "parquet", "tierank"}, optional
        The format. Default: by the ending of the file; LETOR text for unknown endings.
    n_features : int, optional
        Number of features of a text file, at least the highest feature index. Needed to read sparse files with the same
        width.
    zero_based : bool, optional
        Whether the feature indices of a text file count from 0. Default: True for LightGBM text, which
        has a ``.query`` file, and False otherwise.
    query, rating, document : str, optional
        The columns of a table that hold query ids, ratings and document ids. Default: columns called ``query`` or
        ``qid``, ``rating`` or ``label``, ``document`` or ``docid``, and so on. Ratings and document ids are optional.
        In CSV, query ids are integers if all are plain integers, and texts otherwise: ``007`` is not ``7``. Text and
        ``.tierank`` folders, whose columns were chosen when they were written, take none of these.
    position : str, optional
        The column of a table that says where each document was shown, if the ratings are clicks. There is no default
        name.
    row_weight, query_weight : str, optional
        The columns of a table with the weight of each document and of each query. Default: columns with these names, if
        there are any.
    features : list of str, optional
        The columns of a table to learn from. Default: all others, except those of ``ignore``. ``[]`` reads no features,
        which suffices to evaluate scores.
    ignore : list of str, optional
        Columns of a table to leave out; they may hold anything.
    columns : Columns, optional
        What the columns hold, where their types do not tell, and which features to compute from them. By default texts
        become categories, dates become ages, and a vector becomes one feature per element.
    cache : bool or path, default True
        Whether to use and write the cache next to a large file; or the ``.tierank`` folder to use as cache.
    n_jobs : int, optional
        Number of threads; default one per core.

    Returns
    -------
    RankingDataset
        The data, grouped by query.

    Raises
    ------
    DataError
        If the file or table cannot be read; the message says where, what was expected and what was found.

    Examples
    --------
    >>> import pandas as pd
    >>> read(pd.DataFrame({"qid": ["a", "a", "b"], "label": [0, 1, 2], "price": [3.5, None, 1.0]}))
    RankingDataset(2 queries of 'qid', 3 documents, 1 feature (price), ratings 0 to 2 of 'label')
    """
    declared = Columns() if columns is None else columns
    if not isinstance(declared, Columns):
        raise ParameterError(argument="columns", expected="a tierank.Columns", got=type(columns).__name__)
    lists = {"features": features, "ignore": ignore}
    of_rows = {"position": position, "row_weight": row_weight, "query_weight": query_weight}
    named: dict[str, Any] = {
        **{role: as_name(role, name) for role, name in (("query", query), ("rating", rating), ("document", document))},
        **{name: None if some is None else as_name_list(name, some) for name, some in lists.items()},
        # Only if they are given: otherwise caches of earlier versions remain valid.
        **{name: as_name(name, column) for name, column in of_rows.items() if column is not None},
    }
    of_text = {
        "n_features": None if n_features is None else as_whole("n_features", n_features, most=MOST_FEATURES),
        "zero_based": None if zero_based is None else as_flag("zero_based", zero_based),
    }
    source = load_stream(source)
    if is_table(source):
        _refuse(None, of_text, *_NO_NUMBERS)
        with located("table"):
            names = column_names(source)
        data = read_parts([TableSource("table", source, names)], "table", in_memory, declared=declared, **named)
    elif kind_of(path := _as_path(source)) == "pipe":
        with piped(path) as file:
            data = _read_file(file, format, named, of_text, declared, False if cache is True else cache, n_jobs)
    else:
        data = _read_file(path, format, named, of_text, declared, cache, n_jobs)
    if features is None and data.feature_names is not None:
        warn_of_columns(find_outcomes(data), data, stacklevel=3)
    return data


def _read_file(
    path: Path,
    format: str | None,
    named: dict[str, Any],
    of_text: dict[str, Any],
    declared: Columns,
    cache: bool | str | os.PathLike[str],
    n_jobs: int | None,
) -> RankingDataset:
    """A data set from a file or folder, by its format."""
    n_features, zero_based = of_text["n_features"], of_text["zero_based"]
    name = readable_format(path, format)
    columned = named | {"columns": declared != Columns()}
    if name == "tierank":
        fixed = {one: columned[one] for one in ("query", "rating", "document", "columns")}
        _refuse(path, fixed, _A_TABLE, "a binary data set, whose columns were chosen when it was written")
        _refuse(path, {"zero_based": zero_based}, *_NO_NUMBERS)
        return _read_binary(path, named, n_features)
    settings, width = named, None
    more: dict[str, Any] = {"declared": declared}
    if name != "letor":
        _refuse(path, of_text, *_NO_NUMBERS)
    else:
        _refuse(path, columned, _A_TABLE, "text, which has no columns")
        settings, more, width = {"zero_based": zero_based}, {"n_jobs": n_jobs}, n_features
    reader = FORMATS[name].read
    if reader is None:
        raise DataError(where=path, expected="data with features", got=f"{name}, which holds ratings only")
    build = partial(_build, partial(reader, path, **settings, **more))
    if named["features"] == []:  # an empty array cannot be mapped
        return build(in_memory, None)
    identity = {"format": name, **settings} | ({"columns": declared.to_json()} if declared != Columns() else {})
    if cache is True:
        # The width of the file, not ``n_features``, so that calls with different widths share one cache.
        data = held_beside(path, identity, lambda allocate: build(allocate, width, is_fixed=False))
        if data is not None:
            with located(path):
                return data if width is None else data.widen(width)
    elif cache is not False:
        expected = f"True, False or a folder that ends in {SUFFIX}"
        folder = as_path(cache, "cache", expected)
        if folder.suffix != SUFFIX:  # what is there will be replaced
            raise ParameterError(argument="cache", expected=expected, got=repr(str(folder)))
        return held_in(folder, path, {**identity, "n_features": width}, lambda allocate: build(allocate, width))
    return build(in_memory, width)


def _read_binary(path: Path, named: Mapping[str, Any], width: int | None) -> RankingDataset:
    """A binary data set with the named features; it has to hold the positions and weights that are named."""
    data, where = read_folder(path), str(path)
    names = data.feature_names
    if names is not None:
        kept = left_over(names, where, named["features"], named["ignore"])
        wanted: list[str] = []
        for name in kept if named["features"] is None else named["features"]:
            # A feature, or all that were computed from a column of this name.
            made = [feature for feature, kind in data.kinds.items() if name in kind.sources(feature)]
            wanted += [name] if name in names or not made else made
        wanted = list(dict.fromkeys(wanted))
        check_known(kept, wanted, where)
        if tuple(wanted) != names:
            data = data.with_features(data.features[:, [names.index(name) for name in wanted]], tuple(wanted))
    for argument in _OF_ROWS:
        if argument in named and getattr(data, argument) is None:
            kind = argument.replace("_", " ")
            raise DataError(where=path, argument=argument, expected=f"data that hold {kind}s", got="none")
    with located(path):
        return data if width is None else data.widen(width)


def _refuse(path: Path | None, given: Mapping[str, Any], expected: str, got: str) -> None:
    """Raise ``DataError`` for an argument that this kind of data does not have: it would have no effect."""
    argument = next((argument for argument, value in given.items() if value), None)
    if argument is not None:
        raise DataError(where=path, argument=argument, expected=expected, got=got)


def _as_path(source: Any) -> Path:
    return as_path(source, None, "the path of a file or a table", "RankingDataset takes arrays")


def _build(
    reader: Callable[..., RankingDataset], allocate: Allocator, width: int | None, is_fixed: bool = True
) -> RankingDataset:
    """Read a file, with as many features as ``width`` says or, unless it ``is_fixed``, at most so many."""

    def allocate_of_width(n: int, needed: int) -> NDArray[np.float32]:
        if width is not None:
            check_width(needed, width)
        return allocate(n, width if width is not None and is_fixed else needed)

    return reader(allocate=allocate_of_width)


def write(data: RankingDataset, path: str | os.PathLike[str], *, format: str | None = None) -> None:
    """Write a data set in the format that the ending of ``path`` names. The write is atomic.

    Rows are in the caller's order, so that scores in that order belong to the file too.

    Text keeps features, ratings, query ids and document ids; CSV, Parquet and ``.tierank`` folders keep weights and
    feature names too; ``.qrels`` keeps ratings only, for TREC tools. Names that would not read back unchanged are
    refused.

    Parameters
    ----------
    data : RankingDataset
        The data to write. Memory-mapped features are written a few thousand rows at a time.
    path : path
        The file or folder.
    format : {"letor", "csv", "parquet", "tierank", "qrels"}, optional
        The format. Default: by the ending of ``path``; LETOR text for unknown endings.

    Raises
    ------
    DataError
        If the file cannot be written, or if the format cannot hold the data.

    Examples
    --------
    >>> import tempfile
    >>> data = RankingDataset([[0.5], [1.5]], [0, 2], qid=["a", "a"], feature_names=["price"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(data, f"{folder}/shop.csv")
    ...     read(f"{folder}/shop.csv").feature_names
    ('price',)
    """
    check_dataset("data", data)
    target = as_path(path)
    if format is None:
        expected = "a name that ends in .txt, .csv, .parquet, .tierank or .qrels"
        check_text_ending(target, expected, fix="rename it, or name the format: `format`='letor'")
    FORMATS[_format_of(target, format)].write(data, target)


def convert(source: str | os.PathLike[str], path: str | os.PathLike[str], **options: Any) -> RankingDataset:
    """Write the data set of a file in the format that the ending of ``path`` names.

    A ``.tierank`` folder is filled directly from the file, with no other copy in memory or on disk.

    Parameters
    ----------
    source : path
        The file to read.
    path : path
        The file or folder to write.
    **options
        Arguments of ``read``.

    Returns
    -------
    RankingDataset
        The data.
    """
    check_conversion(source, path)
    is_binary = readable_format(_as_path(source), options.get("format")) == "tierank"
    if _format_of(as_path(path), None) == "tierank" and not is_binary:
        return read(source, **{**options, "cache": path})
    data = read(source, **options)
    write(data, path)
    return data


def check_conversion(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Raise ``DataError`` if a file would be overwritten by itself, or its name does not say the format."""
    target = as_path(path)
    known = [ending for form in FORMATS.values() for ending in form.endings]
    if ending_of(target) not in known:
        raise ParameterError(where=target, expected=f"a name that ends in {', '.join(known)}", got=repr(target.name))
    if target.exists() and _as_path(source).exists() and target.samefile(source):
        expected = "a file other than the one that is read"
        raise ParameterError(where=target, expected=expected, fix="choose another name")


# Files of a fold, by the names that LETOR and OHSUMED give them.
_FOLD_FILES = (
    ("train", "vali", "test"),
    ("train", "valid", "test"),
    ("trainingset", "validationset", "testset"),
)
_ENDINGS = ("", ".txt", ".txt.gz", ".parquet", ".csv", SUFFIX)


def read_fold(
    folder: str | os.PathLike[str], fold: int, **options: Any
) -> tuple[RankingDataset, RankingDataset, RankingDataset]:
    r"""Read the training, validation and test data of one of five folds.

    The folder has ``Fold1`` to ``Fold5``, each with ``train.txt``, ``vali.txt`` and ``test.txt`` (or
    ``trainingset.txt``, ``validationset.txt`` and ``testset.txt``); or it has the parts ``S1.txt`` to ``S5.txt``: fold
    1 trains on S1, S2 and S3, validates on S4 and tests on S5; fold 2 starts at S2, and so on, cyclically.

    Parameters
    ----------
    folder : path
        The folder.
    fold : int
        1 to 5.
    **options
        Arguments of ``read``.

    Returns
    -------
    train, valid, test : RankingDataset
        The three data sets, all with the same number of features.

    Raises
    ------
    DataError
        If a file of the fold is missing or cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in range(1, 6):
    ...         lines = f"0 qid:{part} 1:0.1 2:0.3\n1 qid:{part} 1:0.9 2:0.2\n"
    ...         written = pathlib.Path(folder, f"S{part}.txt").write_text(lines)
    ...     train, valid, test = read_fold(folder, fold=2)
    >>> train.query_ids.tolist(), valid.query_ids.tolist(), test.query_ids.tolist()
    ([2, 3, 4], [5], [1])
    """
    base = as_path(folder, "folder", "the name of a folder")
    if fold not in range(1, 6):
        raise ParameterError(argument="fold", expected="1, 2, 3, 4 or 5", got=repr(fold))
    if not base.is_dir():
        expected = "a folder with Fold1 to Fold5 or S1 to S5"
        raise DataError(where=base, expected=expected, got="nothing there", fix=near_path(base))
    parts = _fold_files(base, fold)
    read_parts = [[read(path, **options) for path in paths] for paths in parts]
    width = max(data.n_features for group in read_parts for data in group)
    widened = [[data.widen(width) for data in group] for group in read_parts]
    train, valid, test = (group[0] if len(group) == 1 else RankingDataset.concat(group) for group in widened)
    return train, valid, test


def is_folder_of_folds(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder of folds, for ``read_fold``, and not a data set (binary, or Parquet) or a model."""
    folder = Path(path)
    is_other = (folder / "meta.json").exists() or (folder / "model.json").exists()
    return folder.is_dir() and not is_other and not _is_parquet(folder)


def _is_parquet(folder: Path) -> bool:
    """Whether a folder is named ``.parquet``, or holds only Parquet files other than the parts S1 to S5."""
    content = [file for file in folder.iterdir() if not file.name.startswith((".", "_"))]
    are_parts = bool(content) and all(file.suffix in PARQUET_ENDINGS for file in content)
    return folder.suffix in PARQUET_ENDINGS or (are_parts and _existing(folder, "S1") is None)


def _fold_files(base: Path, fold: int) -> list[list[Path]]:
    """The files of training, validation and test data."""
    inside = base / f"Fold{fold}"
    if inside.is_dir():
        for names in _FOLD_FILES:
            files = [_existing(inside, name) for name in names]
            if all(files):
                return [[file] for file in files if file is not None]
        raise DataError(where=inside, expected="train.txt, vali.txt and test.txt", got=_content(inside))
    parts = [_existing(base, f"S{1 + (fold - 1 + k) % 5}") for k in range(5)]
    found = [part for part in parts if part is not None]
    if len(found) < 5:
        expected = "the folders Fold1 to Fold5 or the parts S1.txt to S5.txt"
        raise DataError(where=base, expected=expected, got=_content(base))
    return [found[:3], found[3:4], found[4:]]


def _existing(folder: Path, stem: str) -> Path | None:
    return next((path for ending in _ENDINGS if (path := folder / f"{stem}{ending}").exists()), None)


def _content(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "") if names else "an empty folder"


def readable_format(path: Path, format: str | None) -> str:
    """The format of a file or folder that exists and can be read."""
    is_folder = kind_of(path) == "folder"
    try:
        name = "parquet" if format is None and is_folder and _is_parquet(path) else _format_of(path, format)
        files = files_of(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if is_folder and (path / "model.json").exists():  # arguments in the wrong order
        expected, got = "a file of data", "the folder of a model"
        raise DataError(where=path, expected=expected, got=got, fix="tierank.load reads a model")
    if is_folder and name not in ("tierank", "parquet"):
        fix = "read_fold reads a folder of folds"
        raise DataError(where=path, expected="a file", got="a folder", fix=fix)
    if not is_folder and name == "tierank":
        raise DataError(where=path, expected="a folder", got="a file")
    for file in files:  # now, as a cache that cannot be written gives the same error later
        try:
            if kind_of(file) == "file":  # opening a pipe would wait for a writer
                file.open("rb").close()
        except OSError as error:
            raise unreadable(file, error) from None
    return name


def _format_of(path: Path, format: str | None) -> str:
    """The name of the format: the given one, or by the ending."""
    if format is not None:
        return as_choice("format", format, FORMATS)
    return next((name for name, form in FORMATS.items() if ending_of(path) in form.endings), "letor")
