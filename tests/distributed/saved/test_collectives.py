"""Rank 0 compiles functions with collectives, alone, and all ranks run them out of its file."""

import pytest
import torch
import torch.distributed as dist

import funcaot
from tests.distributed.saved import layouts


def _counts(compiled):
    report = funcaot.report(compiled)
    return report.cache_misses, report.backward_traces, report.graphs_compiled


def _own(size=4):
    return torch.arange(3.0 * size).reshape(size, 3) / 7 + dist.get_rank()


def _compare(function, path, order, backend, counts, x=None):
    """Call a function out of a file on every rank; how often it was captured and compiled."""
    compiled = funcaot.compile(function, backend=backend, artifacts=path)
    x = _own() if x is None else x
    for _ in range(3):
        found = layouts.derivatives(compiled, x, order)
        expected = layouts.derivatives(function, x, order)
        torch.testing.assert_close(found, expected)
        with torch.no_grad():
            found[-1].add_(1)  # what came back is the caller's
            x = x + 0.25
    if counts is not None:
        assert _counts(compiled) == counts, compiled.entries[0].reason
    return compiled


def _save(function, path, order, backend):
    """Rank 0 compiles, the others wait for the file."""
    if dist.get_rank() == 0:
        compiled = funcaot.compile(function, backend=backend)
        compiled.warm_up(torch.ones(4, 3, requires_grad=order > 0), orders=order)
        saved = compiled.save(path)
        assert saved.programs == 1, saved
        assert not saved.left_out, saved
    dist.barrier()


def _for_all(name, order, backend, path):
    layouts.groups.pair = dist.new_group([0, 1])
    function = layouts.FUNCTIONS[name]
    _save(function, path, order, backend)
    _compare(function, path, order, backend, (0, 0, 0))


NAMES = [name for name in layouts.FUNCTIONS if name != "by_a_rule"]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_rank_0_compiles_for_all(ranks, name, order, tmp_path):
    ranks.run(_for_all, name, order, "eager", f"{tmp_path}/programs")


@pytest.mark.parametrize(("name", "order"), [("reduced", 1), ("by_a_rule", 2), ("gathered", 1)])
def test_on_inductor(ranks, name, order, tmp_path):
    ranks.run(_for_all, name, order, "inductor", f"{tmp_path}/programs")


# --- what has changed between writing and reading -------------------------------------------------


def _renamed(ranks):
    """The group has another name: others were made before."""
    dist.destroy_process_group(layouts.groups.pair)
    dist.new_group([0])
    layouts.groups.pair = dist.new_group(ranks)


def _a_twin():
    """A second group of the same ranks takes its place."""
    layouts.groups.pair = dist.new_group([0, 1])


def _of_this_rank_alone():
    alone = [dist.new_group([rank]) for rank in range(2)]
    layouts.groups.pair = alone[dist.get_rank()]


def _the_whole():
    layouts.groups.pair = dist.group.WORLD


CHANGES = {
    "another name": (lambda: _renamed([0, 1]), True),
    "a twin": (_a_twin, False),
    "this rank alone": (_of_this_rank_alone, False),
    "the default group": (_the_whole, False),
}


def _changed(change, backend, path):
    layouts.groups.pair = dist.new_group([0, 1])
    function = layouts.averaged_in_a_group
    _save(function, path, 1, backend)
    make, is_found = CHANGES[change]
    make()
    compiled = _compare(function, path, 1, backend, (0, 0, 0) if is_found else None)
    if not is_found:
        assert _counts(compiled)[0] == 1
        assert "no longer so" in compiled.entries[0].reason


@pytest.mark.parametrize("change", CHANGES)
def test_another_group(ranks, change, tmp_path):
    ranks.run(_changed, change, "eager", f"{tmp_path}/programs")


def _another_size_on_one_rank(path):
    """One rank captures, sends nothing meanwhile, and joins the others, which found theirs."""
    function = layouts.reduced_in_place
    _save(function, path, 1, "eager")
    compiled = funcaot.compile(function, backend="eager", artifacts=path)
    x = _own().requires_grad_()
    given = x if dist.get_rank() == 0 else x.reshape(6, 2)
    found = compiled(given)
    assert _counts(compiled)[0] == dist.get_rank()
    together = x.detach() * 0
    for rank in range(2):
        each = (torch.arange(12.0).reshape(4, 3) / 7 + rank).sin()
        together += each
    torch.testing.assert_close(found, together.reshape(given.shape) * given.cos())
    found.sum().backward()


def test_a_rank_that_meets_another_size(ranks, tmp_path):
    ranks.run(_another_size_on_one_rank, f"{tmp_path}/programs", deadline=60)


def _a_higher_order(path):
    """What isn't in the file is derived when it is asked for, on each rank by itself."""
    function = layouts.reduced
    _save(function, path, 1, "eager")
    compiled = funcaot.compile(function, backend="eager", artifacts=path)
    x = _own()
    found, expected = (layouts.derivatives(f, x, 2) for f in (compiled, function))
    torch.testing.assert_close(found, expected)
    assert _counts(compiled)[1] > 0


def test_an_order_that_isnt_in_the_file(ranks, tmp_path):
    ranks.run(_a_higher_order, f"{tmp_path}/programs")
