"""Who reads a value: the code that runs when ``target(x)`` is called.

Each entry makes the source text that defines ``target``. Where a class is needed, it is ``Owner``,
and its instance is ``owner``, so that a holder can be one of the two.
"""

from tests.aot.reader.held.worlds import Reader, Slots, Table

READERS = Table()


def reader(**options):
    """Register a reader under its function's name."""

    def register(source):
        READERS[source.__name__] = Reader(source, **options)
        return source

    return register


# --- functions ------------------------------------------------------------------------------------

READERS.family("functions")


@reader()
def plain(s: Slots):
    return f"""
def target(x{s.parameter}):
    return {s.result()}
"""


@reader(function="helper")
def helper(s: Slots):
    return f"""
def helper(x{s.parameter}):
    return {s.result()}

def target(x):
    return helper(x)
"""


@reader(function="helper", main="def target(x):\n    return world.helper(x)")
def imported_helper(s: Slots):
    return f"""
def helper(x{s.parameter}):
    return {s.result()}
"""


@reader(function="helper", main="import sys\ntarget = sys.modules[world.__name__].outer")
def imported_caller(s: Slots):
    return f"""
def helper(x{s.parameter}):
    return {s.result()}

def outer(x):
    return helper(x)
"""


# --- methods --------------------------------------------------------------------------------------

READERS.family("methods")


@reader(function="Owner.read", owner="instance")
def method(s: Slots):
    return f"""
{s.owner(f"def read(self, x{s.parameter}): return {s.result()}")}
owner = Owner()

def target(x):
    return owner.read(x)
"""


@reader(function="Owner.read", owner="instance")
def bound_method(s: Slots):
    return f"""
{s.owner(f"def read(self, x{s.parameter}): return {s.result()}")}
owner = Owner()
target = owner.read
"""


@reader(function="Owner.read", owner="instance")
def method_of_an_argument_default(s: Slots):
    return f"""
{s.owner(f"def read(self, x{s.parameter}): return {s.result()}")}
owner = Owner()

def target(x, given=owner):
    return given.read(x)
"""


@reader(function="Owner.read")
def static_method(s: Slots):
    return f"""
{
        s.owner(f'''
@staticmethod
def read(x{s.parameter}): return {s.result()}
''')
    }
def target(x):
    return Owner.read(x)
"""


@reader(function="Owner.read.__func__", owner="class", itself="cls")
def class_method(s: Slots):
    return f"""
{
        s.owner(f'''
@classmethod
def read(cls, x{s.parameter}): return {s.result()}
''')
    }
def target(x):
    return Owner.read(x)
"""


# --- modules --------------------------------------------------------------------------------------

READERS.family("modules")


@reader(function="Owner.forward", owner="instance")
def module_forward(s: Slots):
    return f"""
{s.owner(f"def forward(self, x{s.parameter}): return {s.result()}", "nn.Module")}
owner = target = Owner()
"""


@reader(function="Owner.forward", owner="instance")
def submodule_forward(s: Slots):
    return f"""
{s.owner(f"def forward(self, x{s.parameter}): return {s.result()}", "nn.Module")}
owner = Owner()
target = nn.Sequential(nn.Identity(), nn.ModuleDict({{"inner": owner}})["inner"])
"""


@reader(function="Owner.forward", owner="instance")
def module_in_a_function(s: Slots):
    return f"""
{s.owner(f"def forward(self, x{s.parameter}): return {s.result()}", "nn.Module")}
owner = Owner()

def target(x):
    return owner(x)
"""


@reader(function="hook")
def forward_hook(s: Slots):
    return f"""
def hook(module, args, x{s.parameter}):
    return {s.result()}

target = nn.Identity()
target.register_forward_hook(hook)
"""


@reader(function="Owner.read.fget", owner="instance")
def property_of_a_module(s: Slots):
    return f"""
{
        s.owner(
            f'''
@property
def read(self{s.parameter}): return {s.access}

def forward(self, x): return {s.result(v="self.read")}
''',
            "nn.Module",
        )
    }
owner = target = Owner()
"""


# --- protocols ------------------------------------------------------------------------------------

READERS.family("protocols")


@reader(function="Owner.read.fget", owner="instance")
def property_of_an_object(s: Slots):
    return f"""
{
        s.owner(f'''
@property
def read(self{s.parameter}): return {s.access}
''')
    }
owner = Owner()

def target(x):
    return {s.result(v="owner.read")}
"""


@reader(function="Owner.__getattr__", owner="instance")
def attribute_lookup(s: Slots):
    return f"""
{
        s.owner(f'''
def __getattr__(self, name{s.parameter}):
    if name == "read":
        return {s.access}
    raise AttributeError(name)
''')
    }
owner = Owner()

def target(x):
    return {s.result(v="owner.read")}
"""


@reader(function="Owner.__add__", owner="instance")
def operator(s: Slots):
    return f"""
{s.owner(f"def __add__(self, x{s.parameter}): return {s.result()}")}
owner = Owner()

def target(x):
    return owner + x
"""


@reader(function="Owner.__enter__", owner="instance")
def context_manager(s: Slots):
    return f"""
{
        s.owner(f'''
def __enter__(self{s.parameter}): return {s.access}

def __exit__(self, *exception): return None
''')
    }
owner = Owner()

def target(x):
    with owner as read:
        return {s.result(v="read")}
"""


@reader(function="Owner.__call__", owner="instance")
def callable_object(s: Slots):
    return f"""
{s.owner(f"def __call__(self, x{s.parameter}): return {s.result()}")}
owner = target = Owner()
"""


@reader(function="Owner.__call__", owner="instance")
def callable_object_in_a_function(s: Slots):
    return f"""
{s.owner(f"def __call__(self, x{s.parameter}): return {s.result()}")}
owner = Owner()

def target(x):
    return owner(x)
"""


# --- made inside ----------------------------------------------------------------------------------

READERS.family("made inside")


@reader(function="Owner.read", owner="class")
def made_inside(s: Slots):
    return f"""
{s.owner(f"def read(self, x{s.parameter}): return {s.result()}")}
def target(x):
    return Owner().read(x)
"""


@reader(function="Owner.__init__", owner="class")
def constructor_of_what_is_made_inside(s: Slots):
    return f"""
{s.owner(f"def __init__(self{s.parameter}): self.kept = {s.access}")}
def target(x):
    made = Owner()
    return {s.result(v="made.kept")}
"""


@reader(function="Owner.forward", owner="class")
def module_made_inside(s: Slots):
    return f"""
{s.owner(f"def forward(self, x{s.parameter}): return {s.result()}", "nn.Module")}
def target(x):
    return Owner()(x)
"""


# --- wrapped --------------------------------------------------------------------------------------

READERS.family("wrapped")


@reader(function="target.__wrapped__")
def decorated(s: Slots):
    return f"""
def decorate(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper

@decorate
def target(x{s.parameter}):
    return {s.result()}
"""


@reader(function="target")
def decorator(s: Slots):
    return f"""
def decorate(function):
    @functools.wraps(function)
    def wrapper(x{s.parameter}):
        x = function(x)
        return {s.result()}

    return wrapper

@decorate
def target(x):
    return x * 1
"""


@reader(function="target.func")
def partial(s: Slots):
    return f"""
def read(factor, x{s.parameter}):
    return {s.result()} * factor

target = functools.partial(read, 1)
"""


@reader(function="TABLE['read'][0]")
def lambda_in_a_container(s: Slots):
    return f"""
TABLE = {{"read": [lambda x{s.parameter}: {s.result()}]}}

def target(x):
    return TABLE["read"][0](x)
"""


@reader(function="read")
def passed_to_map(s: Slots):
    return f"""
def read(x{s.parameter}):
    return {s.result()}

def target(x):
    return next(map(read, [x]))
"""


# --- nested code ----------------------------------------------------------------------------------

READERS.family("nested code")


@reader()
def comprehension(s: Slots):
    return f"""
def target(x{s.parameter}):
    return [{s.result()} for _ in range(2)][1]
"""


@reader()
def generator_expression(s: Slots):
    return f"""
def target(x{s.parameter}):
    return next({s.result()} for _ in range(2))
"""


@reader(function="parts")
def generator(s: Slots):
    return f"""
def parts(x{s.parameter}):
    yield {s.result()}

def target(x):
    return next(parts(x))
"""


@reader()
def nested_function(s: Slots):
    return f"""
def target(x{s.parameter}):
    def inner():
        return {s.result()}

    return inner()
"""


# --- transforms -----------------------------------------------------------------------------------

READERS.family("transforms")


@reader(function="read", keeps_shape=True)
def under_vmap(s: Slots):
    return f"""
def read(x{s.parameter}):
    return {s.result()}

def target(x):
    return torch.func.vmap(read)(x)
"""


@reader(function="read", keeps_shape=True)
def under_checkpoint(s: Slots):
    return f"""
from torch.utils.checkpoint import checkpoint

def read(x{s.parameter}):
    return {s.result()}

def target(x):
    return checkpoint(read, x, use_reentrant=False)
"""


# --- forward of a Function ------------------------------------------------------------------------

READERS.family("forward of a Function")


@reader(function="Owner.forward")
def function_forward(s: Slots):
    return f"""
{
        s.owner(
            f'''
@staticmethod
def forward(ctx, x{s.parameter}): return {s.result()}

@staticmethod
def backward(ctx, grad_output): return torch.ones(2, 3) * grad_output.sum()
''',
            "torch.autograd.Function",
        )
    }
def target(x):
    return Owner.apply(x)
"""


# --- backward of a Function -----------------------------------------------------------------------

READERS.family("backward of a Function")


@reader(function="Owner.backward", keeps_shape=True, backward=True)
def function_backward(s: Slots):
    return f"""
{
        s.owner(
            f'''
@staticmethod
def forward(ctx, x): return x * 2

@staticmethod
def backward(ctx, grad_output{s.parameter}): return {s.result("grad_output")}
''',
            "torch.autograd.Function",
        )
    }
def target(x):
    return Owner.apply(x)
"""
