"""Random programs of operators and ways to differentiate them, against the same written out."""

import pytest
import torch
import torch.nn.functional as F

import funcaot
from tests.derivatives.compositions.programs import (
    WAYS,
    applies,
    asked,
    difference,
    expected,
    operands,
    program,
)

pytestmark = [pytest.mark.filterwarnings("ignore:.*:UserWarning")]
# What torch has no rule for, whoever calls it, and saved tensor hooks under its transforms.
OF_TORCH = ("Batching rule not implemented", "vmap: ", "saved tensor hooks", "INTERNAL ASSERT",
            "doesn't match the broadcast shape", "forward gradient", "forward AD")  # fmt: skip


def check(run, way, made, seed, sizes=(2,)):
    for place, size in enumerate(sizes):
        values = operands(seed + place, size)
        assert difference(run(values), expected(way, made, values)) < 1e-8, (place, str(made))


@pytest.mark.parametrize(("seed", "way"), [
    (7, "hessian"),  # batch_norm: statistics that move, at a level of vmap
    (95, "hessian"),  # layer_norm
    (62, "hessian"),  # a tangent of a batch for an operand that is of none
    (71, "third"),  # cdist of many rows
    (3, "double"),
    (40, "forward_over_reverse"),
])  # fmt: skip
def test_programs_that_nobody_compiles(seed, way):
    made = program(seed)
    with funcaot.install():
        check(lambda values: asked(way, made, values), way, made, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(240))
def test_many_programs_that_nobody_compiles(seed):
    made = program(seed)
    for way in WAYS:
        if not applies(way, made) or ("eigvalsh" in str(made) and way == "third"):
            continue  # the reference is NaN there
        try:
            with funcaot.install():
                check(lambda values, way=way: asked(way, made, values), way, made, seed)
        except (RuntimeError, NotImplementedError) as error:
            if not any(text in str(error) for text in OF_TORCH):
                raise


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_compiled_programs(seed):
    """On Inductor: two calls with other values, and one with other sizes."""
    made, names = program(seed, most=2), list(WAYS)
    for way in (names[(seed * 5 + step * 7) % len(names)] for step in range(2)):
        if not applies(way, made) or way == "functional_hessian":
            continue
        compiled = funcaot.compile(lambda h, p, way=way: WAYS[way](made, (h, p)))

        def run(values, compiled=compiled):
            torch.manual_seed(5)
            return compiled(*values)

        try:
            check(run, way, made, seed, (2, 2, 3))
        except (RuntimeError, NotImplementedError) as error:
            if not any(text in str(error) for text in OF_TORCH):
                raise


@pytest.mark.slow
def test_memory_whose_part_is_written_to_is_kept():
    """Inductor gave all of a ``cat``'s to another buffer while a part was still to be read."""
    made, values = program(131, most=2), operands(131)
    compiled = funcaot.compile(lambda h, p: WAYS["hessian"](made, (h, p)))
    assert difference(compiled(*values), expected("hessian", made, values)) < 1e-8


def random(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "way", [torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))]
)
def test_a_loss_that_checks_its_variances_inside_of_a_compiled_derivative(way):
    def loss(x):
        return F.gaussian_nll_loss(x, x * 2, x)

    compiled, x = funcaot.compile(way(loss), backend="eager"), random(3).abs() + 0.5
    for scale in (1, 2):
        torch.testing.assert_close(compiled(x * scale), way(loss)(x * scale))
    with pytest.raises(ValueError, match="negative"):
        compiled(-x)


@pytest.mark.parametrize("ends", [lambda a: (a, 2.0), lambda a: (1, a), lambda a: (a, a * 2)])
def test_a_batch_of_lines_between_ends(ends):
    def line(a):
        return torch.linspace(*ends(a), 4)

    x, compiled = random(3), funcaot.compile(line, backend="eager")
    torch.testing.assert_close(torch.func.vmap(compiled)(x), torch.func.vmap(line)(x))


@pytest.mark.parametrize("how", ["install", "compiled"])
@pytest.mark.parametrize("axes", [1, 2])
def test_histograms_of_a_batch(axes, how):
    def count(x, weight):
        found = torch.histogramdd(x[:, :axes], [2, 3][:axes], weight=weight.square(), density=True)
        return torch.cat([found.hist.reshape(-1), *found.bin_edges])

    def gradient(x, weight):
        return torch.func.grad(lambda *v: count(*v).sin().sum(), argnums=(0, 1))(x, weight)

    x, weight = random(3, 7, 2), random(3, 7)
    with funcaot.install():
        wanted = [torch.stack(t) for t in zip(*map(gradient, x, weight), strict=True)]
    batch = torch.func.vmap(gradient)
    if how == "compiled":
        found = funcaot.compile(batch, backend="eager")(x, weight)
    else:
        with funcaot.install():
            found = batch(x, weight)
            counts = torch.func.vmap(count)(x, weight)
        assert torch.equal(counts, torch.stack([*map(count, x, weight)]))
    torch.testing.assert_close(found, tuple(wanted))
