"""How the functions that only kernels call are compiled: as parts of the kernels.

numba takes every function to machine code, and does so once more inside each function that calls it. Python never calls
a part, so a part is only translated for LLVM, which works on it in the kernel alone. Compiling takes four fifths of the
time, and uMart's gradient is 4% faster.

``pipeline_class`` is numba's way to bring one's own compiler. The methods of ``_Part`` are numba's own: if a later
version no longer calls them, parts are compiled as numba does it.
"""

from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]  # written in C
from numba.core import codegen, compiler


class _Part(codegen.JITCodeLibrary):
    """Code that is linked into kernels as it is: not optimised, not taken to machine code."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


class PartCompiler(compiler.Compiler):
    """numba's compiler, up to the code that is linked."""

    def define_pipelines(self) -> Any:
        """Numba's passes, with a library of ours."""
        state = self.state
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.targetctx.get_executable = _stand_in  # the context is a copy for this function
        return super().define_pipelines()


def _stand_in(library: Any, description: Any, environment: Any) -> Any:
    """By what numba knows a compiled function; without an address, as it has no machine code."""
    return _dynfunc.make_function(
        description.lookup_module(), description.qualname, "part of a kernel", 0, environment, (library,)
    )
