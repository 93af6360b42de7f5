"""Transforms outside of a compiled function, and their nestings, against eager in float64."""

import pytest
import torch
from torch import func
from torch.func import functional_call, stack_module_state
from torch.testing import assert_close

import funcaot
from tests.aot.segment import orders_cases as cases

pytestmark = [
    pytest.mark.usefixtures("either_way"),
    pytest.mark.filterwarnings(
        r"ignore:.torch\.jit\.script(_method)?. is deprecated:DeprecationWarning"
    ),
    # torch.func.linearize warns about its own constants.
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def same(actual, expected):
    actual, expected = leaves(actual), leaves(expected)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert isinstance(ours, torch.Tensor) == isinstance(theirs, torch.Tensor)
        if isinstance(ours, torch.Tensor):
            assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
        else:
            assert ours == theirs


def check(function, program, *operands):
    """Compare ``program(compiled)(*operands)`` with eager; the second run compiles nothing."""
    expected = program(function)(*operands)
    compiled = cases.compiled(function)
    same(program(compiled)(*operands), expected)
    counted = funcaot.report(compiled)
    assert counted.graphs_compiled > 0
    same(program(compiled)(*operands), expected)
    again = funcaot.report(compiled)
    assert again.graphs_compiled == counted.graphs_compiled
    assert again.backward_traces == counted.backward_traces
    assert again.cache_misses == counted.cache_misses


def scalar(x, w):
    return ((x @ w).tanh() ** 2).sum()


def scalar_odd(x, w):
    return (cases.First.apply(x @ w) * w[0]).sum()


def vector(x, w):
    return (x @ w).tanh()


def pair(x, w):
    return (x @ w).tanh(), (x.exp(), w.sum())


def with_aux(x, w):
    y = x @ w
    return (y.tanh() ** 2).sum(), {"pre": y, "others": [w.sum()]}


def vector_aux(x, w):
    y = x @ w
    return y.tanh(), y


def vec():
    return torch.randn(4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)


def batch_vec(size=3):
    return torch.randn(size, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)


def vjp_program(f):
    def run(x, w, v):
        out, pull = func.vjp(f, x, w)
        return out, pull(v), pull(v * 2)

    return run


def linearize_program(f):
    def run(x, w):
        out, push = func.linearize(f, x, w)
        return out, push(x, w), push(w[0], w * 0.5)

    return run


SINGLE = {
    "grad": (scalar, lambda f: func.grad(f)),
    "grad_odd": (scalar_odd, lambda f: func.grad(f)),
    "grad_second": (scalar, lambda f: func.grad(f, argnums=1)),
    "grad_both": (scalar, lambda f: func.grad(f, argnums=(0, 1))),
    "grad_negative_argnum": (scalar, lambda f: func.grad(f, argnums=-1)),
    "grad_aux": (with_aux, lambda f: func.grad(f, argnums=(1, 0), has_aux=True)),
    "grad_and_value": (scalar, lambda f: func.grad_and_value(f)),
    "grad_and_value_aux": (with_aux, lambda f: func.grad_and_value(f, has_aux=True)),
    "jacrev": (vector, lambda f: func.jacrev(f)),
    "jacrev_both": (vector, lambda f: func.jacrev(f, argnums=(0, 1))),
    "jacrev_tree": (pair, lambda f: func.jacrev(f, argnums=(0, 1))),
    "jacrev_aux": (vector_aux, lambda f: func.jacrev(f, has_aux=True)),
    "jacrev_chunked": (vector, lambda f: func.jacrev(f, chunk_size=3)),
    "jacfwd": (vector, lambda f: func.jacfwd(f)),
    "jacfwd_both": (vector, lambda f: func.jacfwd(f, argnums=(0, 1))),
    "jacfwd_tree": (pair, lambda f: func.jacfwd(f)),
    "jacfwd_aux": (vector_aux, lambda f: func.jacfwd(f, has_aux=True)),
    "hessian": (scalar, lambda f: func.hessian(f)),
    "hessian_odd": (scalar_odd, lambda f: func.jacrev(func.jacrev(f))),
    "hessian_both": (scalar, lambda f: func.hessian(f, argnums=(0, 1))),
    "functionalize": (vector, lambda f: func.functionalize(f)),
    "linearize": (vector, linearize_program),
    "jvp": (vector, lambda f: lambda x, w: func.jvp(f, (x, w), (w[0], w * 2))),
    "jvp_partial": (vector, lambda f: lambda x, w: func.jvp(lambda x: f(x, w), (x,), (w[0],))),
    "jvp_aux": (
        vector_aux,
        lambda f: lambda x, w: func.jvp(f, (x, w), (w[0], w * 2), has_aux=True),
    ),
    "vjp_aux": (
        vector_aux,
        lambda f: (
            lambda x, w: (lambda out, pull, aux: (out, pull(x), aux))(
                *func.vjp(f, x, w, has_aux=True)
            )
        ),
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_one_transform(name):
    function, program = SINGLE[name]
    check(function, program, *vec())


def test_vjp():
    x, w = vec()
    check(vector, vjp_program, x, w, torch.randn(4, dtype=torch.float64))


VMAPS = {
    "in_axis_0": ({"in_dims": (0, None)}, (3, 4), (4, 4)),
    "in_axis_1": ({"in_dims": (1, None)}, (4, 3), (4, 4)),
    "negative": ({"in_dims": (-1, None)}, (4, 3), (4, 4)),
    "weights_only": ({"in_dims": (None, 1)}, (4,), (4, 3, 4)),
    "both": ({"in_dims": (0, 2)}, (3, 4), (4, 4, 3)),
    "out_dims": ({"in_dims": (0, None), "out_dims": 1}, (3, 4), (4, 4)),
    "chunked": ({"in_dims": (0, None), "chunk_size": 2}, (5, 4), (4, 4)),
}


@pytest.mark.parametrize("name", VMAPS)
@pytest.mark.parametrize("function", [vector, cases.odd_rules], ids=["vector", "odd"])
def test_vmap(name, function):
    options, x_shape, w_shape = VMAPS[name]
    x = torch.randn(x_shape, dtype=torch.float64)
    w = torch.randn(w_shape, dtype=torch.float64)
    check(function, lambda f: func.vmap(f, **options), x, w)


def test_vmap_of_trees_with_out_dims():
    x, w = batch_vec()
    program = lambda f: func.vmap(f, in_dims=(0, None), out_dims=(1, (0, None)))  # noqa: E731
    check(lambda x, w: ((x @ w).tanh(), (x.exp(), w.sum())), program, x, w)


def test_an_unbatched_output_stays_unbatched():
    """vmap leaves alone what doesn't depend on the batch."""
    compiled = cases.compiled(lambda x, w: (x @ w, w.sin()))
    x, w = batch_vec()
    seen = []

    def inspect(x):
        y, z = compiled(x, w)
        seen.append([torch._C._functorch.is_batchedtensor(t) for t in (y, z)])
        return y

    func.vmap(inspect)(x)
    assert seen == [[True, False]]


def test_unbatched_residuals_stay_unbatched(by_level):
    def function(x, w):
        return (x * w.sin().exp()).sum()

    compiled = cases.compiled(function)
    x, w = batch_vec()
    func.vmap(func.grad(compiled), in_dims=(0, None))(x, w)
    shapes = [
        tuple(node.meta["val"].shape)
        for entry in funcaot.report(compiled).entries
        for graph in entry.graphs
        for derived in graph.derived
        for node in derived.graph.graph.nodes
        if node.op == "call_function" and "exp" in str(node.target)
    ]
    assert shapes
    assert set(shapes) == {(4, 4)}


TRANSFORMS = {
    "vmap": lambda f: func.vmap(f, in_dims=(0, None)),
    "grad": lambda f: func.grad(lambda x, w: f(x, w).sum()),
    "vjp": lambda f: lambda x, w: func.vjp(lambda x: f(x, w), x)[1](torch.ones_like(f(x, w)))[0],
    "jvp": lambda f: lambda x, w: func.jvp(lambda x: f(x, w), (x,), (x.cos(),))[1],
    "jacrev": lambda f: func.jacrev(f),
    "jacfwd": lambda f: func.jacfwd(f),
    "functionalize": lambda f: func.functionalize(f),
}
PAIRS = [(a, b) for a in TRANSFORMS for b in TRANSFORMS]
TRIPLES = [(a, b, c) for a, b in PAIRS for c in TRANSFORMS]


def nested(names, function):
    for name in reversed(names):
        function = TRANSFORMS[name](function)
    return function


def shapes_for(names):
    size = 1 + names.count("vmap")
    return torch.randn(*(2 + i for i in range(size - 1)), 3, dtype=torch.float64)


def small(x, w):
    return (x * w).sin() + x**2


def small_odd(x, w):
    return cases.First.apply(x) * w + cases.KeptResult.apply(x)


def eager_can(names):
    """Functionalize doesn't nest in eager torch."""
    return names.count("functionalize") <= 1


PAIRS = [names for names in PAIRS if eager_can(names)]
TRIPLES = [names for names in TRIPLES if eager_can(names)]


@pytest.mark.parametrize("names", PAIRS, ids="-of-".join)
@pytest.mark.parametrize("function", [small, small_odd], ids=["plain", "odd"])
def test_pairs(names, function):
    x, w = shapes_for(names), torch.randn(3, dtype=torch.float64)
    with funcaot.install():
        check(function, lambda f: nested(names, f), x, w)


@pytest.mark.parametrize("names", TRIPLES[::5], ids="-of-".join)
def test_triples(names):
    x, w = shapes_for(names), torch.randn(3, dtype=torch.float64)
    check(small, lambda f: nested(names, f), x, w)


@pytest.mark.slow
@pytest.mark.parametrize("names", TRIPLES, ids="-of-".join)
def test_every_triple(names):
    x, w = shapes_for(names), torch.randn(3, dtype=torch.float64)
    with funcaot.install():
        check(small_odd, lambda f: nested(names, f), x, w)


def test_vmap_over_autograd_grad_of_a_compiled_output():
    x, w = cases.operands()
    basis = torch.randn(5, 3, 4, dtype=torch.float64)

    def program(f):
        def run(x, w):
            y = f(x, w)

            def pull(v):
                return torch.autograd.grad(y, (x, w), v, retain_graph=True)

            return func.vmap(pull)(basis)

        return run

    check(cases.odd_rules, program, x, w)


def test_vmap_over_autograd_grad_with_create_graph():
    x, w = cases.operands()
    basis = torch.randn(5, 3, 4, dtype=torch.float64)

    def program(f):
        def run(x, w):
            y = f(x, w)
            (rows,) = func.vmap(
                lambda v: torch.autograd.grad(y, x, v, retain_graph=True, create_graph=True)
            )(basis)
            return rows, torch.autograd.grad((rows**2).sum(), (x, w))

        return run

    check(cases.mlp_like, program, x, w)


@pytest.mark.parametrize("create_graph", [False, True])
def test_is_grads_batched(create_graph):
    x, w = cases.operands()
    basis = torch.randn(5, 3, 4, dtype=torch.float64)

    def program(f):
        def run(x, w):
            rows = torch.autograd.grad(
                f(x, w), (x, w), basis, is_grads_batched=True, create_graph=create_graph
            )
            if not create_graph:
                return rows
            return rows, torch.autograd.grad(sum((r**2).sum() for r in rows), (x, w))

        return run

    check(cases.mlp_like, program, x, w)


def test_vectorized_jacobian_of_autograd_functional():
    x, _ = vec()

    def function(x):
        return x.sin() * x.sum()

    def program(f):
        return lambda x: (
            torch.autograd.functional.jacobian(f, x, vectorize=True),
            torch.autograd.functional.hessian(lambda x: f(x).sum(), x, vectorize=True),
        )

    check(function, program, x)


def test_dual_numbers():
    x, w = vec()

    def program(f):
        def run(x, w):
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(x, w[0])
                return torch.autograd.forward_ad.unpack_dual(f(dual, w))

        return run

    check(vector, program, x, w)


def test_dual_numbers_of_both_operands_then_backward():
    x, w = cases.operands()
    tangent = torch.randn(3, 4, dtype=torch.float64)

    def program(f):
        def run(x, w):
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(x, tangent)
                primal, pushed = torch.autograd.forward_ad.unpack_dual(f(dual, w * 2))
                return primal, pushed, torch.autograd.grad(pushed.sum(), (x, w))

        return run

    check(vector, program, x, w)


def test_autograd_outside_of_func():
    x, w = cases.operands()

    def program(f):
        def run(x, w):
            y = func.vmap(func.grad(lambda x, w: f(x, w).sum()), in_dims=(0, None))(x[:, None], w)
            return y, torch.autograd.grad((y**2).sum(), (x, w))

        return run

    check(cases.mlp_like, program, x, w)


def test_ensemble_by_stack_module_state():
    nets = [cases.Net() for _ in range(3)]
    params, buffers = stack_module_state(nets)
    base = cases.Net()
    x = torch.randn(6, 4, dtype=torch.float64)

    def call(params, buffers, x):
        return functional_call(base, (params, buffers), (x,))

    check(call, lambda f: func.vmap(f, in_dims=(0, 0, None)), params, buffers, x)
    per_model = torch.randn(3, 6, 4, dtype=torch.float64)
    check(call, lambda f: func.vmap(f), params, buffers, per_model)


def test_per_sample_gradients_of_a_compiled_module():
    net = cases.Net()
    compiled = funcaot.compile(net, backend="eager")
    params = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randn(6, 4, dtype=torch.float64)
    y = torch.randint(0, 2, (6,))

    def per_sample(model):
        def loss(params, x, y):
            out = functional_call(model, params, (x[None],))
            return torch.nn.functional.cross_entropy(out, y[None])

        return func.vmap(func.grad(loss), in_dims=(None, 0, 0))(params, x, y)

    expected = per_sample(net)
    same(per_sample(compiled), expected)
    counted = funcaot.report(compiled)
    assert counted.graphs_compiled > 0
    same(per_sample(compiled), expected)
    assert funcaot.report(compiled).graphs_compiled == counted.graphs_compiled


def test_per_sample_gradients_of_a_compiled_loss():
    net = cases.Net()
    params = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randn(6, 4, dtype=torch.float64)
    y = torch.randint(0, 2, (6,))

    def loss(params, x, y):
        out = functional_call(net, params, (x[None],))
        return torch.nn.functional.cross_entropy(out, y[None])

    check(loss, lambda f: func.vmap(func.grad(f), in_dims=(None, 0, 0)), params, x, y)


def test_transforms_of_an_in_place_function():
    x, w = cases.operands(requires_grad=False)
    check(cases.in_place, lambda f: func.jacrev(f), x, w)
    check(
        cases.in_place,
        lambda f: func.vmap(func.grad(lambda x, w: f(x, w).sum()), in_dims=(0, None)),
        x[:, None],
        w,
    )


CLOSURES = {
    "grad_in_vmap": lambda c: (
        lambda x, w: func.vmap(lambda a: func.grad(lambda y: c(a, y).sum())(w))(x)
    ),
    "own_level": lambda c: (
        lambda x, w: func.vmap(lambda a: func.grad(lambda y: (c(a, w) * y).sum())(a))(x)
    ),
    "same_twice": lambda c: (
        lambda x, w: func.vmap(lambda a: func.grad(lambda y: c(y, w * a.sum()).sum())(a))(x)
    ),
    "grad_in_grad": lambda c: (
        lambda x, w: func.grad(lambda a: func.grad(lambda y: (c(a * y, w) ** 2).sum())(a).sum())(x)
    ),
    "jvp_in_grad": lambda c: (
        lambda x, w: func.grad(lambda a: func.jvp(lambda y: c(a * y, w), (a,), (x,))[1].sum())(x)
    ),
    "grad_in_jvp": lambda c: (
        lambda x, w: func.jvp(lambda a: func.grad(lambda y: c(a * y, w).sum())(a), (x,), (x.cos(),))
    ),
    "vmap_in_vmap": lambda c: (
        lambda x, w: func.vmap(lambda a: func.vmap(lambda row: c(a * row, w))(x))(x)
    ),
    "jacrev_in_vmap_in_grad": lambda c: (
        lambda x, w: func.grad(
            lambda s: func.vmap(lambda a: func.jacrev(lambda y: c(a * s, w * y.sum()))(a))(x).sum()
        )(x[0])
    ),
}


@pytest.mark.parametrize("name", CLOSURES)
@pytest.mark.parametrize("function", [vector, cases.odd_rules], ids=["vector", "odd"])
def test_closures_over_tensors_of_outer_levels(name, function):
    with funcaot.install():
        check(function, CLOSURES[name], *batch_vec())


def test_the_compiled_function_closes_over_a_tensor_of_an_outer_level():
    x, w = batch_vec()

    def program(make):
        def per_row(a):
            inner = make(lambda y: (a * y).sin().sum())
            return func.grad(inner)(w[0])

        return func.vmap(per_row)(x)

    same(program(cases.compiled), program(lambda f: f))
