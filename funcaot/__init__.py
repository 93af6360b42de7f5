"""funcaot: any ``torch.autograd.Function``, compiled or not, under any transform, to any order."""

from __future__ import annotations

from funcaot import config
from funcaot.aot.runtime.cache import clear_all as clear
from funcaot.aot.signature.dynamic import mark_dynamic
from funcaot.api import aot_function, aot_module, compile
from funcaot.functions.custom_jvp import custom_jvp
from funcaot.functions.custom_vjp import custom_vjp
from funcaot.functions.function import Function
from funcaot.functions.interception import install, uninstall
from funcaot.operator.operator import custom_function_call
from funcaot.report import report
from funcaot.transforms.inlining import inline_functions
from funcaot.transforms.old_style import second_order

__all__ = [
    "Function",
    "aot_function",
    "aot_module",
    "clear",
    "compile",
    "config",
    "custom_function_call",
    "custom_jvp",
    "custom_vjp",
    "inline_functions",
    "install",
    "mark_dynamic",
    "report",
    "second_order",
    "uninstall",
]
