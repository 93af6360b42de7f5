"""Changes that no composition makes: code, imports, torch's own names, whole classes, iterators."""

from tests.aot.reader.held.worlds import IMPORTS, Script

CASES: dict[str, Script] = {}


def case(name: str, source: str, change: str, undo: str) -> None:
    """Register a world with one change."""
    CASES[name] = Script(f"{IMPORTS}\n{source.strip()}\n", change.strip(), undo.strip())


# --- code ----------------------------------------------------------------------------------------

case(
    "code of the function itself",
    "def target(x):\n    return x * 2",
    "saved = target.__code__; target.__code__ = (lambda x: x * 3).__code__",
    "target.__code__ = saved",
)
case(
    "code of a method",
    """
class Box:
    def go(self, x):
        return x * 2
box = Box()
def target(x):
    return box.go(x)
""",
    "saved = Box.go.__code__; Box.go.__code__ = (lambda self, x: x * 3).__code__",
    "Box.go.__code__ = saved",
)
case(
    "code of a module's forward",
    """
class Net(nn.Module):
    def forward(self, x):
        return x * 2
target = nn.Sequential(Net())
""",
    "saved = Net.forward.__code__; Net.forward.__code__ = (lambda self, x: x * 3).__code__",
    "Net.forward.__code__ = saved",
)
case(
    "what a decorator wraps",
    """
def decorate(function):
    def wrapper(x):
        return function(x)
    return wrapper
@decorate
def target(x):
    return x * 2
""",
    "target.__closure__[0].cell_contents = lambda x: x * 3",
    "target.__closure__[0].cell_contents = lambda x: x * 2",
)
case(
    "a branch of code that the first call did not take",
    """
flag, k = False, 2
def target(x):
    if flag:
        return x * k
    return x
""",
    "flag = True; k = 3",
    "flag = False; k = 5",
)
case(
    "a global that only a branch reads",
    """
flag, k = True, 2
def target(x):
    return x * (k if flag else 1)
""",
    "k = 3",
    "k = 2",
)
case(
    "an exception that a helper raises",
    """
def helper(x):
    return x * 2
def target(x):
    try:
        return helper(x)
    except ValueError:
        return x * 3
""",
    "saved = helper\ndef helper(x): raise ValueError",
    "helper = saved",
)
case(
    "evaluated source text",
    "text = 'x * 2'\ndef target(x):\n    return eval(text)",
    "text = 'x * 3'",
    "text = 'x * 2'",
)
case(
    "a global that evaluated source text reads",
    "k = 2\ndef target(x):\n    return eval('x * k')",
    "k = 3",
    "k = 2",
)
case(
    "a global read through globals()",
    "k = 2\ndef target(x):\n    return x * globals()['k']",
    "k = 3",
    "k = 2",
)
case(
    "recursion",
    """
depth = 2
def target(x, n=0):
    return x if n == depth else target(x, n + 1) * 2
""",
    "depth = 3",
    "depth = 2",
)
case(
    "dispatch on a type",
    """
@functools.singledispatch
def go(k, x):
    return x * 2
def target(x):
    return go(1, x)
""",
    "go.register(int)(lambda k, x: x * 3)",
    "go.register(int)(lambda k, x: x * 2)",
)

# --- classes -------------------------------------------------------------------------------------

_FUNCTION = """
class Scale(torch.autograd.Function):
    k = {k}
    @staticmethod
    def forward(ctx, x):
        return x * Scale.k
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (Scale.k + 1)
"""
case(
    "a Function redefined in a notebook",
    _FUNCTION.format(k=2) + "\ndef target(x):\n    return Scale.apply(x)",
    _FUNCTION.format(k=3),
    _FUNCTION.format(k=2),
)
case(
    "a setting of a Function",
    _FUNCTION.format(k=2) + "\ndef target(x):\n    return Scale.apply(x)",
    "Scale.k = 3",
    "Scale.k = 2",
)
case(
    "apply of a Function that was kept",
    _FUNCTION.format(k=2) + "\nscale = Scale.apply\ndef target(x):\n    return scale(x)",
    "Scale.k = 3",
    "Scale.k = 2",
)
case(
    "a Function redefined, its apply kept anew",
    _FUNCTION.format(k=2) + "\nscale = Scale.apply\ndef target(x):\n    return scale(x)",
    _FUNCTION.format(k=3) + "scale = Scale.apply",
    _FUNCTION.format(k=2) + "scale = Scale.apply",
)
case(
    "a base of a Function",
    """
class Base(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 3
class Scale(Base):
    pass
def target(x):
    return Scale.apply(x)
""",
    "Base.backward = staticmethod(lambda ctx, g: g * 7)",
    "Base.backward = staticmethod(lambda ctx, g: g * 3)",
)
case(
    "a module class redefined in a notebook",
    """
class Net(nn.Module):
    def forward(self, x):
        return x * 2
def target(x):
    return Net()(x)
""",
    "saved = Net\nclass Net(nn.Module):\n    def forward(self, x): return x * 3",
    "Net = saved",
)
case(
    "a class registered as another's",
    """
class Base(abc.ABC):
    pass
class Box:
    pass
classes = [Base]
def target(x):
    return x * (3 if isinstance(Box(), tuple(classes)) else 2)
""",
    "classes[0] = Box",
    "classes[0] = Base",
)
case(
    "a class check that a metaclass answers",
    """
class Meta(type):
    answer = False
    def __instancecheck__(cls, instance):
        return Meta.answer
class Base(metaclass=Meta):
    pass
def target(x):
    return x * (3 if isinstance(1.0, Base) else 2)
""",
    "Meta.answer = True",
    "Meta.answer = False",
)
for _name, _special, _expression in (
    ("a length", "__len__", "len(box)"),
    ("a truth value", "__bool__", "(3 if box else 2)"),
    ("an equality", "__eq__", "(3 if box == 1 else 2)"),
    ("an item", "__getitem__", "box[0]"),
    ("an iteration", "__iter__", "next(iter(box))"),
    ("an index", "__index__", "operator.index(box)"),
    ("a membership", "__contains__", "(3 if 1 in box else 2)"),
    ("a representation", "__repr__", "len(repr(box))"),
    ("a format", "__format__", "len(f'{box}')"),
):
    _values = {
        "__bool__": ("False", "True"),
        "__contains__": ("False", "True"),
        "__eq__": ("False", "True"),
        "__iter__": ("iter([2])", "iter([3])"),
        "__repr__": ("'ab'", "'abc'"),
        "__format__": ("'ab'", "'abc'"),
    }.get(_special, ("2", "3"))
    case(
        f"{_name} that a class answers",
        f"""
class Box:
    def {_special}(self, *args):
        return {_values[0]}
box = Box()
def target(x):
    return x * {_expression}
""",
        f"Box.{_special} = lambda self, *args: {_values[1]}",
        f"Box.{_special} = lambda self, *args: {_values[0]}",
    )

# --- names of libraries --------------------------------------------------------------------------

for _owner, _attribute, _other, _call in (
    ("torch", "relu", "torch.sin", "torch.relu(x)"),
    ("F", "relu", "F.silu", "F.relu(x)"),
    ("math", "floor", "math.ceil", "x * math.floor(2.5)"),
    ("np", "floor", "np.ceil", "x * float(np.floor(2.5))"),
    ("operator", "add", "operator.mul", "operator.add(x, 3)"),
    ("nn.ReLU", "forward", "nn.SiLU.forward", "nn.Identity()(x)"),
    ("nn.Tanh", "forward", "nn.Sigmoid.forward", "nn.Tanh()(x)"),
    ("torch.Tensor", "sinc", "torch.Tensor.cos", "x.sinc()"),
):
    if _attribute == "forward" and _owner == "nn.ReLU":
        _source, _other = "target = nn.Sequential(nn.ReLU())", "nn.Tanh.forward"
    else:
        _source = f"def target(x):\n    return {_call}"
    case(
        f"{_owner}.{_attribute} replaced",
        _source,
        f"saved = {_owner}.{_attribute}; {_owner}.{_attribute} = {_other}",
        f"{_owner}.{_attribute} = saved",
    )
case(
    "a builtin hidden in builtins",
    "import builtins\ndef target(x):\n    return x * min(2, 3)",
    "saved = min; builtins.min = max",
    "builtins.min = saved",
)
case(
    "a method that torch.Tensor gains",
    "torch.Tensor.scaled = lambda x: x * 2\ndef target(x):\n    return x.scaled()",
    "torch.Tensor.scaled = lambda x: x * 3",
    "torch.Tensor.scaled = lambda x: x * 2",
)
case(
    "a hook of every module",
    "target = nn.Sequential(nn.Tanh())",
    "handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 3)",
    "handle.remove()",
)
case(
    "the default dtype",
    "def target(x):\n    return x + torch.ones(())[None].to(torch.get_default_dtype())",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_default_dtype(torch.float32)",
)

# --- several places ------------------------------------------------------------------------------

case(
    "a list in two places that parts",
    """
a = b = [2]
def target(x):
    return x * a[0] * (3 if a is b else 5)
""",
    "b = [2]",
    "b = a",
)
case(
    "two lists that become one",
    "a, b = [2], [2]\ndef target(x):\n    return x * a[0] * (3 if a is b else 5)",
    "b = a",
    "b = [2]",
)
case(
    "a dictionary in an object that parts",
    "box, kept = nn.Tanh(), {'k': 2}\nbox.kept = kept\n"
    "def target(x):\n    return x * (kept['k'] if id(box.kept) == id(kept) else 5)",
    "box.kept = dict(kept)",
    "box.kept = kept",
)
case(
    "an operator of torch.Tensor replaced",
    "def target(x):\n    return x * 3",
    "saved = torch.Tensor.__mul__; torch.Tensor.__mul__ = torch.Tensor.add",
    "torch.Tensor.__mul__ = saved",
)
case(
    "a method of torch.Tensor deleted again",
    "def target(x):\n    return x.sin()",
    "torch.Tensor.sin = torch.Tensor.cos",
    "del torch.Tensor.sin",
)
case(
    "one object under two names",
    """
class Box:
    pass
a, b = Box(), Box()
a.k, b.k = 2, 3
chosen = a
def target(x):
    return x * chosen.k
""",
    "chosen = b",
    "chosen = a",
)
case(
    "an attribute of what another global names",
    "names = ['k', 'm']\nbox = types.SimpleNamespace(k=2, m=3)\nat = 0\n"
    "def target(x):\n    return x * getattr(box, names[at])",
    "at = 1",
    "at = 0",
)
case(
    "an object that is replaced by one of another class",
    """
class A:
    k = 2
class B:
    k = 3
box = A()
def target(x):
    return x * box.k
""",
    "box = B()",
    "box = A()",
)
case(
    "a parameter list",
    "items = nn.ParameterList([nn.Parameter(torch.ones(3))])\n"
    "def target(x):\n    return x * len(items) * sum(p for p in items)",
    "saved = items; items = nn.ParameterList([*items, nn.Parameter(torch.ones(3) * 2)])",
    "items = saved",
)
case(
    "the order of submodules",
    "target = nn.Sequential(nn.Tanh(), nn.Softplus())",
    "target[0], target[1] = target[1], target[0]",
    "target[0], target[1] = target[1], target[0]",
)
case(
    "a module list that grows",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Tanh()])
    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
target = Net()
""",
    "target.parts.append(nn.Softplus())",
    "target.parts.pop(-1)",
)
case(
    "names of parameters",
    """
class Net(nn.Module):
    def forward(self, x):
        return x * (2 + len(list(self.named_buffers())))
target = Net()
""",
    "target.register_buffer('held', torch.ones(1))",
    "del target.held",
)
case(
    "attributes listed by vars",
    "box = types.SimpleNamespace(k=2)\ndef target(x):\n    return x * sum(vars(box).values())",
    "box.m = 5",
    "del box.m",
)
case(
    "attributes listed by dir",
    "box = types.SimpleNamespace(k=2)\n"
    "def target(x):\n    return x * len([n for n in dir(box) if n[0] != '_'])",
    "box.m = 5",
    "del box.m",
)
case(
    "subclasses that a class lists",
    "class Base:\n    pass\nclass A(Base):\n    k = 2\nkept = []\n"
    "def target(x):\n    return x * (1 + len(kept))",
    "kept.append(type('B', (Base,), {}))",
    "kept.pop()",
)
case(
    "a registry that a decorator fills",
    """
registry = {}
def register(function):
    registry[function.__name__] = function
    return function
@register
def act(x):
    return x * 2
def target(x):
    return registry["act"](x)
""",
    "@register\ndef act(x): return x * 3",
    "@register\ndef act(x): return x * 2",
)
case(
    "a cached result that is cleared",
    """
k = 2
@functools.lru_cache
def kept():
    return k
def target(x):
    return x * kept()
""",
    "k = 3; kept.cache_clear()",
    "k = 2; kept.cache_clear()",
)
case(
    "a cached property that is deleted",
    """
class Box:
    @functools.cached_property
    def k(self):
        return state
state, box = 2, Box()
def target(x):
    return x * box.k
""",
    "state = 3; del box.k",
    "state = 2; del box.k",
)
case(
    "a reference that dies",
    """
class Box:
    pass
kept = Box()
reference = weakref.ref(kept)
def target(x):
    return x * (3 if reference() is None else 2)
""",
    "del kept",
    "kept = Box(); reference = weakref.ref(kept)",
)
