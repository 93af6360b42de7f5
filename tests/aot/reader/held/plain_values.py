"""The table of kinds of values, and those that are data: numbers, containers, tensors."""

from tests.aot.reader.held.worlds import Table, Value

VALUES = Table()


def value(name: str, first: str, second: str, use: str = "{x} * {v}", **options) -> None:
    """Register a kind of value by two expressions."""
    VALUES[name] = Value(f"first = {first}\nsecond = {second}", use, **options)


def defined(name: str, source: str, use: str, **options) -> None:
    """Register a kind of value by statements that define ``first`` and ``second``."""
    VALUES[name] = Value(source.strip("\n"), use, **options)


# --- plain values --------------------------------------------------------------------------------

VALUES.family("plain values")

value("int", "2", "3")
value("float", "2.0", "3.0")
value("complex", "2j", "3j", "{x} * {v}.imag")
value("bool", "True", "False", "({x} * 2 if {v} else {x} * 3)")
value("str", "'relu'", "'sin'", "(torch.relu({x}) if {v} == 'relu' else torch.sin({x}))")
value("name_of_an_op", "'relu'", "'sin'", "getattr(torch, {v})({x})")
value("bytes", "b'a'", "b'b'", "{x} * {v}[0]")
value("none", "None", "3.0", "({x} * 2 if {v} is None else {x} * 3)")
value("ellipsis", "...", "None", "{x}[{v}]", keeps_shape=False)
value("int_to_equal_float", "2", "2.0", "{x} + torch.full((3,), {v}).is_floating_point()")
value("bool_to_equal_int", "True", "1", "{x} * (2 if {v} is True else 3)")
value("zero_to_negative_zero", "0.0", "-0.0", "{x} * math.copysign(2, {v})")
value("number_to_nan", "2.0", "float('nan')")
value("big_int", "2**70", "2**70 + 1", "{x} * ({v} % 7)")
value(
    "fraction",
    "__import__('fractions').Fraction(1, 2)",
    "__import__('fractions').Fraction(3, 2)",
    "{x} * float({v})",
)
value(
    "decimal",
    "__import__('decimal').Decimal('1.5')",
    "__import__('decimal').Decimal('2.5')",
    "{x} * float({v})",
)
value("tuple", "(2.0, 1)", "(3.0, 1)", "{x} * {v}[0]")
value("length_of_a_tuple", "(2.0, 1)", "(2.0, 1, 1)", "{x} * len({v})")
value("nested_tuple", "(2.0, (1, 'a'))", "(2.0, (4, 'a'))", "{x} * {v}[1][0]")
value("named_tuple", "collections.namedtuple('T', 'k')(2.0)", "type(first)(3.0)", "{x} * {v}.k")
value("range", "range(2)", "range(3)", "{x} * sum({v})")
value("slice", "slice(0, 1)", "slice(0, 2)", "{x}[{v}]", keeps_shape=False, hashable=False)
value("frozenset", "frozenset([2])", "frozenset([3])", "{x} * sum({v})")
value("dtype", "torch.float32", "torch.float64", "{x}.to({v})", keeps_shape=False)
value("device", "torch.device('cpu')", "torch.device('meta')", "{x} * len({v}.type)")
value("size", "torch.Size([2, 3])", "torch.Size([3, 2])", "{x}.reshape({v})", keeps_shape=False)
value("memory_format", "torch.preserve_format", "torch.contiguous_format", "{x} * len(str({v}))")
value("builtin_type", "float", "int", "{x} * {v}(2.7)")
defined(
    "enum_member",
    """
class Mode(enum.Enum):
    A = 2
    B = 3
first, second = Mode.A, Mode.B
""",
    "({x} * 2 if {v} is Mode.A else {x} * 3)",
)
defined(
    "flag",
    """
class Mode(enum.Flag):
    A = 1
    B = 2
first, second = Mode.A, Mode.A | Mode.B
""",
    "({x} * 3 if Mode.B in {v} else {x} * 2)",
)

# --- containers ----------------------------------------------------------------------------------

VALUES.family("containers")

value(
    "list",
    "[2.0]",
    "[3.0]",
    "{x} * {v}[0]",
    mutate=("{place}[0] = 5.0", "{place}[0] = 2.0"),
    hashable=False,
)
value(
    "length_of_a_list",
    "[2.0]",
    "[2.0, 2.0]",
    "{x} * (1 + len({v}))",
    mutate=("{place}.append(0)", "{place}.pop()"),
    hashable=False,
)
value(
    "dictionary",
    "{'k': 2.0}",
    "{'k': 3.0}",
    "{x} * {v}['k']",
    mutate=("{place}['k'] = 5.0", "{place}['k'] = 2.0"),
    hashable=False,
)
value(
    "membership",
    "{'a'}",
    "{'b'}",
    "{x} * (2 if 'b' in {v} else 3)",
    mutate=("{place}.add('b')", "{place}.discard('b')"),
    hashable=False,
)
value(
    "queue",
    "collections.deque([2.0, 1.0])",
    "collections.deque([3.0])",
    "{x} * {v}[0]",
    mutate=("{place}.rotate(1)", "{place}.rotate(-1)"),
    hashable=False,
)
value(
    "bytearray",
    "bytearray(b'a')",
    "bytearray(b'b')",
    "{x} * {v}[0]",
    mutate=("{place}[0] = 7", "{place}[0] = 97"),
    hashable=False,
)
value(
    "memoryview",
    "memoryview(bytearray(b'a'))",
    "memoryview(bytearray(b'b'))",
    "{x} * {v}[0]",
    mutate=("{place}[0] = 7", "{place}[0] = 97"),
    hashable=False,
)
value(
    "list_of_lists",
    "[[2.0], [1.0]]",
    "[[3.0], [1.0]]",
    "{x} * {v}[0][0]",
    mutate=("{place}.reverse()", "{place}.reverse()"),
    hashable=False,
)
value(
    "big_dictionary",
    "{f'k{i}': float(i) for i in range(10_000)}",
    "{**first, 'k17': 3.0}",
    "{x} * {v}['k17']",
    mutate=("{place}['k17'] = 5.0", "{place}['k17'] = 17.0"),
    hashable=False,
)
value(
    "big_list",
    "list(range(10_000))",
    "list(range(1, 10_001))",
    "{x} * {v}[17]",
    mutate=("{place}[17] = 5", "{place}[17] = 17"),
    hashable=False,
)

# --- arrays and tensors --------------------------------------------------------------------------

VALUES.family("arrays and tensors")

value(
    "array",
    "np.array([2.0, 1.0])",
    "np.array([3.0, 1.0])",
    "{x} * float({v}[0])",
    mutate=("{place}[0] = 5.0", "{place}[0] = 2.0"),
    hashable=False,
)
value("shape_of_an_array", "np.zeros(2)", "np.zeros(3)", "{x} * {v}.shape[0]", hashable=False)
value("array_scalar", "np.float64(2.0)", "np.float64(3.0)", "{x} * float({v})")
value("dtype_of_an_array_scalar", "np.float64(2.0)", "np.float32(2.0)", "{x} * {v}.dtype.itemsize")
value("array_dtype", "np.dtype('float32')", "np.dtype('float64')", "{x} * {v}.itemsize")
value("array_function", "np.sin", "np.cos", "{x} * float({v}(1.0))")
value(
    "tensor",
    "torch.tensor(2.0)",
    "torch.tensor(3.0)",
    mutate=("{place}.add_(5)", "{place}.sub_(5)"),
)
value(
    "tensor_of_another_shape",
    "torch.ones(3)",
    "torch.ones(2, 1) * 2",
    mutate=("{place}.unsqueeze_(0).mul_(2)", "{place}.squeeze_(0).div_(2)"),
)
value(
    "tensor_of_another_dtype",
    "torch.ones(3)",
    "torch.ones(3, dtype=torch.float64)",
    keeps_shape=False,
)
value(
    "tensor_that_requires_grad",
    "torch.tensor(2.0)",
    "torch.tensor(2.0, requires_grad=True)",
    "{v} * {x}.detach()",
    mutate=("{place}.requires_grad_()", "{place}.requires_grad_(False)"),
    keeps_shape=False,
)
value(
    "number_to_equal_tensor",
    "2.0",
    "torch.tensor(2.0, requires_grad=True)",
    "{x}.detach() * {v}",
    keeps_shape=False,
)
value("tensor_to_equal_number", "torch.ones(1, 1, 1)", "1.0", keeps_shape=False)
value("tensor_to_none", "torch.tensor(2.0)", "None", "({x} * 3 if {v} is None else {x} * {v})")
value(
    "tensor_in_a_list",
    "[torch.tensor(2.0)]",
    "[torch.tensor(3.0)]",
    "{x} * {v}[0]",
    mutate=("{place}[0] = torch.tensor(5.0)", "{place}[0] = torch.tensor(2.0)"),
    hashable=False,
)
value(
    "tensors_in_a_dictionary",
    "{'k': torch.tensor(2.0)}",
    "{'k': torch.tensor(3.0)}",
    "{x} * {v}['k']",
    mutate=("{place}['k'] = 5.0", "{place}['k'] = torch.tensor(2.0)"),
    hashable=False,
)
