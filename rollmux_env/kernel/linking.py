"""Compilation of kernel functions in less than half of numba's time: machine code is made for what Python calls, and no other.

Numba compiles every function to a separate module that also contains all that it calls: a function below six levels of callers
is optimised and written as machine code seven times, and most of these copies never run. Here a function that compiled code calls
stays intermediate code of LLVM until it is linked into the functions that Python calls, and is optimised there.

This uses parts of numba that are not its public interface. `is_tested` tells whether the installed version is one with which the
kernel's tests have passed. With another `rollmux_env.kernel.compiled` uses numba as it is, which takes longer.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, DefaultPassBuilder, Flags
from numba.core.compiler_machinery import PassManager

from rollmux_env.garbage import without_collections

_TESTED = ("0.65.",)
_NOT_NEEDED = (  # the kernel has no closures, context managers, literal_unroll, objects or parallel loops; it is not inspected
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.RewriteDynamicRaises,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.NoPythonSupportedFeatureValidation,
    typed_passes.AnnotateTypes,
    typed_passes.DumpParforDiagnostics,
)


def is_tested() -> bool:
    """Return whether the internals of the installed numba are known to be as they are used here."""
    return str(numba.__version__).startswith(_TESTED)


_DEFAULTS = {name: option.default for name, option in Flags.options.items()}


class _QuickFlags(Flags):  # type: ignore[misc]
    """Compiler flags that are quick to compare: numba looks up each operator of a function by them, some 10,000 times."""

    def values(self) -> dict[str, Any]:
        return {**_DEFAULTS, **self._values}


class EntryCompiler(Compiler):  # type: ignore[misc]
    """Compiler of functions that Python calls: numba's, without the passes that change nothing in the kernel."""

    def __init__(
        self, typingctx: Any, targetctx: Any, library: Any, args: Any, return_type: Any, flags: Flags, locals: Any
    ) -> None:
        super().__init__(typingctx, targetctx, library, args, return_type, _QuickFlags(flags), locals)

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("kernel")
        for one, description in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if one not in _NOT_NEEDED:
                passes.add_pass(one, description)
        passes.finalize()
        return [passes]

    def compile_extra(self, function: Any) -> Any:
        with without_collections():  # looking through what it makes takes a tenth of its time
            return super().compile_extra(function)


class CalleeCompiler(EntryCompiler):
    """Compiler of functions that compiled code calls, and Python does not."""

    def compile_extra(self, function: Any) -> Any:
        self.state.library = _CalleeLibrary(self.state.targetctx.codegen(), function.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(function)


class _CalleeLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Intermediate code of a function and of all that it calls, without machine code."""

    _final_module: Any

    def finalize(self) -> None:
        self._raise_if_finalized()
        whole = self._final_module
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            whole.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        for function in whole.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"  # as in numba: several modules may hold it
        self._shared_module = whole
        # Numba finds the environments of a module's functions by their names, also when it loads the module from the disk.
        environments = (str(one) for one in whole.global_variables if one.name.startswith("_ZN08NumbaEnv"))
        self._final_module = llvm.parse_assembly("\n".join((str(self._codegen._create_empty_module(self.name)), *environments)))
        self._finalize_final_module()
