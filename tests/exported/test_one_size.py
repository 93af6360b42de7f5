"""An open size that the compiler takes for a number: refused, and nothing is written."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

DIMS = ({2: torch.export.Dim("n", min=2, max=64)},)


def refused(function, x, path):
    with pytest.raises(UnsupportedError, match="compiles an operation of it for one size only"):
        funcaot.export(function, (x,), path=path, dynamic_shapes=DIMS)
    assert not list(path.parent.iterdir())


def test_a_size_that_became_a_number_while_it_was_compiled(tmp_path, monkeypatch):
    def compiles(program, package_path):
        node = next(node for node in program.graph.nodes if node.op == "placeholder")
        assert int(node.meta["val"].shape[2]) == 5  # notes that it is

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", compiles)
    refused(lambda x: x.sin(), torch.rand(2, 3, 5), tmp_path / "p.pt2")


def test_a_size_that_stays_open_is_no_matter(tmp_path, monkeypatch):
    asked = []

    def compiles(program, package_path):
        asked.append(program)
        raise OSError("there is no compiler in this test")

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", compiles)
    with pytest.raises(funcaot.errors.StageError, match="no compiler"):
        funcaot.export(
            torch.sin, (torch.rand(2, 3, 5),), path=tmp_path / "p.pt2", dynamic_shapes=DIMS
        )
    assert asked
