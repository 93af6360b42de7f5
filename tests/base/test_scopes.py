"""Changes that last for a block."""

import gc
import threading
from types import SimpleNamespace

import pytest

from funcaot.base.scopes import SharedPatch, holding, lasting


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

    def __init__(self, failing=False, lasts=False):
        self.there, self.failing, self.changes = False, failing, 0
        self.patch = SharedPatch(self.change, self.undo, lasts=lasts)

    def change(self):
        self.there = True
        self.changes += 1
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


def test_a_patch_that_lasts_is_made_once_in_a_block():
    kept, other = Counted(lasts=True), Counted()
    with lasting():
        for _ in range(3):
            with kept.patch.used(), lasting(), other.patch.used():
                assert kept.there
                assert other.there
            assert kept.there
            assert not other.there
    assert not kept.there
    assert (kept.changes, other.changes) == (1, 3)
    with kept.patch.used():
        assert kept.there
    assert not kept.there


@pytest.mark.parametrize("failing", [False, True])
def test_a_patch_that_lasts_ends_with_an_error(failing):
    kept = Counted(failing, lasts=True)
    with pytest.raises(KeyboardInterrupt), lasting(), kept.patch.used():
        raise KeyboardInterrupt
    assert not kept.there


def test_a_patch_that_lasts_stays_for_other_threads():
    kept, entered, leave = Counted(lasts=True), threading.Event(), threading.Event()

    def other():
        with kept.patch.used():
            entered.set()
            assert leave.wait(10)

    thread = threading.Thread(target=other)
    with lasting(), kept.patch.used():
        thread.start()
        assert entered.wait(10)
    assert kept.there
    leave.set()
    thread.join()
    assert not kept.there


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
