"""The epilogue's plan, as text, for each kind of effect."""

import torch
from expecttest import TestCase

import funcaot


def plan(function, *inputs, grad_mode=True):
    """The plan of a call with these inputs."""
    compiled = funcaot.compile(function, backend="eager")
    with torch.set_grad_enabled(grad_mode):
        compiled(*inputs)
    return str(compiled.entries[0].effects)


def tracked(*shape):
    """A tensor that isn't a leaf and requires grad."""
    return torch.ones(*shape, requires_grad=True) * 1


class Plans(TestCase):
    def test_data_of_an_input(self):
        self.assertExpectedInline(
            plan(lambda x: x.mul_(2).add_(1), torch.ones(3)),
            """\
input 0: = result 0, version +2
output 0: input 0""",
        )

    def test_data_with_a_gradient(self):
        self.assertExpectedInline(
            plan(lambda x, y: x.mul_(y), torch.ones(3), tracked(3)),
            """\
input 0: = result 0 with its gradient, version +1
output 0: input 0""",
        )

    def test_data_that_autograd_does_not_see(self):
        self.assertExpectedInline(
            plan(lambda x: (x.data.mul_(2), x * 3)[1], tracked(3)),
            """\
input 0: = result 1 by .data
output 0: result 0""",
        )

    def test_a_view_of_an_input(self):
        self.assertExpectedInline(
            plan(lambda x: (x, x[1], x.t().view(-1)), torch.ones(2, 1)),
            """\
output 0: input 0
output 1: input 0.select(0, 1)
output 2: input 0.t().view([-1])""",
        )

    def test_metadata(self):
        self.assertExpectedInline(
            plan(lambda x: x.mul_(2).t_(), torch.ones(2, 3)),
            """\
input 0: = result 0, shape [3, 2] stride [1, 3], version +2
output 0: input 0""",
        )

    def test_resize(self):
        self.assertExpectedInline(
            plan(lambda x: x.resize_(2), torch.ones(2, 3)),
            """\
input 0: shape [2] stride [1] resized, version +1
output 0: input 0""",
        )

    def test_another_storage(self):
        self.assertExpectedInline(
            plan(lambda x, y: x.set_(y), torch.ones(3), torch.ones(2, 2)),
            """\
input 0: set to input 1, version +1
output 0: input 0""",
        )

    def test_attributes(self):
        self.assertExpectedInline(
            plan(lambda x, y: (x.requires_grad_(), y.detach_()), torch.ones(3), tracked(3)),
            """\
input 0: requires_grad_ before the call
input 1: detach_ after the call
output 0: input 0
output 1: input 1""",
        )

    def test_a_region_with_two_views(self):
        base = tracked(8)
        self.assertExpectedInline(
            plan(lambda x, y: (x.mul_(2), y + 1), base[:4], base[2:6]),
            """\
inputs 0, 1 share float32[8]
shared memory 2: = result 1
input 3: = result 2 with its gradient, version +1
output 0: input 0
output 1: result 0""",
        )

    def test_a_region_with_two_dtypes(self):
        base = torch.ones(8)
        self.assertExpectedInline(
            plan(lambda x, y: x.mul_(2) + y, base[:4], base[4:].view(torch.int32)),
            """\
input 0: = result 1, version +1
output 0: result 0""",
        )
        self.assertExpectedInline(
            plan(lambda x, y: x.mul_(2) + y, base[:4], base[2:6].view(torch.int32)),
            """\
inputs 0, 1 share uint8[28]
shared memory 2: = result 1
input 3: version +1
output 0: result 0""",
        )

    def test_a_place_in_a_storage(self):
        self.assertExpectedInline(
            plan(lambda x: x.as_strided((2,), (1,), 0) * 2, torch.ones(8)[3:5]),
            """output 0: result 0""",
        )

    def test_a_detached_alias(self):
        self.assertExpectedInline(
            plan(lambda x: (x.detach(), x.data[1:]), tracked(3)),
            """\
output 0: input 0.detach
output 1: (input 0.data).slice(0, 1, 9223372036854775807)""",
        )

    def test_views_of_an_intermediate(self):
        def function(x):
            y = x.sin()
            return y[0], y, y[0].detach(), y.unbind(0)[1]

        self.assertExpectedInline(
            plan(function, tracked(2, 3)),
            """\
output 0: result 0.select(0, 0)
output 1: result 0
output 2: result 0.detach.select(0, 0) (no_grad)
output 3: result 0.unbind()[1]""",
        )

    def test_parts_of_an_intermediate_alone(self):
        def function(x):
            y = x.sin().detach()
            return y[0], y[1]

        self.assertExpectedInline(
            plan(function, tracked(2, 3)),
            """\
output 0: result 0.select(0, 0)
output 1: result 0.select(0, 1)""",
        )

    def test_one_object_twice_and_what_is_no_tensor(self):
        def function(x):
            y = x.sin()
            view = y[0]
            return y, y, view, view, 7

        self.assertExpectedInline(
            plan(function, torch.ones(2)),
            """\
output 0: result 0
output 1: result 0
output 2: result 0.select(0, 0)
output 3: result 0.select(0, 0)
output 4: 7""",
        )

    def test_random_state_is_no_part_of_the_plan(self):
        # The graph draws by itself, so the generator moves as it runs.
        compiled = funcaot.compile(lambda x: x.normal_(), backend="eager")
        compiled(torch.ones(3))
        (entry,) = compiled.entries
        self.assertExpectedInline(
            str(entry.effects),
            """\
input 0: = result 0, version +1
output 0: input 0""",
        )
        drawn = [node.target for node in entry.functions.plain.program.module.graph.nodes]
        assert torch.ops.aten.normal_functional.default in drawn
