"""Compiled loops: arrays in, arrays out. The only package that imports numba.

A kernel is a plain loop over one part of the work (a span of bytes, a span of queries). ``@compiled`` makes it release
the interpreter lock, and ``in_threads`` runs it on the parts in parallel. Functions that only kernels call are
``@inner``. numba's own parallel loops are not used: their thread pools do not survive a fork, and they take several
times as long to compile. ``compiling`` says how kernels are compiled and where the code is stored, ``threads`` how many
threads there are.
"""

from tierank.kernels.compiling import work_arrays
from tierank.kernels.threads import in_threads, most_workers, n_threads, n_workers, one_thread

__all__ = ["in_threads", "most_workers", "n_threads", "n_workers", "one_thread", "work_arrays"]
