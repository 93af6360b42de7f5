"""What a thread's state is after an interrupt."""

import contextlib
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _python_dispatch as dispatch

from funcaot._torch.levels.thread_state import StateKept


class Mode(dispatch.TorchDispatchMode):
    """A mode that does nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def state():
    """What this thread's state is."""
    return (
        torch.is_grad_enabled(),
        torch._C._is_fwd_grad_enabled(),
        [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())],
        torch._C._len_torch_function_stack(),
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        [getattr(dispatch, name) for name in vars(dispatch) if name.startswith("_is_in_")],
        sys.gettrace(),
    )


def leave_behind(what, fake):
    """Change the state as a block does that an interrupt keeps from ending."""
    if what == "grad mode":
        torch._C._set_grad_enabled(not torch.is_grad_enabled())
        torch._C._set_fwd_grad_enabled(False)
    elif what == "modes":
        Mode().__enter__()
        fake.__enter__()
    elif what == "no modes":
        if torch._C._len_torch_dispatch_stack():
            torch._C._unset_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
            torch._C._pop_torch_dispatch_stack(None)
    elif what == "a function mode":
        torch.overrides.BaseTorchFunctionMode().__enter__()
    elif what == "a level":
        torch._C._functorch._grad_increment_nesting()
    elif what == "a trace function":
        sys.settrace(lambda frame, event, argument: None)
    else:
        fake.in_kernel_invocation = True
    raise KeyboardInterrupt


@pytest.mark.parametrize("outside", [False, True], ids=["", "under modes"])
@pytest.mark.parametrize(
    "what",
    [
        "grad mode",
        "modes",
        "no modes",
        "a function mode",
        "a level",
        "a trace function",
        "in a kernel",
    ],
)
def test_state_is_put_back(what, outside):
    fake = FakeTensorMode()
    with contextlib.ExitStack() as stack:
        if outside:
            stack.enter_context(Mode())
            stack.enter_context(FakeTensorMode())
        before = state()
        with pytest.raises(KeyboardInterrupt), StateKept(fake):
            leave_behind(what, fake)
        assert state() == before
        assert not fake.in_kernel_invocation
    with fake:
        assert torch.ones(3).sum().shape == ()


def handling(interrupt, error, cause=None):
    """Raise an error while an interrupt is handled."""
    try:
        raise interrupt
    except KeyboardInterrupt as handled:
        if cause:
            raise error from handled
        raise error  # noqa: B904


def test_an_interrupt_that_another_error_hides_is_raised():
    interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as found, StateKept():
        # What a block that an interrupt broke raises when it ends.
        handling(interrupt, RuntimeError("no mode active"))
    assert found.value is interrupt


def in_a_block(error):
    """Raise an error in a block."""
    with StateKept():
        raise error


def test_the_users_own_errors_pass_through():
    with pytest.raises(ValueError, match="mine"):
        in_a_block(ValueError("mine"))
    with pytest.raises(ValueError, match="mine"), StateKept():
        handling(KeyboardInterrupt(), ValueError("mine"), cause=True)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:  # the caller handles it when the block begins
        with pytest.raises(ValueError, match="mine"):
            in_a_block(ValueError("mine"))


@contextlib.contextmanager
def without_grad():
    """A block that switches grad mode back when it ends."""
    with torch.no_grad():
        yield


library = {}
exec(
    compile(
        "def leave(blocks): block = blocks.pop(); raise KeyboardInterrupt",
        contextlib.__file__,
        "exec",
    ),
    library,
)
leave = library["leave"]


class Interrupting:
    """Interrupts a block in the middle of contextlib."""

    def __init__(self):
        self.block = without_grad()

    def __enter__(self):
        self.block.__enter__()

    def __exit__(self, *error):
        blocks, self.block = [self.block], None
        leave(blocks)


def test_a_block_that_never_ended_does_nothing_later():
    before = torch.is_grad_enabled()
    try:
        with StateKept(), torch.no_grad(), Interrupting():
            pass
    except KeyboardInterrupt as interrupt:
        assert torch.is_grad_enabled() == before
        del interrupt
    assert torch.is_grad_enabled() == before
