"""The log of the server: lines on standard error, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time

from tierank.serve.counters import Counters

LOG = logging.getLogger("tierank.serve")


def log_to_stderr(kind: str) -> None:
    """Log one line per event; of other libraries only errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines() if kind != "json" else _JsonLines())
    levels = {
        "tierank": logging.WARNING if kind == "quiet" else logging.INFO,
        "uvicorn": logging.ERROR,
        "asyncio": logging.ERROR,
    }
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers, logger.propagate = [handler], False


def log_replacement(counters: Counters, model: str, refusal: str | None, checksum: str | None = None) -> None:
    """Log and count the outcome of a new model: refused, replaced, or (without a checksum) unchanged."""
    if refusal is not None:
        counters.count_reload(model, "refused")
        LOG.error("model %s: kept the old one: %s", model, " ".join(refusal.split()))
    elif checksum is None:
        LOG.info("model %s: unchanged", model)
    else:
        counters.count_reload(model, "replaced")
        LOG.warning("model %s: replaced, checksum %s", model, checksum)


class _Lines(logging.Formatter):
    """Lines of text."""

    def format(self, record: logging.LogRecord) -> str:
        """One event; a bug with its traceback."""
        text = record.getMessage()
        if hasattr(record, "request"):
            of = record.request
            scored = f" {of['model']} {of['documents']} documents" if of["model"] is not None else ""
            text = f"{of['code']} {of['method']} {of['path']}{scored} {of['milliseconds']:.1f} ms"
        elif record.levelno >= logging.ERROR:
            text = f"ERROR {text}"
        where = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{_when(record)} {text}{where}"


class _JsonLines(logging.Formatter):
    """Lines of JSON, one object each."""

    def format(self, record: logging.LogRecord) -> str:
        """One event."""
        content = {"time": _when(record), "level": record.levelname.lower(), "message": record.getMessage()}
        if hasattr(record, "request"):
            content |= record.request
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)


def _when(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03}Z"
