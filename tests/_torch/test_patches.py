"""The table of what is changed in torch: it is complete, and no value depends on it."""

import contextlib
import importlib
import pkgutil
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot
from funcaot import config
from funcaot._torch import patches
from funcaot._torch.inductor import value_patches
from funcaot._torch.patch import Target
from funcaot._torch.patch_table import PATCHES
from funcaot.base.scopes import SharedPatch
from funcaot.errors import FuncaotError, PatchWarning, UnsupportedError

sys.path.insert(0, str(Path(__file__).parent))
from generated_code import run_for_code

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {patch.name: patch for patch in PATCHES}
OF_INDUCTOR = [patch.name for patch in PATCHES if "inductor/" in patch.where]
REFUSED = [patch.name for patch in PATCHES if patch.without.startswith("nothing is compiled")]
# What makes a change, in the text of a file.
CHANGES = re.compile(
    r"replaced_here\(|SharedPatch\(|CodeSwap\(|inductor_config\.patch\("
    r"|lowerings\.update\(|lowerings\[\w+\] =|constraints\.update\(|setattr\(Cpp|holding\(reinplace"
)
# Where the means stand by which changes are made.
MEANS = {"funcaot/base/scopes.py", "funcaot/_torch/calls/code_swap.py"}
MEANS |= {"funcaot/_torch/dynamo/compile_lock.py", "funcaot/functions/interception.py"}
# What is changed in Python alone.
MEANS |= {"funcaot/base/garbage.py"}


def narrow(x):
    return x.to(torch.bfloat16).to(torch.float32) * 3


def overwritten(x):
    y = x.sin()
    y[torch.arange(11, -1, -1)] = y.clone()
    return y


def pooled(x):
    # A channels-last volume, whose indices come back in another layout.
    y = x.view(1, 4, 3, 1, 1).permute(0, 4, 1, 2, 3).expand(1, 2, 4, 3, 1)
    return F.max_pool3d(y, (2, 2, 1), 1).square().sum(0)


def sampled(x):
    grid = x.view(1, 2, 3, 2).clone()
    grid[0, 0, 0, 0] = float("nan")
    return F.grid_sample(x.view(1, 1, 3, 4), grid, align_corners=False)


def vectors(x):
    return torch.expm1(x * 1e-6)


def zeros(x):
    return (-x * 0.0) + torch.zeros_like(x)


def drawn(x):
    return x * torch.bernoulli(torch.full_like(x, 0.5), 0.5)


def loops(x):
    table = x.double().view(3, 4)
    return (table[torch.arange(6000) % 3].sin() * 2).mean(0)


def scalars(x):
    return x * x[0] ** 2.5


def products(x):
    return x.view(3, 4) @ x.view(4, 3)


PROGRAMS = {
    "casts": narrow,
    "apart": overwritten,
    "rigid kernels": pooled,
    "exact kernels": sampled,
    "exact vectors": vectors,
    "exact zeros": zeros,
    "eager bernoulli": drawn,
    "loops": loops,
    "scalars": scalars,
    "products": products,
}
OPTIONS = {
    "exact zeros": {"exact_special_values": True},
    "eager bernoulli": {"fallback_random": True},
}


def value_and_gradient(function, x):
    torch.manual_seed(0)
    leaf = x.clone().requires_grad_()
    value = function(leaf)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


def check(name):
    """A program on Inductor, compiled anew, is as in eager."""
    function, x = PROGRAMS.get(name, products), torch.linspace(0.1, 1.3, 12)
    with config.patch(**OPTIONS.get(name, {})):
        expected = value_and_gradient(function, x)
        compiled = funcaot.compile(function)
        with torch._inductor.config.patch(force_disable_caches=True):
            for _ in range(2):
                found = value_and_gradient(compiled, x)
                exact = {"rtol": 1e-7, "atol": 0.0} if name == "exact vectors" else {}
                assert_close(found, expected, equal_nan=True, **exact)
                signs = [made[0].signbit() for made in (found, expected)]
                assert torch.equal(*signs) or name not in OPTIONS


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(patches, "_warned", set())


def looks_different(monkeypatch, changed):
    right = Target.difference
    monkeypatch.setattr(
        Target,
        "difference",
        lambda target: "it looks different" if target is changed else right(target),
    )


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_this_torch_looks_as_it_did(patch):
    assert patch.difference() is None or not patch.concerns_this_torch
    assert (ROOT / patch.where).is_file()
    path, _, function = patch.test.partition("::")
    text = (ROOT / path).read_text()
    assert f"def {function.partition('[')[0]}" in text


def test_every_change_is_in_the_table():
    known = {patch.where for patch in PATCHES} | MEANS
    for path in sorted((ROOT / "funcaot").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if CHANGES.search(path.read_text()):
            assert name in known


@pytest.mark.parametrize(
    ("place", "takes", "has", "said"),
    [
        ("torch:no_such", None, (), "isn't there"),
        ("no_such_module:f", None, (), "isn't there"),
        ("torch.nn.functional:silu", ("input", "inplace", "more"), (), "takes input, inplace"),
        ("torch:Tensor", None, ("no_such",), "has no no_such"),
        ("torch:float32", (), (), "isn't a function"),
        ("torch.nn.functional:silu", ("input", "inplace"), ("__name__",), None),
    ],
)
def test_how_a_target_differs(place, takes, has, said):
    found = Target(place, takes, has).difference()
    assert found is None if said is None else said in found


def test_an_unknown_patch_is_refused():
    unknown = pytest.raises(FuncaotError, match="no patch 'nothing'")
    with config.patch(without_patches="loops, nothing"), unknown:
        patches.is_usable("loops")


@pytest.mark.parametrize("name", [name for name in REFUSED if BY_NAME[name].concerns_this_torch])
@pytest.mark.parametrize("how", ["switched off", "different"])
def test_what_nothing_stands_in_for_is_refused(name, how, monkeypatch):
    # Once these are there, the one has to step aside, and the other to record more.
    import torch._dynamo
    import torch.distributed.tensor

    compiled = funcaot.compile(torch.sin, backend="eager")
    options = {"without_patches": name} if how == "switched off" else {}
    if how == "different":
        looks_different(monkeypatch, BY_NAME[name].targets[0])
    with config.patch(**options), pytest.raises(UnsupportedError, match="nothing is compiled"):
        compiled(torch.ones(3))
    monkeypatch.undo()
    assert_close(compiled(torch.ones(3)), torch.ones(3).sin())


def test_transforms_without_their_patch():
    def loss(x):
        return x.sin().sum()

    x = torch.linspace(0, 1, 5)
    compiled = funcaot.compile(loss, backend="eager")
    with config.patch(without_patches="transform calls"):
        assert_close(torch.func.grad(compiled)(x), x.cos())
    assert not funcaot.report(compiled).transformed
    assert_close(torch.func.grad(compiled)(x), x.cos())
    assert len(funcaot.report(compiled).transformed) == 1


def test_torch_func_has_its_own_code_again():
    from torch._functorch import eager_transforms

    from funcaot.aot.runtime import cache, outermost

    compiled = funcaot.compile(torch.sin, backend="eager")
    changed = eager_transforms.grad_impl.__code__
    assert changed.co_name == "inner"
    funcaot.uninstall()
    assert eager_transforms.grad_impl.__code__ is changed  # It is still in use.
    assert cache.has_caches()
    outermost._calls().undo()
    assert eager_transforms.grad_impl.__code__.co_name == "grad_impl"
    assert_close(torch.func.grad(lambda x: compiled(x).sum())(torch.ones(2)), torch.ones(2).cos())
    outermost.follow_transforms()
    assert eager_transforms.grad_impl.__code__ is changed


def shared() -> list[tuple[str, SharedPatch]]:
    """Each patch that many use, by its module; of modules that this process has."""
    for module in pkgutil.walk_packages([str(ROOT / "funcaot" / "_torch")], "funcaot._torch."):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
    modules = [(name, module) for name, module in [*sys.modules.items()] if "funcaot" in name]
    things = [(name, thing) for name, module in modules for thing in vars(module).values()]
    return [(name, thing) for name, thing in things if isinstance(thing, SharedPatch)]


def attributes_of_torch() -> dict[tuple[str, ...], object]:
    """What each name in torch's modules is, and in their classes."""
    found: dict[tuple[str, ...], object] = {}
    for module in [*sys.modules]:
        if module.split(".")[0] not in ("torch", "math", "builtins"):
            continue
        for name, value in [*vars(sys.modules[module]).items()]:
            found[module, name] = value
            if type(value) is type and value.__module__ == module:
                found.update({(module, name, key): each for key, each in vars(value).items()})
    for place, value in found.items():
        if type(value) is staticmethod:
            found[place] = value.__func__
    return found


def test_a_patch_that_is_used_in_its_own_block_leaves_torch_as_it_was():
    importlib.import_module("torch.distributed.tensor")
    importlib.import_module("torch.nn.attention.flex_attention")
    for name, patch in shared():
        with patch.used():
            pass  # It may import what it concerns.
        before = attributes_of_torch()
        with patch.used():
            for _ in range(2):
                with patch.used():
                    pass
        after = attributes_of_torch()
        assert [place for place in before if after[place] is not before[place]] == [], name


def test_torch_func_is_left_with_the_last_compiled_function(monkeypatch):
    from torch._functorch import eager_transforms

    from funcaot.aot.runtime import outermost

    outermost.follow_transforms()
    monkeypatch.setattr(outermost, "has_caches", lambda: False)
    funcaot.uninstall()
    assert eager_transforms.grad_impl.__code__.co_name == "grad_impl"
    outermost.follow_transforms()


def test_a_warning_is_given_once(unwarned, monkeypatch):
    looks_different(monkeypatch, BY_NAME["loops"].targets[0])
    with pytest.warns(PatchWarning, match="it looks different. So such loops are as slow"):
        assert not patches.is_usable("loops")
    assert not patches.is_usable("loops")  # A warning would be an error here.


# Each compiles twice; the others are for a new torch.
SAMPLE = {("different", "casts"), ("different", "kernels together"), ("switched off", "loops")}
LONG = [pytest.mark.slow, pytest.mark.long]
CASES = [
    pytest.param(how, name, marks=pytest.mark.slow if (how, name) in SAMPLE else LONG)
    for name in [*PROGRAMS, "kernels together", "inputs checked once"]
    for how in ("switched off", "different")
]


@pytest.mark.parametrize(("how", "name"), CASES)
def test_values_on_inductor_never_depend_on_a_patch(how, name, unwarned, monkeypatch):
    if how == "switched off":
        with config.patch(without_patches=name):
            check(name)
        return
    looks_different(monkeypatch, BY_NAME[name].targets[0])
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", PatchWarning)
        check(name)
    said = [str(warning.message) for warning in given if warning.category is PatchWarning]
    assert sum(BY_NAME[name].without in text for text in said) == 1


def without(name, monkeypatch):
    """What Inductor does where a patch is left out, and nothing stands in for it."""
    monkeypatch.setattr(value_patches, "concerned", lambda module: ())
    return config.patch(without_patches=name)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["casts", "apart", "exact vectors", "exact zeros"])
def test_needed(name, monkeypatch):
    """It fails when torch has mended what the patch is for: then the patch can go."""
    check(name)
    with without(name, monkeypatch), pytest.raises(AssertionError):
        check(name)


def test_sizes_are_compared_twice_without_their_patch():
    x = torch.ones(3)
    counts = []
    for left_out in ("", "inputs checked once"):
        with config.patch(without_patches=left_out):
            _, code = run_for_code(lambda: funcaot.compile(torch.sin)(x))
        counts.append(code.count("assert_size_stride(primal"))
    assert counts == [0, 1]


def test_a_compiler_that_fails_is_asked_without_what_only_saves_time(monkeypatch, unwarned):
    def broken(*args):
        raise AttributeError("another Inductor")

    monkeypatch.setattr("funcaot._torch.inductor.scalars._is_spread", broken)
    with pytest.warns(PatchWarning, match="another Inductor"):
        check("scalars")
