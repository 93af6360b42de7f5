"""What torch's own tables give ops and modules to be refused is refused as it is in eager."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

import funcaot
from funcaot.errors import UnsupportedError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::funcaot.errors.CaptureWarning"),
]
OPS = [op for op in op_db if op.error_inputs_func is not None]
MODULES = [module for module in module_db if module.module_error_inputs_func is not None]
# These tables seed the generator around the op.
SEEDS = "calls torch.manual_seed"
# Refused by ours in other words: elements that share memory.
IN_OTHER_WORDS = ("in one place in memory", "whose elements share memory")


def raised(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001
        return error
    return None


def compare(function, *arguments, **keywords):
    expected = raised(function, *arguments, **keywords)
    ours = raised(funcaot.compile(function, backend="eager"), *arguments, **keywords)
    if isinstance(ours, UnsupportedError) and expected is not None:
        assert any(words in str(ours) for words in (SEEDS, *IN_OTHER_WORDS))
        return
    assert type(ours) is type(expected)
    assert str(ours).splitlines()[:1] == str(expected).splitlines()[:1]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_ops(op):
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        for variant in filter(None, (op.op, op.inplace_variant)):

            def function(*given, variant=variant, keywords=sample.kwargs):
                return variant(*given, **keywords)

            compare(function, sample.input, *sample.args)


@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
@pytest.mark.parametrize("training", [True, False])
def test_modules(info, training):
    errors = info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
    )
    for error in errors:
        if error.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
            continue
        made, given = error.module_error_input.constructor_input, error.module_error_input
        module = info.module_cls(*made.args, **made.kwargs).train(training)

        def function(*arguments, module=module, **keywords):
            return module(*arguments, **keywords)

        compare(function, *given.forward_input.args, **given.forward_input.kwargs)
