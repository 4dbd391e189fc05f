"""Texts: many short texts, such as the ids of documents, as one block of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# Texts taken at a time, as the temporary arrays are larger than the texts.
_TAKEN = 1 << 16


class Texts:
    """Many short texts as one block of bytes: text i is ``blob[ends[i-1]:ends[i]]`` in UTF-8."""

    blob: NDArray[np.uint8]
    ends: NDArray[np.int64]

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.blob, self.ends = blob, ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """The block of these texts."""
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    @staticmethod
    def concat(parts: Sequence[Texts]) -> Texts:
        """The texts of several blocks, joined."""
        shifts = np.cumsum([0, *(len(part.blob) for part in parts[:-1])])
        ends = [part.ends + shift for part, shift in zip(parts, shifts, strict=True)]
        return Texts(np.concatenate([part.blob for part in parts]), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        blob, start = self.blob.tobytes(), 0
        for end in self.ends.tolist():
            yield blob[start:end].decode(errors="replace")
            start = end

    def take(self, rows: NDArray[np.int64]) -> Texts:
        """The texts of these rows, in this order."""
        if len(rows) > _TAKEN:
            return Texts.concat([self.take(rows[k : k + _TAKEN]) for k in range(0, len(rows), _TAKEN)])
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        ends = lengths.cumsum()
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        return Texts(self.blob[np.repeat(starts, lengths) + inside], ends)
