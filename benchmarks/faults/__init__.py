"""Robustness: ``python -m benchmarks.faults`` prints one table of all parts."""

from benchmarks.faults.kills import full_disk, kill_and_resume, train_command, two_writers, write_data
from benchmarks.faults.models import try_models, with_sizes

__all__ = [
    "full_disk",
    "kill_and_resume",
    "train_command",
    "try_models",
    "two_writers",
    "with_sizes",
    "write_data",
]
