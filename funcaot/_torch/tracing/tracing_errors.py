"""Texts of torch's errors: writes that functionalization can't express, values that nobody has."""

FUNCTIONALIZATION_LIMITS = ("functionalization pass", "was an as_strided()", "as_strided_scatter")
# An op ran below every mode, as those of `as_subclass` do; or `_make_subclass`.
WITHOUT_MODES = ("FunctionalTensor on its own", "is already associated to a python object")
# An op met a tensor of the trace and a real one, or real ones alone.
MIXED = "Please convert all Tensors to FakeTensors first"
# A write of a tensor of the trace to a real one.
WRITTEN_REAL = "mutating a non-functional tensor with a functional tensor"
OVERLAPPING_WRITE = "a tensor being mutated that has internal overlap"
FROZEN_STORAGE = "cannot mutate tensors with frozen storage"
STALE_VIEWS = ("Cannot view a tensor with shape", "is invalid for input of size")
OUT_OF_BOUNDS = "are out of bounds for storage of size"
# A value differs from example to example under vmap.
READS_BATCHED_VALUES = ("calling .item()", "data-dependent control flow")
READS_A_NUMBER = "_local_scalar_dense"
# What only a jagged tensor with holes between its rows reads its lengths for.
COUNTS_ELEMENTS = ("aten.sym_numel", "aten.numel")
READS_AN_ARRAY = (".numpy() is not supported for tensor subclasses", "Cannot call numpy")
OF_INFERENCE_MODE = ("version_counter for inference tensor", "InferenceMode::is_enabled()")


def is_of_a_scripted_module(error: Exception) -> bool:
    """Whether TorchScript met a tensor that isn't of the capture: no text is left of that error."""
    text = str(error)
    return "failed in the TorchScript interpreter" in text and text.rstrip().endswith("Error:")


def text_of(error: BaseException) -> str:
    """What torch's errors say; other things in one of the user's, as a tensor, aren't shown."""
    return "\n".join(each for each in error.args if isinstance(each, str))


def is_mixed(error: BaseException) -> bool:
    """Whether an op met a tensor of a trace and a real one."""
    return any(text in text_of(error) for text in (MIXED, WRITTEN_REAL))


def met_traced(error: BaseException) -> bool:
    """Whether code that ran on real values met a tensor of a capture."""
    return any(text in text_of(error) for text in (MIXED, *WITHOUT_MODES))
