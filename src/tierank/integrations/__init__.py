"""Names of metrics in trackers.

Integrations with experiment trackers, PyTerrier and sentence-transformers; each module needs its own library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tierank.extras import loaded_on_use
from tierank.rankers.model import Step

# Characters that MLflow accepts in the name of a metric; TensorBoard accepts them too.
_ODD = re.compile(r"[^\w\-. :/]")


def tracked_name(name: str) -> str:
    """The name of a metric for trackers, which do not accept ``@``.

    >>> tracked_name("ndcg@10"), tracked_name("my metric (new)")
    ('ndcg_at_10', 'my metric _new_')
    """
    return _ODD.sub("_", name.replace("@", "_at_"))


def tracked_values(step: Step) -> Iterator[tuple[str, float]]:
    """The metrics and the loss of a step, by names that distinguish the parts of a ranker."""
    place = [step.part] if step.part else []
    place += [f"member{step.member}"] if step.member else []
    place += [f"learner{step.learner}"] if step.learner > 1 else []
    values = dict(step.metrics) if step.loss is None else {**step.metrics, "loss": step.loss}
    for name, value in values.items():
        yield "/".join([*place, tracked_name(name)]), float(value)


__getattr__ = loaded_on_use(__name__, "mlflow", "pyterrier", "sentence_transformers", "tensorboard")
