"""LETOR text read the slow and obvious way, from the description of the format alone."""

import re

import numpy as np

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Malformed(Exception):
    pass


def number(text: str) -> float:
    if text.lower() in ("nan", "null"):
        return float("nan")
    if not NUMBER.fullmatch(text):
        raise Malformed(text)
    return float(text)


def read(content: bytes) -> list[tuple[float, str, dict[int, float]]]:
    """Rating, query id and features of each document, in file order."""
    if content.startswith(b"\xef\xbb\xbf"):
        content = content[3:]
    documents = []
    raw_id = {}
    for line in content.split(b"\n"):
        raw = [f for f in re.split(rb"[ \t\r]+", line.split(b"#")[0]) if f]
        fields = [f.decode("utf-8", "backslashreplace") for f in raw]
        if not fields:
            continue
        rating = number(fields[0])
        if not 0 <= rating < float("inf"):
            raise Malformed(fields[0])
        if len(fields) < 2 or not fields[1].startswith("qid:") or fields[1] == "qid:":
            raise Malformed("qid")
        features = {}
        for field in fields[2:]:
            if not (pair := re.fullmatch(r"([0-9]{1,7}):(.*)", field, re.DOTALL)):
                raise Malformed(field)
            index = int(pair[1])
            with np.errstate(over="ignore"):
                value = np.float32(number(pair[2]))
            if index < 1 or index in features or np.isinf(value):
                raise Malformed(field)
            features[index] = value
        query = fields[1][4:].replace("\0", "\\x00")
        if raw_id.setdefault(query, raw[1]) != raw[1]:  # two ids that would become one
            raise Malformed(query)
        documents.append((rating, query, features))
    if not documents:
        raise Malformed("no documents")
    return documents
