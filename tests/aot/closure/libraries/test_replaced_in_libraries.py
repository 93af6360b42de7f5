"""What somebody replaces in a library is noticed: in one process, and by programs from a file."""

import pytest
import torch

import funcaot
from tests.aot.closure.libraries.replaced import CASES, HOLDING, Case
from tests.aot.saved.reloading import is_loaded, misses

X = torch.arange(6.0).reshape(2, 3) / 5
FAST = (
    "direct: by text", "reached: function", "methods: operator that hides a base's",
    "methods: of all modules",
)  # fmt: skip


def cases(table):
    slow = pytest.mark.slow
    return [pytest.param(table[n], id=n, marks=() if n in FAST else slow) for n in table]


def compiled(module, **options):
    return funcaot.compile(module.f, backend="eager", **options)


def compare(found, module):
    for _ in range(2):
        torch.testing.assert_close(found(X), module.f(X))
    return found


@pytest.mark.parametrize("case", cases(CASES))
def test_replaced_and_restored(case, monkeypatch):
    module = case.module()
    found = compare(compiled(module), module)
    before = found(X)
    with monkeypatch.context() as patch:
        case.replace(patch, module)
        compare(found, module)
        assert not torch.equal(found(X), before)
    compare(found, module)


@pytest.mark.parametrize("case", cases(CASES))
def test_replaced_in_the_process_that_loads(case, tmp_path, monkeypatch):
    module, path = case.module(), tmp_path / "programs"
    found = compare(compiled(module), module)
    if not found.save(path).programs:
        pytest.skip("what it reads can't be written")
    assert is_loaded(compare(compiled(case.module(), artifacts=path), module))
    with monkeypatch.context() as patch:
        module = case.module()
        case.replace(patch, module)
        found = compare(compiled(module, artifacts=path), module)
        assert misses(found) == 1
        reason = funcaot.report(found).entries[0].reason
        assert "no longer so" in reason or "functions of torch changed" in reason


@pytest.mark.parametrize("case", cases(CASES))
def test_replaced_in_the_process_that_saves(case, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    with monkeypatch.context() as patch:
        module = case.module()
        case.replace(patch, module)
        if not compare(compiled(module), module).save(path).programs:
            pytest.skip("what it reads can't be written")
    module = case.module()
    assert misses(compare(compiled(module, artifacts=path), module)) == 1


@pytest.mark.parametrize("body", ["statistics.fsum([1.0])", "statistics.fmean([1.0, 2.0])"])
@pytest.mark.parametrize("how", HOLDING)
def test_what_stands_there_holds_something_else(how, body, tmp_path, monkeypatch):
    """The same function of the user's, with another number in each of two processes."""
    text, by = HOLDING[how]
    path = tmp_path / "programs"

    def process(number, **options):
        case = Case(
            f"{text.replace('NUMBER', number)}\ndef f(x):\n    return x * {body}",
            "statistics",
            "fsum",
            by,
        )
        with monkeypatch.context() as patch:
            module = case.module()
            case.replace(patch, module)
            found = compare(compiled(module, **options), module)
            return found, None if options else found.save(path).programs

    _, programs = process("3.0")
    found, _ = process("4.0", artifacts=path)
    assert misses(found) == 1
    if programs:
        assert is_loaded(process("3.0", artifacts=path)[0])
