"""The operator: every Function is called through it, and every transform has one rule for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.overrides import handle_torch_function

from funcaot._torch.autograd.autograd import in_dual_level
from funcaot._torch.levels.functorch import (
    HigherOrderOperator,
    coerce_cinterpreter,
    current_dispatch_mode,
    dispatch_mode_count,
    function_mode_active,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    peek_interpreter_stack,
    pop_dispatch_mode,
    python_key_excluded,
    transforms_active,
    unwrap_dead,
)
from funcaot.base.tracebacks import shortened
from funcaot.classes.opaque import current_captor
from funcaot.classes.traits import defined_at, display_name
from funcaot.errors import ArgumentError, MissingRuleError
from funcaot.operator.plan import CallPlan, plan_of

__all__ = ["CustomFunctionCall", "custom_function_call"]

Rule = Callable[..., Any]


class CustomFunctionCall(HigherOrderOperator):
    """``custom_function_call(FunctionClass, *operands)``.

    The operator knows no rule. The files in :mod:`funcaot.transforms` register one each, by
    functorch level (``py_impl(TransformType...)``), by dispatch mode (``py_impl(ModeClass)``), or
    for what has no key that Python can see (:meth:`register`).
    """

    def __init__(self) -> None:
        """Register under a name of its own: torch's entry has another meaning."""
        super().__init__("funcaot_custom_function_call")
        self._unkeyed: dict[str, Rule] = {}

    def register(self, situation: str) -> Callable[[Rule], Rule]:
        """Register what to do in a situation that has no key.

        Args:
            situation: ``base``, ``direct``, ``in_capture``, ``in_backward``, ``legacy_batched``,
                ``old_style``, ``wants_split`` or ``keywords``.
        """

        def decorate(rule: Rule) -> Rule:
            self._unkeyed[situation] = rule
            return rule

        return decorate

    def __call__(self, function: type, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` on ``args`` under whatever transforms and modes are active."""
        try:
            plan = function.__dict__["_funcaot_cache"]["plan"]
        except (AttributeError, KeyError):
            plan = plan_of(function)
        if kwargs or len(args) != plan.arity:
            function, args, plan = self._bound(plan, args, kwargs)
        try:
            if transforms_active():
                if function_mode_active():  # a capture puts its own tensors in place of real ones
                    return handle_torch_function(self, args, plan.function, *args)
                return self._at_level(plan, args)
            if plan.program is None and dispatch_mode_count() == 0 and not function_mode_active():
                for value in args:
                    if isinstance(value, torch.Tensor):
                        if is_functorch_wrapped_tensor(value) or is_legacy_batchedtensor(value):
                            break
                    elif isinstance(value, (list, tuple, dict)):
                        break
                else:
                    if plan.checked and not plan.old_style:
                        return (plan.direct or self._direct(plan))(*args)
                    return self._plainly(plan, args)
            if plan.program is None and function_mode_active() and current_captor() is not None:
                return self._unkeyed["in_capture"](plan, args, partial(self._at_base, plan))
            if plan.program is None and current_captor() is not None and not function_mode_active():
                return self._unkeyed["in_backward"](plan, args, partial(self._at_base, plan))
            return self._at_base(plan, args)
        except Exception as error:  # noqa: BLE001 (it is raised again)
            raise shortened(error)  # noqa: B904 (it is the same error)

    def _direct(self, plan: CallPlan) -> Rule:
        direct = plan.direct = self._unkeyed["direct"](plan.function)
        return direct

    def _plainly(self, plan: CallPlan, args: tuple[Any, ...]) -> Any:
        """Call where no level, no mode and no special tensor is involved."""
        if plan.old_style:
            if self._unkeyed["wants_split"](plan.function):
                return self._unkeyed["old_style"](plan.function, args)
            return plan.native(*args)
        if plan.checked or in_dual_level():
            return (plan.direct or self._direct(plan))(*args)
        return plan.native(*args)

    def _bound(
        self, plan: CallPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[type, tuple[Any, ...], CallPlan]:
        if plan.needs_binding(args, kwargs):
            args, kwargs = plan.bind(args, kwargs)
        if not kwargs:
            return plan.function, args, plan
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor):
                raise ArgumentError(
                    f"{display_name(plan.function)}.apply got a tensor by a keyword that can't be "
                    f"made positional: {name!r}",
                    expected="tensors as positional operands; a gradient belongs to a position",
                    got=f"the keyword-only tensor {name!r}",
                    remedy=f"make {name!r} a positional parameter of forward.",
                )
        function = self._unkeyed["keywords"](plan.function, kwargs)
        return function, args, plan_of(function)

    def _at_level(self, plan: CallPlan, args: tuple[Any, ...]) -> Any:
        args = unwrap_dead(args)
        if plan.old_style:
            return self._unkeyed["old_style"](plan.function, args)
        interpreter = coerce_cinterpreter(peek_interpreter_stack())
        rule = self.functorch_table.get(interpreter.key())
        if rule is None:
            raise MissingRuleError(
                f"{display_name(plan.function)} was called under {interpreter.key().name}",
                expected=f"one of {sorted(key.name for key in self.functorch_table)}",
                got=f"the functorch level {interpreter.key().name}",
                remedy="register a rule with custom_function_call.py_impl.",
                where=defined_at(plan.function),
            )
        return rule(interpreter, plan.function, *args)

    def _at_base(self, plan: CallPlan, args: tuple[Any, ...]) -> Any:
        if function_mode_active():
            return handle_torch_function(self, args, plan.function, *args)
        args = unwrap_dead(args)
        if any(isinstance(a, torch.Tensor) and is_legacy_batchedtensor(a) for a in args):
            return self._unkeyed["legacy_batched"](plan.function, args)
        if plan.program is None and self.mode_rule() is None:
            return self._plainly(plan, args)
        if plan.old_style:
            return self._unkeyed["old_style"](plan.function, args)
        return self._unkeyed["base"](plan.function, *args)

    def mode_rule(self) -> Rule | None:
        """The rule of the innermost dispatch mode; None where forward should simply run."""
        if dispatch_mode_count() == 0 or python_key_excluded():
            return None
        table = self.python_key_table
        kinds = type(current_dispatch_mode()).__mro__
        return next((table[kind] for kind in kinds if kind in table), None)

    def below_autograd(self, function: type, *operands: Any) -> Any:
        """Go on below autograd: the innermost mode's rule, or the user's forward.

        The redispatch is explicit. Excluding autograd's keys instead would break a ``vjp`` inside
        the body of forward.
        """
        rule = self.mode_rule()
        if rule is None:
            return function.forward(*operands)
        with pop_dispatch_mode() as mode:
            return rule(mode, function, *operands)


custom_function_call = CustomFunctionCall()
# The class is for who adds a rule; this is for who calls it.
custom_function_call.__doc__ = """Call a ``torch.autograd.Function`` under whatever is active.

    It is what ``funcaot.Function.apply`` does, for any class: ``grad``, ``vjp``, ``vmap``, ``jvp``,
    ``functionalize`` and tracing find the Function's own rules, or rules generated from them,
    without :func:`funcaot.install` and without a change to the class.

    Args:
        function: The class, with the staticmethods of ``torch.autograd.Function``.
        *args: What its ``forward`` takes, without ``ctx``: tensors of any shape and dtype, and
            whatever else it wants.
        **kwargs: The same by name.

    Returns:
        What ``forward`` returns.

    Raises:
        ArgumentError: It isn't such a class, or ``forward`` doesn't take these arguments.
        MissingRuleError: A rule is missing for what is active, and can't be generated.
        RuleError: A rule returned something that the transform can't use.

    Example:
        >>> import torch, funcaot
        >>> class Cube(torch.autograd.Function):
        ...     generate_vmap_rule = True
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x**3
        ...     @staticmethod
        ...     def backward(ctx, gradient):
        ...         return 3 * gradient * ctx.saved_tensors[0] ** 2
        >>> def cube(x):
        ...     return funcaot.custom_function_call(Cube, x)
        >>> torch.func.vmap(torch.func.grad(cube))(torch.tensor([1.0, 2.0]))
        tensor([ 3., 12.])
    """
__test__ = {"custom_function_call": custom_function_call.__doc__}
