"""``funcaot.custom_vjp``: a reverse rule for a plain function on pytrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.functions.custom_rule import CustomRule, P, R, apart, pair
from funcaot.functions.known_outputs import KnownOutputs
from funcaot.functions.lifted_derivative import FunctionOfLifted, OutputsMetadata
from funcaot.rules.metadata import TensorMetadata
from funcaot.rules.operands.closures import Hollow, Sealed, hollowed
from funcaot.rules.operands.flat_call import OutputStructure
from funcaot.rules.operands.lifted_call import LiftedCall
from funcaot.rules.random_draws import RandomDraws
from funcaot.rules.symbolic_zeros import SymbolicZero

__all__ = ["custom_vjp"]


class custom_vjp(CustomRule[P, R]):  # noqa: N801  (a decorator)
    """Give a function its own reverse rule, in JAX's argument order.

    ``fwd`` takes the function's arguments and returns ``(output, residuals)``; ``bwd`` takes the
    arguments named by ``nondiff_argnums``, then the residuals and the cotangents of the output, and
    returns a tuple with one cotangent per other argument. Arguments, output and residuals may be
    any pytrees. Without a derivative in sight the function itself is called.

    Unlike JAX's, forward mode works too: it's generated from ``bwd``, exactly if ``bwd`` is linear
    in the cotangents, differentiable in them, and doesn't branch on their values. So does ``vmap``.
    Residuals may be functions and objects, by the tensors that they hold; where these are out of
    reach, as in the function that ``torch.func.vjp`` returns, ``fwd`` runs again in the backward.
    By a tensor that the function closes over, it is differentiated as it is written.
    Derivatives of higher order go through ``bwd`` and through the residuals as computed by ``fwd``.

    Args:
        function: The function.
        nondiff_argnums: Positions of arguments that have no derivative.
        nondiff_argnames: The same by name.
        allow_nonlinear_rule: Don't check that ``bwd`` is linear when forward mode needs it.

    Example:
        >>> import torch, funcaot
        >>> @funcaot.custom_vjp
        ... def log1pexp(x):
        ...     return torch.log(1 + torch.exp(x))
        >>> def fwd(x):
        ...     return log1pexp(x), x
        >>> def bwd(x, cotangent):
        ...     return (cotangent * torch.sigmoid(x),)
        >>> log1pexp.defvjp(fwd, bwd)
        >>> torch.func.grad(log1pexp)(torch.tensor(100.0))
        tensor(1.)
    """

    setters = "defvjp"
    example = "defvjp(fwd, bwd)"

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the reverse rule.

        Args:
            fwd: ``fwd(*args) -> (output, residuals)``.
            bwd: ``bwd(*nondiff_args, residuals, cotangents) -> (cotangent, ...)``.
            symbolic_zeros: Whether the leaves of ``fwd``'s differentiable arguments are
                :class:`funcaot.CustomVJPPrimal`, which say whether they are differentiated, and
                cotangents of outputs that nothing depends on :class:`funcaot.SymbolicZero`.
            optimize_remat: Whether the output comes from the function, and ``fwd`` runs only in the
                backward; nothing but the arguments is kept.
        """
        self._known = KnownOutputs()
        rules = _Rules(self.name, symbolic_zeros, optimize_remat, self._known)
        self._set_rule(
            (fwd, bwd),
            forward=staticmethod(rules.forward),
            backward=staticmethod(rules.backward),
            second_order="exact",
            _funcaot_rule=staticmethod(bwd),
        )

    def _run(self, args: tuple[Any, ...]) -> Any:
        output = super()._run(args)
        self._known.note(args, output)
        return output


@dataclass(frozen=True, eq=False)
class _Record:
    """What ``bwd`` is told of a call besides tensors; opaque, so that every level passes it on.

    Attributes:
        call: The call.
        needs: Which operands were differentiated.
        inputs: What the operands look like.
        structure: The structure of the output.
        outputs: What its leaves look like.
        residuals: Arguments without a derivative, and residuals; None if ``fwd`` runs again.
    """

    call: LiftedCall
    needs: tuple[bool, ...]
    inputs: OutputsMetadata
    structure: OutputStructure
    outputs: OutputsMetadata
    residuals: Hollow | None


class _Rules:
    """The staticmethods of the Function behind one ``custom_vjp``."""

    def __init__(
        self, name: str, symbolic_zeros: bool, optimize_remat: bool, known: KnownOutputs
    ) -> None:
        self.name, self.symbolic_zeros = name, symbolic_zeros
        self.optimize_remat, self.known = optimize_remat, known

    def forward(self, ctx: Any, call: LiftedCall, *tensors: Any) -> tuple[Any, ...]:
        needs = tuple(ctx.needs_input_grad[1:])
        bound = call.bound(tensors)
        draws = RandomDraws()
        if self.optimize_remat:
            output, kept = bound.run(), None
        else:
            output, residuals = self._forward(call, tensors, needs)
            self.known.compare(bound, tensors, output, f"fwd of {self.name} (custom_vjp)")
            kept = _taken_out((call.split(bound.arguments)[0], residuals))
            if kept is None:
                draws.refuse(f"fwd of {self.name} (custom_vjp)")
        leaves, spec = pytree.tree_flatten(output)
        hollow, saved = (None, ()) if kept is None else kept
        again = kept is None or any(needs[call.count :])
        ctx.set_materialize_grads(False)
        ctx.tensors = (saved, tensors if again else (), () if again else tensors[call.count :])
        structure = OutputStructure(spec)
        inputs = OutputsMetadata(tuple(map(TensorMetadata.of, tensors)))
        outputs = OutputsMetadata(tuple(map(TensorMetadata.of, leaves)))
        ctx.record = _Record(call, needs, inputs, structure, outputs, hollow)
        return (*apart(leaves, tensors), structure)

    def _forward(
        self,
        call: LiftedCall,
        tensors: tuple[Any, ...],
        needs: tuple[bool, ...],
        *,
        again: bool = False,
    ) -> tuple[Any, Any]:
        """Run the user's fwd."""
        bound = call.bound(tensors)
        bound = bound.discarding_writes(tensors) if again else bound
        arguments = bound.arguments
        if self.symbolic_zeros:
            arguments = call.with_perturbed(tensors, needs)
        result = bound.functions[1](*arguments)
        if not again:
            bound.keep_written()
        return pair(
            result,
            f"fwd of {self.name} (custom_vjp)",
            expected="output, residuals",
            remedy="return the output, and what bwd needs.",
        )

    def backward(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        record: _Record = ctx.record
        call, outputs = record.call, record.outputs
        saved, operands, lifted = ctx.tensors
        operands = call.without_writes(operands, record.needs)
        lifted = operands[call.count :] if operands else lifted
        if record.residuals is None:
            fixed = call.split(call.bound(operands).arguments)[0]
            residuals = self._forward(call, operands, record.needs, again=True)[1]
        else:
            fixed, residuals = record.residuals.filled(saved)
        given = cotangents[:-1]
        leaves = list(map(self._cotangent, given, outputs.leaves))
        tree = record.structure.rebuild(leaves)
        bound = call.functions(lifted)
        result = bound.functions[2](*fixed, residuals, tree)
        bound.keep_written()
        who = f"bwd of {self.name} (custom_vjp)"
        gradients = call.gradients(result, who, record.inputs.leaves[: call.count])
        needs = ctx.needs_input_grad[1 + call.count :]
        more: tuple[Any, ...] = (None,) * len(lifted)
        if operands and any(needs):
            more = FunctionOfLifted(call, operands, outputs, self.name).pulled(given, needs)
        return (None, *gradients, *more)

    def _cotangent(self, cotangent: Any, metadata: TensorMetadata | None) -> Any:
        if cotangent is not None:
            return cotangent
        if metadata is None:
            return SymbolicZero.like(0.0) if self.symbolic_zeros else 0.0
        if self.symbolic_zeros:
            return SymbolicZero(torch.Size(metadata.shape), metadata.dtype, metadata.device)
        return metadata.zeros()


def _taken_out(values: tuple[Any, Any]) -> tuple[Hollow, tuple[torch.Tensor, ...]] | None:
    """Residuals and their tensors; None if there are tensors in what can't be taken apart."""
    try:
        hollow, tensors, _ = hollowed(values, lambda tensor: True)
    except Sealed:
        return None
    return hollow, tensors
