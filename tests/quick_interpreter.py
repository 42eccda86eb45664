"""Triton's interpreter without what it does in vain: kernels run in about half the time.

- A function that a kernel calls replaces all of `triton.language`, though the kernel has done so already.
- Sums and products of integers are computed a second time to find overflows, which it then does not report.
- The numpy type of a value is looked up in a table that is made anew each time.

Where a Triton has other insides, nothing is changed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

_INSIDES = ("_LangPatchScope", "_get_np_dtype", "_patch_lang", "GridExecutor", "interpreter_builder", "tl")


def install() -> None:
    """Once for a process; what follows does nothing."""
    from triton.runtime import interpreter

    is_known = all(hasattr(interpreter, name) for name in _INSIDES)
    if is_known and not hasattr(interpreter.GridExecutor, "is_quick"):
        interpreter.GridExecutor.is_quick = True
        _replace_language_once(interpreter)
        _keep_number_types(interpreter)
        options = interpreter.interpreter_builder.options
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)


def _replace_language_once(interpreter: Any) -> None:
    replace_language, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    replaced: set[int] = set()  # ids of modules, in the launch that runs

    @cache
    def languages(function: Any) -> set[int]:
        return {id(value) for value in function.__globals__.values() if value in (interpreter.tl, interpreter.tl.core)}

    def replace_once(function: Any) -> Any:
        if languages(function) <= replaced:
            return interpreter._LangPatchScope()
        replaced.update(languages(function))
        return replace_language(function)

    def launch_afresh(self: Any, *arguments: Any, **keywords: Any) -> None:
        replaced.clear()
        launch(self, *arguments, **keywords)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = replace_once, launch_afresh


def _keep_number_types(interpreter: Any) -> None:
    look_up = interpreter._get_np_dtype
    of_scalars = cache(look_up)  # pointers have no hash
    interpreter._get_np_dtype = lambda kind: (of_scalars if type(kind) is interpreter.tl.dtype else look_up)(kind)
