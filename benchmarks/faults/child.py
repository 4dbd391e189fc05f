"""The process that makes the calls: a line of JSON in (module, function, arguments), a line out (outcome, message)."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import warnings

from benchmarks.faults.runner import outcome


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the calls is not part of the answer
    warnings.simplefilter("ignore")
    logging.getLogger("tierank").setLevel(logging.CRITICAL)
    for line in sys.stdin:
        module, name, arguments = json.loads(line)
        call = getattr(importlib.import_module(module), name)
        print(json.dumps(outcome(call, arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
