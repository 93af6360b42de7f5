"""Changes that last for a block."""

import gc
import threading
from types import SimpleNamespace

import pytest

from funcaot.base.scopes import SharedPatch, holding


def test_attributes_are_held_for_a_block():
    target = SimpleNamespace(depth=0, name="a")

    def fail():
        assert (target.depth, target.name) == (1, "b")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), holding(target, depth=1, name="b"):
        fail()
    assert (target.depth, target.name) == (0, "a")


class Counted:
    """A patch that notes whether it is there."""

    def __init__(self, failing=False):
        self.there, self.failing = False, failing
        self.patch = SharedPatch(self.change, self.undo)

    def change(self):
        self.there = True
        if self.failing:
            raise KeyboardInterrupt

    def undo(self):
        self.there = False


def test_a_patch_lasts_from_the_first_user_to_the_last():
    counted = Counted()
    with counted.patch.used():
        with counted.patch.used():
            assert counted.there
        assert counted.there
        counted.patch.install()
    assert counted.there
    assert counted.patch.is_installed
    counted.patch.uninstall()
    assert not counted.there
    counted.patch.uninstall()  # one too many does nothing
    assert not counted.patch.is_installed


def test_a_patch_is_shared_by_threads():
    counted, entered, leave = Counted(), threading.Event(), threading.Event()

    def other():
        with counted.patch.used():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with counted.patch.used():
        pass
    assert counted.there
    leave.set()
    thread.join()
    assert not counted.there


def test_an_interrupt_leaves_no_user():
    counted = Counted(failing=True)
    with pytest.raises(KeyboardInterrupt), counted.patch.used():
        pass
    assert not counted.there
    # One in the middle of contextlib, before the block's generator goes on.
    counted = Counted()
    block = counted.patch.used()
    block.__enter__()
    del block
    gc.collect()
    assert not counted.there
