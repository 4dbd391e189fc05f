"""Text encoders: vectors of texts, computed once per text, and how alike the vectors of queries and documents are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from tierank.arrays import Floats, Rows
from tierank.display import Progress
from tierank.errors import DataError, ParameterError
from tierank.extras import loading, require
from tierank.files import replacing
from tierank.workers import check_deadline

Vectors = NDArray[np.float32]
Encode = Callable[[list[str]], Any]

# Features of a pair of texts: ``similarities`` computes them.
VECTOR_PARTS = ("cosine", "list_cosine")
# How sharply the weights of the documents that a list is about fall with their cosine.
TEMPERATURE = 0.1
# Texts encoded at a time; with more new texts than the second, there is a progress bar, with fewer than the third they
# are not written to the cache: a server would write a file for each request.
_BATCH, _LONG, _WORTH = 32, 1000, 16
# Vectors that are held in memory, and files of the cache before they are joined.
_HELD, _FILES = 200_000, 64
# The files of a model that decide what its vectors are.
_DECISIVE = (".safetensors", ".json", ".txt", ".model")
# Encoders of this process, by name and by digest.
_KNOWN: dict[str, TextEncoder] = {}


class TextEncoder:
    """What turns texts into vectors: a model of sentence-transformers, or a function.

    Vectors are computed once per text, scaled to length 1, and rounded to 16 bits. Those of a model, and of a function
    with a ``version``, are kept in a folder: ``TIERANK_CACHE``, by default ``~/.cache/tierank``. Nothing is ever
    fetched: a model has to be on this machine.

    Parameters
    ----------
    source : str, path or callable
        The folder of a sentence-transformers model; the name of one that is in the cache of Hugging Face; or a function
        from a list of texts to a vector for each.
    version : str, optional
        The version of a function, which says when its vectors have to be computed again.

    Attributes
    ----------
    name : str
        What model files call it: the folder, the name, or ``function module.name``.
    digest : str
        The digest of its weights; of a function that of its name and version.

    Examples
    --------
    >>> def vowels(texts):
    ...     return [[text.count(letter) for letter in "aeiou"] for text in texts]
    >>> print(TextEncoder(vowels).vectors(["queue", "a e"]).round(2))
    [[0.   0.71 0.   0.   0.71]
     [0.71 0.71 0.   0.   0.  ]]
    """

    def __init__(self, source: str | os.PathLike[str] | Encode, version: str | None = None) -> None:
        self._encode: Encode | None = None
        self._folder: Path | None = None
        if callable(source):
            module, name = getattr(source, "__module__", ""), getattr(source, "__qualname__", type(source).__name__)
            self.name, self._encode = f"function {module}.{name}", source
            self.digest = hashlib.sha256(f"{self.name} {version}".encode()).hexdigest()[:32]
        elif isinstance(source, (str, os.PathLike)) and os.fspath(source):
            if version is not None:
                raise ParameterError(argument="version", expected="None for a model, which has a digest", got=version)
            self._folder = _folder_of(os.fspath(source))
            self.name = str(self._folder.resolve()) if Path(source).exists() else os.fspath(source)
            self.digest = _digest_of(self._folder)
        else:
            expected = "the name or folder of a sentence-transformers model, or a function from texts to vectors"
            raise ParameterError(argument="encoder", expected=expected, got=repr(source))
        self._is_kept = self._folder is not None or version is not None
        self._held: dict[str, Vectors] = {}
        self._is_read = False
        if self._folder is None:
            _KNOWN[self.name] = _KNOWN[self.digest] = self
        else:  # the first one of a digest has its weights in memory
            _KNOWN.setdefault(self.digest, self)

    @classmethod
    def of(cls, name: str, digest: str | None = None) -> TextEncoder:
        """The encoder that a declaration or a model names. Raises ``DataError`` if it is not here, or is another."""
        known = _KNOWN.get(digest or name) or _KNOWN.get(name)
        if known is None and name.startswith("function "):
            fix = "create it first, in this process: tierank.TextEncoder(function)"
            raise DataError(argument="encoder", expected=f"the {name}", got="none", fix=fix)
        known = known or _KNOWN[cls(name).digest]
        if digest is not None and known.digest != digest:
            fix = "create the one from training, wherever it is: tierank.TextEncoder(folder)"
            expected = f"the text encoder {name!r} with the digest {digest}, as in training"
            raise DataError(argument="encoder", expected=expected, got=f"one with {known.digest}", fix=fix)
        return known

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """A vector of length 1 for each text; zeros for an empty one.

        Parameters
        ----------
        texts : sequence of str
            The texts; equal ones are encoded once.

        Returns
        -------
        array of float32
            Texts x numbers.
        """
        if self._is_kept and not self._is_read:
            self._read()
        new = sorted({text for text in texts if text and text not in self._held}, key=lambda text: (len(text), text))
        made: dict[str, Vectors] = {}
        batches = [new[first : first + _BATCH] for first in range(0, len(new), _BATCH)]
        with Progress("encode texts", len(batches), show=len(new) >= _LONG) as progress:
            for batch in batches:
                check_deadline()
                made.update(zip(batch, self._encoded(batch), strict=True))
                progress.step()
        held = self._held | made if made else self._held
        if self._is_kept and len(new) >= _WORTH:
            self._write(made)
        self._held = held if len(held) <= _HELD else made
        size = len(next(iter(held.values()))) if held else 1
        vectors = np.zeros((len(texts), size), np.float32)
        for row, text in enumerate(texts):
            if text:
                vectors[row] = held[text]
        return vectors

    def _encoded(self, texts: list[str]) -> Vectors:
        """The vectors of some texts, in one go."""
        if self._encode is None:
            with loading("a text encoder"):
                from sentence_transformers import SentenceTransformer
            model = SentenceTransformer(str(self._folder), device="cpu", local_files_only=True)
            self._encode = lambda batch: model.encode(batch, batch_size=len(batch), show_progress_bar=False)
        made = np.asarray(self._encode(texts), np.float64)
        if made.ndim != 2 or len(made) != len(texts) or not made.shape[1] or not np.isfinite(made).all():
            expected = f"a vector of finite numbers for each of {len(texts)} texts"
            raise DataError(argument="encoder", expected=expected, got=f"an array of shape {made.shape}")
        lengths = np.sqrt((made**2).sum(axis=1, keepdims=True))
        return (made / np.where(lengths > 0, lengths, 1.0)).astype(np.float16).astype(np.float32)

    @property
    def _cache(self) -> Path:
        chosen = os.environ.get("TIERANK_CACHE")
        return (Path(chosen) if chosen else Path.home() / ".cache" / "tierank") / "vectors" / self.digest

    def _read(self) -> None:
        """Read the vectors that were computed earlier; damaged files are left out."""
        self._is_read = True
        for file in sorted(self._cache.glob("*.safetensors")):
            try:
                arrays = safetensors.numpy.load(file.read_bytes())
                texts = arrays["texts"].tobytes().decode().split("\0")
                self._held |= dict(zip(texts, arrays["vectors"].astype(np.float32), strict=True))
            except (OSError, KeyError, ValueError, safetensors.SafetensorError):
                continue

    def _write(self, made: dict[str, Vectors]) -> None:
        """Write new vectors to a file of their own, so that processes do not disturb each other; join many files."""
        folder = self._cache
        folder.mkdir(parents=True, exist_ok=True)
        old = list(folder.glob("*.safetensors"))
        if len(old) >= _FILES:
            made = self._held | made
        kept = {text: vector for text, vector in made.items() if "\0" not in text}
        content = safetensors.numpy.save(
            {
                "texts": np.frombuffer("\0".join(kept).encode(), np.uint8),
                "vectors": np.array(list(kept.values()), np.float16),
            }
        )
        target = folder / f"{hashlib.sha256(content).hexdigest()[:32]}.safetensors"
        with replacing(target) as fresh:
            fresh.write_bytes(content)
        for file in old if len(old) >= _FILES else []:
            file.unlink(missing_ok=True)


def _folder_of(source: str) -> Path:
    """The folder of a model: as given, or in the cache of Hugging Face."""
    if Path(source).is_dir():
        return Path(source)
    require("a text encoder", "sentence_transformers")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        fix = "give the folder of the model, or fetch it once: huggingface-cli download NAME"
        expected = f"the text encoder {source!r} on this machine"
        raise DataError(argument="encoder", expected=expected, got="none", fix=fix) from None


def _digest_of(folder: Path) -> str:
    """The digest of the weights, words and settings of a model."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in _DECISIVE and file.is_file())
    if not any(file.suffix == ".safetensors" for file in files):
        expected = "a sentence-transformers model with its weights in safetensors"
        raise DataError(argument="encoder", where=folder, expected=expected, got="no such file")
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            whole.update(file.relative_to(folder).as_posix().encode())
            whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()[:32]


def similarities(queries: Vectors, documents: Vectors, offsets: Rows | None) -> dict[str, Floats]:
    """The features of ``VECTOR_PARTS`` for vectors of length 1, or 0; NaN where one is missing.

    ``cosine`` is q'd. ``list_cosine`` is the cosine of d with what the list is about, the sum over its documents of
    d e^(q'd / 0.1): documents that resemble the best matches of their list are probably relevant too (the idea of
    pseudo-relevance feedback). Without lists there is only the cosine.
    """
    cosine = (queries.astype(np.float64) * documents).sum(axis=1)
    is_known = (queries != 0).any(axis=1) & (documents != 0).any(axis=1)
    made = {"cosine": np.where(is_known, cosine, np.nan)}
    if offsets is not None:
        of_list = np.full(len(cosine), np.nan)
        for first, end in pairwise(offsets.tolist()):
            rows = first + np.flatnonzero(is_known[first:end])
            # In an order that does not depend on that of the rows, so that the sum has the same bits.
            rows = rows[np.lexsort((*documents[rows].T[:2], cosine[rows]))]
            if not len(rows):
                continue
            own = documents[rows].astype(np.float64)
            about = np.exp((cosine[rows] - cosine[rows[-1]]) / TEMPERATURE) @ own
            of_list[rows] = own @ about / max(np.sqrt((about**2).sum()), np.finfo(np.float64).tiny)
        made["list_cosine"] = of_list
    return made
