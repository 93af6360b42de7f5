"""Functions that store things: in closures, globals, objects, containers, hooks, arguments."""

import collections
import dataclasses
import types
import warnings

import torch
from torch import nn

LAST = None
LOG = []
CASES = {}


def case(make):
    """Register a case: it makes a function, what shows its state, and further arguments."""
    CASES[make.__name__] = make
    return make


@case
def closure_variable():
    last = None

    def function(x):
        nonlocal last
        y = x * 2 if last is None else x + last
        last = y.detach()
        return y

    return function, lambda: last, ()


@case
def counter_that_is_read():
    count = 0

    def function(x):
        nonlocal count
        count += 1
        return x * count

    return function, lambda: count, ()


@case
def global_variable():
    global LAST
    LAST = None

    def function(x):
        global LAST
        LAST = x.sin() if LAST is None else LAST + x
        return x

    return function, lambda: LAST, ()


@case
def global_list():
    LOG.clear()

    def function(x):
        LOG.append(x.sin())
        return x

    return function, lambda: list(LOG), ()


@case
def attributes_of_an_object():
    state = types.SimpleNamespace(h=None, n=0)

    def function(x):
        state.h = x if state.h is None else state.h + x
        state.n = state.n + 1
        return state.h * state.n

    return function, lambda: vars(state), ()


@case
def dataclass_in_a_default():
    @dataclasses.dataclass
    class State:
        h: object = None
        items: list = dataclasses.field(default_factory=list)

    held = State()

    def function(x, state=held):
        state.h = x * 2
        state.items.append(state.h)
        return x

    return function, lambda: vars(held), ()


@case
def slots():
    class State:
        __slots__ = ("h",)

    state = State()
    state.h = torch.zeros(3)

    def function(x):
        state.h = state.h + x
        return state.h * 2

    return function, lambda: state.h, ()


@case
def attributes_of_a_class():
    class Counting(nn.Module):
        count = torch.zeros(())
        calls = 0

        def forward(self, x):
            Counting.count = Counting.count + 1
            type(self).calls += 1
            return x * Counting.count * self.calls

    return Counting(), lambda: (Counting.count, Counting.calls), ()


@case
def attributes_of_a_function():
    def function(x):
        function.last = x * 2
        return x

    return function, lambda: function.last, ()


@case
def bounded_deque():
    window = collections.deque(maxlen=2)

    def function(x):
        window.append(x.detach() * 2)
        return sum(window)

    return function, lambda: list(window), ()


@case
def ordered_dictionary():
    kept = collections.OrderedDict()

    def function(x):
        kept["a"] = x + 1
        kept["b"] = x + 2
        kept.move_to_end("a")
        return kept["a"] * kept["b"]

    return function, lambda: [*kept.items()], ()


@case
def dictionary_with_defaults():
    kept = collections.defaultdict(list)

    def function(x):
        kept["a"].append(x * 1)
        return x * len(kept["a"])

    return function, lambda: dict(kept), ()


@case
def set_of_numbers():
    seen = set()

    def function(x):
        seen.add(len(seen))
        return x * len(seen)

    return function, lambda: sorted(seen), ()


@case
def rearranged_list():
    kept = [torch.zeros(3), torch.ones(3)]

    def function(x):
        kept.reverse()
        kept[0] = kept[0] + x
        return kept[0] * kept[1]

    return function, lambda: kept, ()


@case
def one_list_in_two_places():
    state = types.SimpleNamespace(a=None, b=None)

    def function(x):
        state.a = state.b = [x * 2]
        return x

    return function, lambda: (state.a, state.b, state.a is state.b), ()


@case
def forward_hooks_that_keep_activations():
    kept, log = {}, []
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    for index, (name, part) in enumerate(module.named_children()):
        part.register_forward_hook(
            lambda module, args, out, name=name: kept.__setitem__(name, out.detach())
        )
        part.register_forward_hook(lambda module, args, out: log.append(out))
        nn.init.constant_(getattr(part, "weight", torch.zeros(1)), 0.1 * (index + 1))
        nn.init.zeros_(getattr(part, "bias", torch.zeros(1)))
    return module, lambda: (kept, log), ()


@case
def hook_with_a_setting():
    state = types.SimpleNamespace(scale=1.0)
    module = nn.Identity()

    def hook(module, args, out):
        state.scale = state.scale * 2
        return out * state.scale

    module.register_forward_hook(hook)
    return module, lambda: state.scale, ()


@case
def weight_norm_by_hooks():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        module = nn.utils.weight_norm(nn.Linear(3, 3))
    return module, lambda: module.weight, ()


@case
def spectral_norm_by_hooks():
    torch.manual_seed(0)
    module = nn.utils.spectral_norm(nn.Linear(3, 3))
    return module, lambda: [module.weight, module.weight_u, module.weight_v], ()


@case
def buffer_made_in_forward():
    class Registering(nn.Module):
        def forward(self, x):
            self.register_buffer("b", x * 2)
            return x + self.b

    module = Registering()
    return module, lambda: dict(module.state_dict()), ()


@case
def deleted_attribute():
    class Toggling(nn.Module):
        def forward(self, x):
            y = x * 2
            if hasattr(self, "b"):
                y = y + self.b
                del self.b
            else:
                self.b = y
            return y

    module = Toggling()
    return module, lambda: vars(module).get("b"), ()


@case
def lazy_module():
    torch.manual_seed(0)
    module = nn.LazyLinear(2)
    return module, lambda: list(module.parameters()), ()


@case
def argument_list():
    given = [torch.zeros(3)]

    def function(x, kept):
        kept.append(x * 2)
        kept[0] = kept[0] + x
        return x

    return function, lambda: given, (given,)


@case
def argument_dictionary():
    given = {"a": torch.zeros(3), "b": 2, "inner": [torch.ones(3)]}

    def function(x, kept):
        x = x * kept.pop("b", 5)
        kept["k"] = x * 2
        kept["inner"].insert(0, x)
        kept["inner"].pop()
        return x

    return function, lambda: given, (given,)


@case
def argument_that_is_a_module():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(3))

        def forward(self, x):
            self.b = self.b + x
            return self.b

    module = Running()
    return (lambda x, module: module(x)), lambda: module.b, (module,)
