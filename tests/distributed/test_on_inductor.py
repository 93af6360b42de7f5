"""The tables of this folder on the default backend, which takes minutes for some of their cells."""

import pytest
import torch

from tests.distributed import (
    test_fully_sharded,
    test_open_sizes,
    test_parallel_options,
    test_tensor_parallel,
    test_wrapped,
)
from tests.distributed.cases import batch, loss_of, on_inductor, whole
from tests.distributed.ranks import Ranks


def _wrapped(way: str) -> None:
    test_wrapped._cells(way, "inductor")


_TABLES = {
    "open sizes": (test_open_sizes._sizes, test_open_sizes.CASES),
    "tensor parallel": (test_tensor_parallel._cells, test_tensor_parallel.PLANS),
    "fully sharded": (test_fully_sharded._cells, test_fully_sharded.OPTIONS),
    "options": (test_parallel_options._cells, test_parallel_options.OPTIONS),
    "wrapped": (_wrapped, test_wrapped.WAYS),
    "losses": (test_parallel_options._as_in_eager, test_parallel_options.LOSSES),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, (_, names) in _TABLES.items() for name in names]
)
def test_as_on_the_hostile_backend(ranks: Ranks, table, name):
    function, _ = _TABLES[table]
    ranks.run(on_inductor, function, name, deadline=900)


def _sequence(module):
    return test_tensor_parallel._compiled(test_tensor_parallel._parallel("sequence", module))


def _forces() -> None:
    """Loops that Inductor puts together read what collectives have given, once it is there."""
    found = []
    for make in (lambda module: module, _sequence):
        model = make(test_tensor_parallel._Energy("forces"))
        loss_of(model, "forces", *batch(0, 0)).backward()
        found.append([whole(parameter.grad) for parameter in model.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_results_of_collectives_are_waited_for(ranks: Ranks):
    ranks.run(on_inductor, _forces)
