"""The operator: interception, graphs, the protocol of compiled programs, state after errors."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch.func import functionalize, grad, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import funcaot
from funcaot import Function
from funcaot.functions.interception import intercepting
from funcaot.transforms.tracing import FunctionNode

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

X = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64).reshape(2, 3)


class ThirdParty(torch.autograd.Function):
    """No jvp, no vmap, no flag: torch refuses it under vmap and jvp."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return 7 * g * ctx.saved_tensors[0]


third_party = ThirdParty.apply  # kept before any install, as libraries do


def original_state():
    function = torch.autograd.Function
    apply = function.__dict__["apply"]
    names = torch.autograd.function.__dict__
    return (
        apply,
        getattr(getattr(apply, "__func__", None), "__code__", None),
        set(names),
        [getattr(value, "__code__", None) for value in names.values()],
        dict(type(function).__dict__),
        dict(ThirdParty.__dict__),
    )


class TestInstall:
    def test_third_party_functions_gain_every_rule(self):
        with funcaot.install():
            for apply in (ThirdParty.apply, third_party):
                got = vmap(grad(lambda x, a=apply: a(x).sum()))(X)
                torch.testing.assert_close(got, 7 * X)
                torch.testing.assert_close(jvp(apply, (X,), (X,))[1], 7 * X * X)
                torch.testing.assert_close(functionalize(vmap(apply))(X), X.sin())

    def test_uninstall_leaves_no_trace(self):
        before = original_state()
        with funcaot.install():
            vmap(grad(lambda x: third_party(x).sum()))(X)
            assert original_state() != before
        assert original_state() == before
        with pytest.raises(RuntimeError, match="setup_context"):
            vmap(third_party)(X)

    def test_it_nests(self):
        before = original_state()
        funcaot.install()
        with funcaot.install(), intercepting():
            pass
        torch.testing.assert_close(vmap(third_party)(X), X.sin())
        funcaot.uninstall()
        assert original_state() == before
        funcaot.uninstall()  # one too many does nothing
        assert original_state() == before

    def test_an_exception_uninstalls(self):
        before = original_state()
        with pytest.raises(ZeroDivisionError), funcaot.install():
            raise ZeroDivisionError
        assert original_state() == before

    def test_without_a_transform_nothing_changes(self):
        leaf = X.clone().requires_grad_()
        with funcaot.install():
            y = third_party(leaf)
        assert type(y.grad_fn) is ThirdParty._backward_cls

    def test_a_setup_context_can_be_set_and_deleted(self):
        class Doubling(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return 2 * x

        base = Doubling.setup_context
        with funcaot.install():
            assert Doubling.setup_context == base
            Doubling.setup_context = staticmethod(lambda ctx, inputs, output: None)
            assert Doubling.setup_context != base
            del Doubling.setup_context
            torch.testing.assert_close(vmap(Doubling.apply)(X), 2 * X)
        assert Doubling.setup_context is base

    def test_a_call_with_wrong_arguments_leaves_no_level(self):
        with funcaot.install(), pytest.raises(funcaot.errors.FuncaotError, match="one_too_many"):
            third_party(X, one_too_many=1)
        assert not torch._C._are_functorch_transforms_active()

    def test_a_function_inside_a_forward_is_intercepted(self):
        class Outer(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                with torch.enable_grad():
                    leaf = x.detach().requires_grad_()
                    ctx.inside = torch.autograd.grad(third_party(leaf).sum(), leaf)[0]
                return vmap(third_party)(x)

            @staticmethod
            def backward(ctx, cotangent):
                return cotangent * ctx.inside

        leaf = X.clone().requires_grad_()
        with funcaot.install():
            Outer.apply(leaf).sum().backward()
        torch.testing.assert_close(leaf.grad, 7 * X)

    def test_intercepting_is_for_this_thread_only(self):
        refused = []

        def other():
            try:
                vmap(third_party)(X)
            except RuntimeError as error:
                refused.append(error)

        with intercepting():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            torch.testing.assert_close(vmap(third_party)(X), X.sin())
        assert len(refused) == 1

    def test_threads_install_and_uninstall_at_will(self):
        with funcaot.install():
            pass  # Forget what captures before this test have left on classes.
        before, failures = original_state(), []

        def work():
            try:
                for _ in range(30):
                    with funcaot.install():
                        result = vmap(grad(lambda x: third_party(x).sum()))(X)
                        torch.testing.assert_close(result, 7 * X)
                    third_party(X)
            except BaseException as error:  # noqa: BLE001  (reported by the test)
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert original_state() == before


class Sin(Function):
    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x, scale):
        return x.sin() * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        return 7 * g * ctx.scale * ctx.saved_tensors[0], None


class TestGraphs:
    def test_a_call_is_one_node(self):
        graph = make_fx(lambda x: Sin.apply(x * 2, 3.0) + 1)(X)
        (node,) = [n for n in graph.graph.nodes if isinstance(n.target, FunctionNode)]
        assert node.target.function is Sin
        assert node.target.__name__ == "Sin"
        assert len(node.args) == 1
        assert "Sin" in graph.code
        torch.testing.assert_close(graph(X), (2 * X).sin() * 3 + 1)
        torch.testing.assert_close(node.target(X), node.target.inline(X))

    def test_the_node_keeps_its_rules_under_later_transforms(self):
        graph = make_fx(lambda x: Sin.apply(x * 2, 3.0).sum())(X)
        torch.testing.assert_close(grad(graph)(X), 7 * 3 * 2 * 2 * X)
        torch.testing.assert_close(vmap(grad(graph))(X), 7 * 3 * 2 * 2 * X)
        leaf = X.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(graph(leaf), leaf)[0], 84 * X)

    @pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
    def test_tracing_modes(self, tracing_mode):
        traced = make_fx(vmap(grad(lambda x: Sin.apply(x, 2.0).sum())), tracing_mode=tracing_mode)
        torch.testing.assert_close(traced(X)(X), 14 * X)

    def test_other_modes_see_the_operations_of_forward(self):
        seen = []

        class Logging(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        with Logging():
            Sin.apply(X, 2.0)
            vmap(lambda x: Sin.apply(x, 2.0))(X)
        assert seen.count("aten.sin.default") == 2

    def test_function_modes_see_the_call(self):
        seen = []

        class Logging(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        with Logging():
            Sin.apply(X, 2.0)
        assert funcaot.custom_function_call in seen


class TestProgram:
    """A stand-in for a compiled program: its derivative needs a residual output."""

    def make(self):
        log = []

        class Augmented(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x):
                log.append("augmented")
                return x.sin(), x.cos()

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.mark_non_differentiable(output[1])
                ctx.save_for_backward(inputs[0], output[1])

            @staticmethod
            def backward(ctx, g, _):
                return g * ctx.saved_tensors[1]

        class Program(torch.autograd.Function):
            generate_vmap_rule = True
            funcaot_program = SimpleNamespace(
                differentiable=lambda function, operands: (Augmented, lambda output: output[0])
            )

            @staticmethod
            def forward(x):
                log.append("plain")
                return x.sin()

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_forward(inputs[0])

            @staticmethod
            def jvp(ctx, t):
                return t * ctx.saved_tensors[0].cos()

        return log, lambda x: funcaot.custom_function_call(Program, x)

    def test_the_value_alone_needs_no_residuals(self):
        log, call = self.make()
        torch.testing.assert_close(call(X), X.sin())
        torch.testing.assert_close(vmap(call)(X), X.sin())
        with torch.no_grad():
            call(X.clone().requires_grad_())
        assert set(log) == {"plain"}

    def test_derivatives_use_the_augmented_class(self):
        log, call = self.make()
        torch.testing.assert_close(grad(lambda x: call(x).sum())(X), X.cos())
        leaf = X.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(call(leaf).sum(), leaf)[0], X.cos())
        torch.testing.assert_close(vmap(grad(lambda x: call(x).sum()))(X), X.cos())
        assert set(log) == {"augmented"}

    def test_forward_mode_is_the_classes_own(self):
        log, call = self.make()
        torch.testing.assert_close(jvp(call, (X,), (X,))[1], X * X.cos())
        assert set(log) == {"plain"}

    def test_a_fused_forward_rule_is_used_when_there_is_one(self):
        def pushed_forward(primals, tangents):
            return [x.sin() for x in primals], [None if t is None else 5 * t for t in tangents]

        class Program(torch.autograd.Function):
            funcaot_program = SimpleNamespace(pushed_forward=pushed_forward)

            @staticmethod
            def forward(x):
                raise AssertionError("not reached")

            @staticmethod
            def setup_context(ctx, inputs, output):
                pass

        def call(x):
            return funcaot.custom_function_call(Program, x)

        (value,), (tangent,) = jvp(call, (X,), (X,))
        torch.testing.assert_close(value, X.sin())
        torch.testing.assert_close(tangent, 5 * X)


class Fails(Function):
    """Raises where it's told to."""

    generate_vmap_rule = True
    generate_jvp_rule = True
    where = "forward"

    @staticmethod
    def forward(x):
        if Fails.where == "forward":
            raise KeyError("forward")
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        if Fails.where == "setup_context":
            raise KeyError("setup_context")

    @staticmethod
    def backward(ctx, g):
        if Fails.where == "backward":
            raise KeyError("backward")
        return 2 * g


@pytest.mark.parametrize("where", ["forward", "setup_context", "backward"])
@pytest.mark.parametrize(
    "transform",
    [
        lambda h: lambda x: vjp(h, x)[1](x),
        lambda h: lambda x: jvp(h, (x,), (x,)),
        lambda h: vmap(lambda x: vjp(h, x)[1](x)),
        lambda h: functionalize(vmap(lambda x: jvp(h, (x,), (x,)))),
        lambda h: make_fx(lambda x: vjp(h, x)[1](x)),
        lambda h: lambda x: h(x.clone().requires_grad_()).sum().backward(),
    ],
    ids=["vjp", "jvp", "vmap_vjp", "functionalize_vmap_jvp", "make_fx", "base"],
)
def test_exceptions_of_user_code_pass_and_leave_nothing_behind(transform, where, monkeypatch):
    monkeypatch.setattr(Fails, "where", where)
    with pytest.raises(KeyError, match=where):
        transform(Fails.apply)(X)
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch._C._functorch.get_single_level_autograd_function_allowed()
    assert torch.is_grad_enabled()
    assert torch._C._is_fwd_grad_enabled()
    monkeypatch.setattr(Fails, "where", "nowhere")
    torch.testing.assert_close(grad(lambda x: Fails.apply(x).sum())(X), torch.full_like(X, 2.0))
