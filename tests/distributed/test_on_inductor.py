"""The tables of this folder on the default backend, which takes minutes for some of their cells."""

import pytest

from tests.distributed import (
    test_fully_sharded,
    test_open_sizes,
    test_parallel_options,
    test_tensor_parallel,
)
from tests.distributed.cases import on_inductor
from tests.distributed.ranks import Ranks

_SLOW = (("open sizes", "gathered"),)
_TABLES = {
    "open sizes": (test_open_sizes._sizes, test_open_sizes.CASES),
    "tensor parallel": (test_tensor_parallel._cells, test_tensor_parallel.PLANS),
    "fully sharded": (test_fully_sharded._cells, test_fully_sharded.OPTIONS),
    "options": (test_parallel_options._cells, test_parallel_options.OPTIONS),
    "losses": (test_parallel_options._as_in_eager, test_parallel_options.LOSSES),
}


@pytest.mark.parametrize(
    ("table", "name"),
    [
        pytest.param(table, name, marks=[pytest.mark.long] * ((table, name) not in _SLOW))
        for table, (_, names) in _TABLES.items()
        for name in names
    ],
)
def test_as_on_the_hostile_backend(ranks: Ranks, table, name):
    function, _ = _TABLES[table]
    ranks.run(on_inductor, function, name, deadline=900)
