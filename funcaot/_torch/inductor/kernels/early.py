"""Files of kernels that are compiled while Inductor writes the others: `inductor` enters this.

Inductor writes all kernels of a graph, then compiles them. The C++ compiler takes as long as the
writing for a large graph, and needs another core. So each file that is long enough is compiled as
soon as its last kernel is written. The module that Inductor makes asks for the same file later.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch._inductor import async_compile

from funcaot._torch.dynamo.compile_lock import replaced_here
from funcaot._torch.inductor.kernels.files import Kernel, filled, kernel_of
from funcaot._torch.inductor.kernels.together import start

__all__ = ["started_early"]

_LOG = logging.getLogger(__name__)


class _Written:
    """The kernels that Inductor has written for one graph and that aren't in a file yet."""

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}

    def cpp_pybinding(self, argtypes: list[str], source_code: str) -> Kernel | None:
        """What the text of a kernel calls, as the module that Inductor makes does."""
        return kernel_of(argtypes, source_code)

    def take(self, name: str, text: str) -> None:
        """Take the Python text that a kernel has in the module; compile the file that it fills."""
        if not text.startswith("async_compile.cpp_pybinding("):
            return
        kernel = eval(text, {"async_compile": self})
        if kernel is None:
            return
        self._kernels[name] = kernel
        files, self._kernels = filled(self._kernels)
        for file in files:
            start(file)


@contextlib.contextmanager
def started_early() -> Iterator[None]:
    """Let files of kernels that Inductor writes inside be compiled at once, in other threads."""
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    if async_compile.get_compile_threads() == 1:
        yield
        return
    define_kernel: Any = PythonWrapperCodegen.define_kernel
    written = _Written()

    def define(wrapper: Any, name: str, text: str, *args: Any, **kwargs: Any) -> None:
        define_kernel(wrapper, name, text, *args, **kwargs)
        try:
            written.take(name, text)
        except Exception as error:  # noqa: BLE001  (the module asks for it again, and raises)
            _LOG.info("Kernel %s wasn't compiled early: %s", name, error)

    with replaced_here(PythonWrapperCodegen, "define_kernel", define):
        yield
