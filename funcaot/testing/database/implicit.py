"""Implicit differentiation and linear algebra: the forward iterates, the backward solves."""

from __future__ import annotations

import torch

from funcaot.testing.database.reductions import Generated
from funcaot.testing.records import Limitation, Sample, opinfo
from funcaot.testing.samples import from_maker, unary


class NewtonSquareRoot(Generated):
    """The root of ``y * y - x`` by Newton steps, differentiated by the implicit theorem."""

    @staticmethod
    def forward(x):
        root = torch.ones_like(x)
        for _ in range(12):
            root = 0.5 * (root + x / root)
        return root

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (root,) = ctx.saved_tensors
        return grad / (2 * root)


class FixedPoint(Generated):
    """The equilibrium of ``z = tanh(weight @ z + x)``; backward solves the adjoint system."""

    @staticmethod
    def forward(weight, x):
        state = torch.zeros_like(x)
        for _ in range(80):
            state = torch.tanh(weight @ state + x)
        return state

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, grad):
        weight, state = ctx.saved_tensors
        slope = 1 - state * state
        system = (
            torch.eye(len(state), dtype=state.dtype, device=state.device)
            - slope.unsqueeze(-1) * weight
        )
        # Not torch.linalg.solve, whose forward mode over forward mode is wrong.
        adjoint = slope * LinearSolve.apply(system.mT, grad)
        return adjoint.unsqueeze(-1) * state, adjoint


class LinearSolve(Generated):
    """The solution of a linear system; the backward solves the transposed one."""

    @staticmethod
    def forward(matrix, right):
        return torch.linalg.solve(matrix, right)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, grad):
        matrix, solution = ctx.saved_tensors
        adjoint = LinearSolve.apply(matrix.mT, grad)
        return -adjoint.unsqueeze(-1) * solution, adjoint


class SymmetricEigenvalues(Generated):
    """Eigenvalues with the eigenvectors as a non-differentiable output."""

    @staticmethod
    def forward(matrix):
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad, _):
        (matrix,) = ctx.saved_tensors
        vectors = torch.linalg.eigh(matrix)[1]
        return vectors * grad.unsqueeze(-2) @ vectors.mT


class MatrixInverse(Generated):
    """Saves the result; the backward is two products with it."""

    @staticmethod
    def forward(matrix):
        return torch.linalg.inv(matrix)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        return -inverse.mT @ grad @ inverse.mT


class EulerAdjoint(Generated):
    """An ODE ``z' = -rate * z`` by Euler steps; the backward integrates the adjoint."""

    @staticmethod
    def forward(start, rate):
        state = start
        for _ in range(8):
            state = state - 0.125 * rate * state
        return state

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        start, rate = ctx.saved_tensors
        factor = 1 - 0.125 * rate
        adjoint_rate = -grad * start * factor**7
        return grad * factor**8, adjoint_rate


class RidgeArgmin(Generated):
    """The minimiser of a ridge regression, differentiated through its optimality condition."""

    @staticmethod
    def forward(features, targets, strength):
        size = features.shape[-1]
        system = features.mT @ features + strength * torch.eye(
            size, dtype=features.dtype, device=features.device
        )
        return torch.linalg.solve(system, features.mT @ targets)

    @staticmethod
    def setup_context(ctx, inputs, output):
        features, targets, strength = inputs
        ctx.save_for_backward(features, targets, strength, output)

    @staticmethod
    def backward(ctx, grad):
        features, targets, strength, solution = ctx.saved_tensors
        size = features.shape[-1]
        system = features.mT @ features + strength * torch.eye(
            size, dtype=features.dtype, device=features.device
        )
        adjoint = LinearSolve.apply(system, grad)
        residual = targets - features @ solution
        grad_features = torch.outer(residual, adjoint) - torch.outer(features @ adjoint, solution)
        return grad_features, features @ adjoint, -(adjoint * solution).sum()


def well_conditioned(make, size):
    """A matrix that is far from singular."""
    noise = make(size, size, low=-0.3, high=0.3, requires_grad=False)
    return (2 * torch.eye(size, dtype=make.dtype, device=make.device) + noise).requires_grad_()


def contraction_samples(make):
    """A weight small enough for the iteration to converge quickly."""
    yield Sample(make(2, 2, low=-0.3, high=0.3), (make(2),), name="square")
    yield Sample(make.transposed(2, 2, low=-0.3, high=0.3), (make(2),), name="transposed")


def system_samples(make):
    """A well-conditioned matrix and a right-hand side."""
    yield Sample(well_conditioned(make, 2), (make(2),), name="square")
    yield Sample(well_conditioned(make, 3).detach(), (make(3),), name="matrix_constant")


def symmetric_samples(make):
    """A symmetric matrix with separated eigenvalues, as a function of a free matrix."""
    spread = torch.diag(torch.arange(1, 4, dtype=make.dtype, device=make.device))
    yield Sample((spread + make(3, 3, low=-0.1, high=0.1, requires_grad=False)).requires_grad_())


def matrix_samples(make):
    """Invertible matrices."""
    yield Sample(well_conditioned(make, 2), name="square")
    yield Sample(well_conditioned(make, 3), name="larger")


def decay_samples(make):
    """A state and a rate."""
    yield Sample(make(3), (make(3, low=0.5, high=1.5),), name="vector")
    yield Sample(make(2, 2), (make(2, 2, low=0.5, high=1.5, requires_grad=False),), name="constant")


def ridge_samples(make):
    """Features, targets and a regularisation strength."""
    yield Sample(make(3, 2), (make(3), make(low=0.5, high=1.0)), name="overdetermined")


def fixed_point_reference(weight, x):
    """Eager autograd through the whole iteration."""
    state = torch.zeros_like(x)
    for _ in range(80):
        state = torch.tanh(weight @ state + x)
    return state


def euler_reference(start, rate):
    """Eager autograd through the steps."""
    return start * (1 - 0.125 * rate) ** 8


def ridge_reference(features, targets, strength):
    """Eager autograd through the solve."""
    size = features.shape[-1]
    gram = features.mT @ features + strength * torch.eye(
        size, dtype=features.dtype, device=features.device
    )
    return torch.linalg.inv(gram) @ (features.mT @ targets)


def eigenvalues(matrix):
    """The Function on the symmetric part; eigenvectors by their sign-free squares."""
    values, vectors = SymmetricEigenvalues.apply((matrix + matrix.mT) / 2)
    return values, vectors.square()


def eigenvalues_reference(matrix):
    """Torch's own derivative of the eigenvalues."""
    symmetric = (matrix + matrix.mT) / 2
    return torch.linalg.eigvalsh(symmetric), torch.linalg.eigh(symmetric)[1].detach().square()


INFOS = (
    opinfo(NewtonSquareRoot, unary(0.5, 2.0), ref=torch.sqrt, features=("implicit", "loop")),
    opinfo(
        FixedPoint,
        from_maker(contraction_samples),
        ref=fixed_point_reference,
        features=("implicit", "linear solve"),
    ),
    opinfo(
        LinearSolve,
        from_maker(system_samples),
        ref=lambda matrix, right: torch.linalg.inv(matrix) @ right,
        features=("implicit", "linear solve", "Function in backward"),
    ),
    opinfo(
        SymmetricEigenvalues,
        from_maker(symmetric_samples),
        op=eigenvalues,
        ref=eigenvalues_reference,
        true_derivative=False,
        limitations=tuple(
            Limitation(
                f"{outer}_of_hessian", "eigh's forward mode, differentiated, is nan in torch"
            )
            for outer in ("grad", "vjp", "autograd", "jacrev", "hessian", "batched_grads")
        ),
        features=("eigh", "non-differentiable output"),
    ),
    opinfo(MatrixInverse, from_maker(matrix_samples), ref=lambda m: torch.linalg.inv(m)),
    opinfo(
        EulerAdjoint,
        from_maker(decay_samples),
        ref=euler_reference,
        features=("implicit", "ODE adjoint"),
    ),
    opinfo(
        RidgeArgmin,
        from_maker(ridge_samples),
        ref=ridge_reference,
        features=("implicit", "argmin"),
    ),
)
