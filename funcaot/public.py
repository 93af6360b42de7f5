"""The public names of the package, but for those of artifacts; ``funcaot`` passes them on."""

from __future__ import annotations

from funcaot import config
from funcaot.aot.runtime.cache import clear_all as clear
from funcaot.aot.runtime.mark_static import mark_static
from funcaot.aot.signature.dynamic import mark_dynamic
from funcaot.aot.subclasses.registration import register_wrapper
from funcaot.api import aot_function, aot_module, compile
from funcaot.derivatives.table import register_derivative
from funcaot.functions.checkpoint import checkpoint
from funcaot.functions.closure_convert import closure_convert
from funcaot.functions.custom_gradient import custom_gradient
from funcaot.functions.custom_jvp import custom_jvp
from funcaot.functions.custom_vjp import custom_vjp
from funcaot.functions.custom_vmap import custom_vmap, sequential_vmap
from funcaot.functions.function import Function
from funcaot.functions.interception import install, uninstall
from funcaot.functions.linear_call import linear_call
from funcaot.operator.operator import custom_function_call
from funcaot.report import report
from funcaot.rules.symbolic_zeros import (
    CustomVJPPrimal,
    SymbolicZero,
    custom_vjp_primal_tree_values,
    zero_from_primal,
)
from funcaot.transforms.forms.old_style import second_order
from funcaot.transforms.inlining import inline_functions
