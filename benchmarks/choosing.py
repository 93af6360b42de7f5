"""What torch.func, torch.compile, jax.jit and funcaot make of the same small programs.

Every cell of the table on the docs page "funcaot, torch.compile, JAX or torch.func?" is run here
and compared with eager PyTorch. Run ``python benchmarks/choosing.py``; it writes the page's table.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from common import RESULTS, environment_of, parser_of, progress, write_json
from torch import Tensor

import funcaot

COLUMNS = ("torch.func", "torch.compile", "jax.jit", "funcaot")
BEGIN, END = "<!-- measured -->", "<!-- end -->"
X = [[0.3, -0.2, 0.5], [1.0, 0.4, -0.7]]


class Counting:
    """A compiler by name, and how many graphs or programs it made."""

    def __init__(self, name: str) -> None:
        self.name, self.graphs = name, 0
        self._compiled: list[Any] = []

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.name == "torch.func":
            return function
        if self.name == "torch.compile":
            from torch._dynamo.backends.debugging import aot_eager

            def backend(graph: Any, inputs: Any) -> Any:
                self.graphs += 1
                return aot_eager(graph, inputs)

            return torch.compile(function, backend=backend)
        made = funcaot.compile(function, backend="eager")
        self._compiled.append(made)
        return made

    @property
    def programs(self) -> int:
        """What was compiled so far."""
        for made in self._compiled:
            report = funcaot.report(made)
            inside = sum(len(each.entries) for each in report.transformed)
            self.graphs = max(self.graphs, len(report.entries) + inside)
        return self.graphs


class Cube(torch.autograd.Function):
    """A rule of its own: a third of the right one, so that it shows who uses it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0] ** 2


def energy(x: Any) -> Any:
    return (x**4).sum()


def leaf(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


def first(compiler: Counting) -> Any:
    x = leaf(torch.tensor(X))
    compiler(energy)(x).backward()
    return x.grad


def double(compiler: Counting) -> Any:
    x = leaf(torch.tensor(X))
    (force,) = torch.autograd.grad(compiler(energy)(x), x, create_graph=True)
    return torch.autograd.grad((force**2).sum(), x)[0]


def per_sample(compiler: Counting) -> Any:
    return torch.func.vmap(torch.func.grad(compiler(energy)))(torch.tensor(X))


def hessian(compiler: Counting) -> Any:
    return torch.func.hessian(compiler(energy))(torch.tensor(X[0]))


def own_rule(compiler: Counting) -> Any:
    """The gradient per sample of a custom rule."""
    cube = compiler(lambda x: apply(compiler, x).sum())
    return torch.func.vmap(torch.func.grad(cube))(torch.tensor(X))


def own_rule_forward(compiler: Counting) -> Any:
    cube = compiler(lambda x: apply(compiler, x))
    x = torch.tensor(X)
    return torch.func.jvp(cube, (x,), (torch.ones_like(x),))[1]


def apply(compiler: Counting, x: Tensor) -> Tensor:
    if compiler.name == "funcaot":
        return funcaot.custom_function_call(Cube, x)
    return Cube.apply(x)


def writes(compiler: Counting) -> Any:
    buffer = torch.tensor(X)
    compiler(lambda x: x.mul_(2).sum())(buffer)
    return buffer


def branch(compiler: Counting) -> Any:
    function = compiler(lambda x: x * 2 if x.sum() > 0 else x * 0.1)
    return torch.stack([function(torch.tensor(X)), function(-torch.tensor(X))])


SCALE = torch.tensor(2.0)


def reads_a_global(compiler: Counting) -> Any:
    global SCALE
    function = compiler(lambda x: x * SCALE)
    results = []
    for value in (2.0, 3.0):
        SCALE = torch.tensor(value)
        results.append(function(torch.tensor(X)))
    return torch.stack(results)


def sizes(compiler: Counting) -> Any:
    function = compiler(lambda x: x.sin().sum())
    return torch.stack([function(torch.ones(size)) for size in (2, 3, 5, 7, 11)])


def whole_step(compiler: Counting) -> Any:
    weight = torch.nn.Parameter(torch.tensor(X))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        loss = ((x * weight) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = compiler(step)
    return torch.stack([compiled(torch.ones(2, 3)) for _ in range(4)])


class ByLayout(Cube):
    """Its backward has a branch for gradients that aren't contiguous."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (2 if gradient.is_contiguous() else 3)


def layouts(compiler: Counting) -> Any:
    function = compiler(lambda x: ByLayout.apply(x))
    found = []
    for tangent in (torch.ones(2, 3), torch.ones(3, 2).t()):
        x = leaf(torch.tensor(X))
        found += torch.autograd.grad(function(x), x, tangent)
    return torch.stack(found)


PROGRAMS: dict[str, Callable[[Counting], Any]] = {
    "gradient of a compiled function": first,
    "double backward through it": double,
    "gradients per sample: `vmap(grad(compiled))`": per_sample,
    "`hessian(compiled)`": hessian,
    "a custom rule, per sample": own_rule,
    "a custom reverse rule in forward mode": own_rule_forward,
    "a backward that depends on the gradient's layout": layouts,
    "a write to an argument": writes,
    "a branch on a value": branch,
    "a global tensor that is replaced": reads_a_global,
    "five sizes of an argument": sizes,
    "forward, backward and optimizer in one function": whole_step,
}

# Where eager PyTorch has no answer, what the rule says.
EXPECTED = {
    "a custom rule, per sample": torch.tensor(X) ** 2,
    "a custom reverse rule in forward mode": torch.tensor(X) ** 2,
}


def innermost(error: BaseException) -> str:
    while (cause := error.__cause__ or getattr(error, "inner_exception", None)) is not None:
        error = cause
    return type(error).__name__


def verdict(run: Callable[[], Any], expected: Any, programs: Callable[[], int | None]) -> str:
    """In a few words what came out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.as_tensor(run())
    except Exception as error:  # noqa: BLE001 (whatever it raises is the result)
        return f"raises {innermost(error)}"
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-6):
        return "**wrong**"
    count = programs()
    if count is None:
        return "right"
    return "right, not compiled" if count == 0 else f"right, {count} program{'s' * (count != 1)}"


def measured() -> dict[str, dict[str, str]]:
    """Every program by every way."""
    try:
        import choosing_jax

        in_jax = choosing_jax.PROGRAMS
    except ImportError:
        in_jax = {}
        progress("jax isn't installed: its column stays empty")
    table: dict[str, dict[str, str]] = {}
    for title, program in PROGRAMS.items():
        progress(title)
        expected = EXPECTED[title] if title in EXPECTED else program(Eagerly("eager"))
        row = {}
        for name in ("torch.func", "torch.compile", "funcaot"):
            torch.compiler.reset()
            compiler = Counting(name)
            count = (lambda: None) if name == "torch.func" else (lambda c=compiler: c.programs)
            row[name] = verdict(lambda p=program, c=compiler: p(c), expected, count)
        if title in in_jax:
            run, count = in_jax[title]
            row["jax.jit"] = verdict(run, expected, count)
        table[title] = row
    return table


class Eagerly(Counting):
    """The oracle: no compiler."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


def table_of(content: dict[str, Any]) -> list[str]:
    """The table of the page."""
    rows = {
        title: {
            who: told.partition(" ")[0] if told.startswith("raises") else told
            for who, told in row.items()
        }
        for title, row in content["programs"].items()
    }
    lines = [f"| program | {' | '.join(f'`{c}`' for c in COLUMNS)} |", "|" + "---|" * 5]
    for title, row in rows.items():
        lines.append(f"| {title} | {' | '.join(row.get(column, '') for column in COLUMNS)} |")
    versions = content["environment"]["versions"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [*lines, "", f"Measured by `benchmarks/choosing.py` with {told}."]


def main() -> None:
    parser_of(__doc__).parse_args()
    content = {"environment": environment_of(), "programs": measured()}
    write_json("choosing", content)
    page = RESULTS.parent / "choosing.md"
    table = "\n".join(table_of(content))
    if page.exists():
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")
    print(table, file=sys.stdout)


if __name__ == "__main__":
    main()
