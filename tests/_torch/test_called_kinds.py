"""What stands for ``int`` and ``float`` where a capture calls them is the class to others."""

import types

import pytest

from funcaot._torch.tensors.sizes import called_kinds


@pytest.mark.parametrize("kind", [int, float])
def test_to_another_thread_it_is_the_class(kind):
    found = called_kinds._STAND_INS[kind.__name__]
    assert found("3") == kind("3")
    assert isinstance(kind(3), found)
    assert isinstance(kind(3), (str, found))
    assert not isinstance("3", (bytes, found))
    assert issubclass(kind, found)
    assert kind == found
    assert {kind: 1}[found] == 1
    assert isinstance(found | None, types.UnionType)
    assert isinstance(None | found, types.UnionType)
    assert found.__name__ == kind.__name__
    assert found.__doc__ is not None


def test_class_methods():
    assert called_kinds._STAND_INS["int"].from_bytes(b"\x02", "big") == 2
    assert called_kinds._STAND_INS["float"].fromhex("0x1p1") == 2.0
