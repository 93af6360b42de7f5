"""Kinds of values: one before a change and one after it, and how the code uses it."""

from tests.aot.reader.held.plain_values import VALUES, defined, value

# --- callables -----------------------------------------------------------------------------------

VALUES.family("callables")

_CALL = "{v}({x})"
value("torch_function", "torch.relu", "torch.sin", _CALL)
value("functional", "F.relu", "F.silu", _CALL)
value("activation_of_torch_nn", "torch.tanh", "F.gelu", _CALL)
value("tensor_method", "torch.Tensor.sin", "torch.Tensor.cos", _CALL)
value("tensor_property", "torch.Tensor.mT", "torch.Tensor.H", "{x} * len(str({v}))")
value("op_overload", "torch.ops.aten.sin.default", "torch.ops.aten.cos.default", _CALL)
value("op_packet", "torch.ops.aten.sin", "torch.ops.aten.cos", _CALL)
value("binary_operator", "operator.add", "operator.mul", "{v}({x}, 3)")
value("builtin_function", "min", "max", "{x} * {v}(2, 3)")
value("math_function", "math.sin", "math.cos", "{x} * {v}(1.0)")
value(
    "partial",
    "functools.partial(torch.mul, other=2.0)",
    "functools.partial(torch.mul, other=3.0)",
    _CALL,
    mutate=("{place}.keywords['other'] = 5.0", "{place}.keywords['other'] = 2.0"),
)
defined(
    "function",
    "def first(x):\n    return x * 2\ndef second(x):\n    return x * 3",
    _CALL,
    mutate=(
        "saved = {place}.__code__; {place}.__code__ = (lambda x: x * 5).__code__",
        "{place}.__code__ = saved",
    ),
)
defined(
    "function_with_a_default",
    "def first(x, k=2):\n    return x * k\ndef second(x, k=3):\n    return x * k",
    _CALL,
    mutate=("{place}.__defaults__ = (5,)", "{place}.__defaults__ = (2,)"),
)
defined(
    "function_with_an_attribute",
    "def first(x):\n    return x\ndef second(x):\n    return x\nfirst.k = 2\nsecond.k = 3",
    "{v}({x}) * {v}.k",
    mutate=("{place}.k = 5", "{place}.k = 2"),
)
defined("lambda", "first = lambda x: x * 2\nsecond = lambda x: x * 3", _CALL)
defined(
    "closure",
    "def make(k):\n    return lambda x: x * k\nfirst, second = make(2), make(3)",
    _CALL,
    mutate=(
        "{place}.__closure__[0].cell_contents = 5",
        "{place}.__closure__[0].cell_contents = 2",
    ),
)
defined(
    "bound_method",
    """
class Scaling:
    def __init__(self, k):
        self.k = k
    def go(self, x):
        return x * self.k
first, second = Scaling(2).go, Scaling(3).go
""",
    _CALL,
    mutate=("{place}.__self__.k = 5", "{place}.__self__.k = 2"),
)
defined(
    "callable_object",
    """
class Scaling:
    def __init__(self, k):
        self.k = k
    def __call__(self, x):
        return x * self.k
first, second = Scaling(2), Scaling(3)
""",
    _CALL,
    mutate=("{place}.k = 5", "{place}.k = 2"),
)

# --- objects and classes -------------------------------------------------------------------------

VALUES.family("objects and classes")

defined(
    "object",
    """
class Config:
    def __init__(self, k):
        self.k = k
first, second = Config(2), Config(3)
""",
    "{x} * {v}.k",
    mutate=("{place}.k = 5", "{place}.k = 2"),
)
defined(
    "object_that_gains_an_attribute",
    "class Config:\n    pass\nfirst, second = Config(), Config()\nsecond.k = 3",
    "{x} * getattr({v}, 'k', 2)",
    mutate=("{place}.k = 5", "del {place}.k"),
)
defined(
    "object_with_slots",
    """
class Config:
    __slots__ = ("k", "__weakref__")
    def __init__(self, k):
        self.k = k
first, second = Config(2), Config(3)
""",
    "{x} * {v}.k",
    mutate=("{place}.k = 5", "{place}.k = 2"),
)
defined(
    "object_equal_to_another",
    """
class Config:
    def __init__(self, k):
        self.k = k
    def __eq__(self, other):
        return isinstance(other, Config)
    def __hash__(self):
        return 0
first, second = Config(2), Config(3)
""",
    "{x} * {v}.k",
    mutate=("{place}.k = 5", "{place}.k = 2"),
)
defined(
    "object_whose_method_is_patched",
    """
class Scaling:
    def go(self, x):
        return x * 2
class Other:
    def go(self, x):
        return x * 3
saved = Scaling.go
first, second = Scaling(), Other()
""",
    "{v}.go({x})",
    mutate=(
        "type({place}).go = lambda self, x: x * 5",
        "type({place}).go = saved",
    ),
)
defined(
    "object_whose_method_is_hidden",
    """
class Scaling:
    def go(self, x):
        return x * 2
class Other(Scaling):
    def go(self, x):
        return super().go(x) + 1
first, second = Scaling(), Other()
""",
    "{v}.go({x})",
    mutate=("{place}.go = lambda x: x * 5", "del {place}.go"),
)
defined(
    "class",
    """
class first:
    def go(self, x):
        return x * 2
saved = first.go
class second:
    def go(self, x):
        return x * 3
""",
    "{v}().go({x})",
    mutate=("{place}.go = lambda self, x: x * 5", "{place}.go = saved"),
)
defined(
    "class_with_a_setting",
    "class first:\n    k = 2\nclass second:\n    k = 3",
    "{x} * {v}.k",
    mutate=("{place}.k = 5", "{place}.k = 2"),
)
defined(
    "class_redefined_under_its_name",
    """
def define(k):
    class Scaling:
        def go(self, x):
            return x * k
    return Scaling
first, second = define(2), define(3)
""",
    "{v}().go({x})",
)
defined(
    "subclass",
    """
class Config:
    k = 2
class first(Config):
    pass
class second(Config):
    k = 3
""",
    "{x} * {v}.k",
    mutate=("Config.k = 5", "Config.k = 2"),
)
VALUES.family("Functions")
_FUNCTION = """
def define(k):
    class Scaling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * k
        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * (k + 1)
    return Scaling
first, second = define(2), define(3)
"""
defined("function_class", _FUNCTION, "{v}.apply({x})")
defined(
    "function_class_with_another_forward",
    _FUNCTION,
    "{v}.apply({x})",
    mutate=(
        "saved = {place}.forward; {place}.forward = staticmethod(lambda ctx, x: x * 5)",
        "{place}.forward = staticmethod(saved)",
    ),
)
defined(
    "function_class_with_another_backward",
    _FUNCTION,
    "{v}.apply({x})",
    mutate=(
        "saved = {place}.backward; {place}.backward = staticmethod(lambda ctx, g: g * 7)",
        "{place}.backward = staticmethod(saved)",
    ),
)

# --- modules -------------------------------------------------------------------------------------

VALUES.family("modules")

value("module", "nn.ReLU()", "nn.SiLU()", _CALL)
value(
    "module_with_a_setting",
    "nn.LeakyReLU(0.1)",
    "nn.LeakyReLU(0.2)",
    _CALL,
    mutate=("{place}.negative_slope = 0.5", "{place}.negative_slope = 0.1"),
)
defined(
    "module_with_parameters",
    "first, second = nn.Linear(3, 3), nn.Linear(3, 3)\n"
    "nn.init.constant_(first.weight, 2.0), nn.init.constant_(second.weight, 3.0)\n"
    "nn.init.zeros_(first.bias), nn.init.zeros_(second.bias)",
    _CALL,
    mutate=(
        "saved = {place}.weight; {place}.weight = nn.Parameter(saved.detach() * 5)",
        "{place}.weight = saved",
    ),
)
defined(
    "module_in_training",
    """
class Mode(nn.Module):
    def forward(self, x):
        return x * (2 if self.training else 3)
first, second = Mode(), Mode().eval()
""",
    _CALL,
    mutate=("{place}.eval()", "{place}.train()"),
)
_MODULE = """
class Scaling(nn.Module):
    def forward(self, x):
        return x * 2
saved = Scaling.forward
first, second = Scaling(), nn.Tanh()
"""
defined(
    "module_whose_class_gets_another_forward",
    _MODULE,
    _CALL,
    mutate=("type({place}).forward = lambda self, x: x * 5", "type({place}).forward = saved"),
)
defined(
    "module_that_gets_a_forward",
    _MODULE,
    _CALL,
    mutate=("{place}.forward = lambda x: x * 5", "del {place}.forward"),
)
defined(
    "module_that_gets_a_hook",
    _MODULE,
    _CALL,
    mutate=(
        "handle = {place}.register_forward_hook(lambda module, args, out: out * 5)",
        "handle.remove()",
    ),
)
defined(
    "module_that_gets_a_pre_hook",
    _MODULE,
    _CALL,
    mutate=(
        "handle = {place}.register_forward_pre_hook(lambda module, args: (args[0] * 5,))",
        "handle.remove()",
    ),
)
defined(
    "module_object",
    "first, second = types.ModuleType('m'), types.ModuleType('m')\nfirst.k, second.k = 2, 3",
    "{x} * {v}.k",
    mutate=("{place}.k = 5", "{place}.k = 2"),
)

NAMES_OF_FUNCTIONS = {name for name in VALUES if name.startswith("function_class")}
# As attributes of a class they would become its methods or properties.
BECOME_METHODS = {
    "tensor_method",
    "tensor_property",
    "functional",
    "activation_of_torch_nn",
    "function",
    "function_with_a_default",
    "function_with_an_attribute",
    "lambda",
    "closure",
}
MODULES = {name for name in VALUES if name.startswith("module") and name != "module_object"}
ABOUT_GRADIENTS = {"tensor_that_requires_grad", "number_to_equal_tensor"}
