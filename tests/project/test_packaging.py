"""What a user installs: metadata, the type marker, nothing that isn't the package; and it runs."""

import ast
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import funcaot
from scripts.readme_of_package import readme_for_index

ROOT = Path(__file__).resolve().parents[2]
# Run where nothing of the repository is at hand.
PROGRAM = """
import torch, funcaot
f = funcaot.compile(lambda x: (x ** 4).sum(), backend="eager")
x = torch.tensor([1.0, 2.0], requires_grad=True)
(force,) = torch.autograd.grad(f(x), x, create_graph=True)
force.sum().backward()
print(funcaot.__version__, funcaot.__file__, x.grad.tolist())
"""


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_torch_range_is_the_supported_one(project):
    assert "torch>=2.13,<2.16" in project["dependencies"]
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "BSD-3-Clause"


def test_the_constraints_pin_torch_once():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.13.0"]


def test_the_installed_version_is_the_packages():
    assert importlib.metadata.version("funcaot") == funcaot.__version__


def test_the_version_is_a_public_attribute():
    assert "__version__" in vars(funcaot)
    assert funcaot.__version__.count(".") >= 2


def test_links_of_the_readme_lead_somewhere_off_the_repository():
    text = (ROOT / "README.md").read_text()
    plain = readme_for_index(text, None)
    assert "](docs/" not in plain
    assert "](CONTRIBUTING.md)" not in plain
    assert "Limits (`docs/limits.md`)" in plain
    linked = readme_for_index(text, "https://example.org/funcaot/")
    assert "[Limits](https://example.org/funcaot/blob/main/docs/limits.md)" in linked
    for shown in (plain, linked):
        assert "[#91469](https://github.com/pytorch/pytorch/issues/91469)" in shown
    assert readme_for_index("![a](b.svg) [c](#d)", None) == "![a](b.svg) [c](#d)"


# --- wheel and sdist ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, and the sdist, built as pip builds them."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "funcaot/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.split("/")[0].split("-")[0] for name in names}
    assert tops == {"funcaot", "_funcaot_pytest"}


@pytest.mark.slow
def test_the_wheel_says_what_it_is(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith("METADATA")]
        metadata = opened.read(name).decode()
    assert f"Version: {funcaot.__version__}\n" in metadata
    assert "Description-Content-Type: text/markdown" in metadata
    assert "](docs/" not in metadata
    assert "# funcaot" in metadata


@pytest.mark.slow
def test_the_sdist_holds_what_builds_and_tests_it(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for needed in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "SECURITY.md",
        "CITATION.cff",
        "Makefile",
        "constraints.txt",
        "scripts/readme_of_package.py",
        "docs/index.md",
        "docs/situations.toml",
        "tests/project/test_packaging.py",
        "_funcaot_pytest/__init__.py",
    ):
        assert needed in names
    assert not any(name.startswith((".venv", "build/", "docs/_build")) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_it_is_installed_and_runs(built, kind, tmp_path):
    """With pip, into an environment of its own that has torch and the rest by a path."""
    (package,) = built.glob(f"*.{kind}")
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    python = tmp_path / "env" / "bin" / "python"
    quiet = {"check": True, "capture_output": True, "text": True, "cwd": tmp_path}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], **quiet)
    folder = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], **quiet
    ).stdout.strip()
    # A path in there isn't searched for paths in turn, so the repository stays out of it.
    others = [path for path in sys.path if path.endswith("site-packages")]
    Path(folder, "others.pth").write_text("\n".join(others))
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    install += ["--force-reinstall", "--no-index", "--disable-pip-version-check", str(package)]
    subprocess.run(install, env=environment, **quiet)
    printed = subprocess.run([python, "-c", PROGRAM], env=environment, **quiet).stdout
    assert printed.startswith(f"{funcaot.__version__} {folder}")
    assert printed.rstrip().endswith("[12.0, 48.0]")
    command = [python, "-m", "funcaot", "check", "--help"]
    assert "usage" in subprocess.run(command, env=environment, **quiet).stdout
    plugins = [python, "-m", "pytest", "--trace-config", "--collect-only", "-q", str(tmp_path)]
    shown = subprocess.run(plugins, env=environment, capture_output=True, text=True, check=False)
    assert "funcaot" in shown.stdout


# --- what importing costs ----------------------------------------------------------------------

IMPORTED = """
import resource, sys, torch
def seconds():
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
before, modules = seconds(), set(sys.modules)
import funcaot
print(seconds() - before)
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - modules}))
funcaot.compile
print("torch._dynamo" in sys.modules, "torch._inductor.compile_fx" in sys.modules)
apart = ("funcaot.public", "funcaot.report", "funcaot.functions.custom_vjp", "funcaot.exported")
print(*[name for name in apart if name in sys.modules])
"""


WRITES_FUNCTIONS = """
import resource, sys, torch
def seconds():
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
before = seconds()
import funcaot
class Square(funcaot.Function):
    generate_vmap_rule = generate_jvp_rule = True
    forward = staticmethod(lambda x: x * x)
    setup_context = staticmethod(lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    backward = staticmethod(lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0])
taken = seconds() - before
loaded = [name in sys.modules for name in ("sympy", "funcaot.aot", "torch._dynamo")]
@funcaot.custom_vjp
def cube(x):
    return x**3
cube.defvjp(lambda x: (x**3, x), lambda x, gradient: (3 * x**2 * gradient,))
x = torch.tensor([1.0, 2.0])
call, func = funcaot.custom_function_call, torch.func
for f in (Square.apply, cube, funcaot.checkpoint(cube), lambda x: call(Square, x)):
    print(func.vmap(func.grad(f))(x).tolist(), func.jvp(f, (x,), (x,))[1].tolist(), end=" ")
print(func.functionalize(Square.apply)(x).tolist())
print(taken)
print(*loaded, "funcaot.aot" in sys.modules)
y = x.clone().requires_grad_()
funcaot.compile(Square.apply, backend="eager")(y).sum().backward()
print(y.grad.tolist())
"""


def nested_blocks(node, depth=0):
    """How many blocks are nested at most: loops, tries, and each manager of a with statement."""
    if isinstance(node, ast.With | ast.AsyncWith):
        depth += len(node.items)
    elif isinstance(node, ast.For | ast.While | ast.Try | ast.AsyncFor):
        depth += 1
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        depth = 0
    return max([depth, *(nested_blocks(child, depth) for child in ast.iter_child_nodes(node))])


def test_no_function_nests_more_blocks_than_every_python_compiles():
    """Those of 3.12.0 and 3.12.1 crash at 19 managers, the others refuse 21 blocks."""
    deepest = {
        str(path.relative_to(ROOT)): nested_blocks(ast.parse(path.read_text()))
        for path in (ROOT / "funcaot").rglob("*.py")
    }
    assert {name: depth for name, depth in deepest.items() if depth > 17} == {}
    many = "\n".join(["with " + ", ".join(["a"] * 12) + ":", *["  with a, b, c:", "    pass"]])
    assert nested_blocks(ast.parse(many)) == 15


def test_functions_need_no_pipeline():
    """Neither the compiler's rooms nor SymPy are imported, and every rule is there."""
    command = [sys.executable, "-c", WRITES_FUNCTIONS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    derivatives, taken, found, compiled = run.stdout.splitlines()
    square, cubed = "[2.0, 4.0] [2.0, 8.0]", "[3.0, 12.0] [3.0, 24.0]"
    assert derivatives == f"{square} {cubed} {cubed} {square} [1.0, 4.0]"
    assert found == "False False False False"
    assert compiled == "[2.0, 4.0]"
    if not sys.dont_write_bytecode:  # else the source is compiled each time
        assert float(taken) < 0.15


def test_sympy_is_imported_when_a_size_is_first_left_open():
    program = (
        "import sys, torch, funcaot\n"
        "f = funcaot.compile(lambda x: x * 2, backend='eager')\n"
        "print('sympy' in sys.modules, 'torch.fx.experimental.symbolic_shapes' in sys.modules)\n"
        "f(torch.ones(3)), f(torch.ones(4)), f(torch.ones(5))\n"
        "print(len(f.entries), 'sympy' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert run.stdout.split() == ["False", "False", "2", "True"]


def test_names_of_functions_are_the_public_ones():
    import funcaot.public

    for name in funcaot._OF_FUNCTIONS:
        assert getattr(funcaot, name) is getattr(funcaot.public, name)


def test_importing_adds_little_to_torch():
    """CPU seconds; names are imported when one is first used, and Inductor when it compiles."""
    command = [sys.executable, "-c", IMPORTED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    taken, tops, compilers, unneeded = run.stdout.splitlines()
    assert float(taken) < 0.15
    assert tops.split() == ["funcaot"]
    assert compilers == "False False"
    assert unneeded == ""
