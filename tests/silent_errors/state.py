"""Python state that changes between calls or within one."""

from __future__ import annotations

import torch
from torch import nn

from tests.silent_errors.records import Group, numbers

GROUP = Group("Python state", [])
case = GROUP.case


class Settings:
    """A class used as a namespace."""

    factor = 1.0
    kept: list = []


@case("A class attribute that changed between calls keeps its first value.", issue=176851)
def class_attribute_that_changes(compile):
    compiled = compile(lambda x: x * Settings.factor)

    def call(step):
        Settings.factor = 1.0 + 9 * step
        return compiled(numbers(3, step=step))

    return call


@case("What is appended to a list of a class is lost.", issue=169253)
def list_of_a_class(compile):
    class Model(nn.Module):
        items: list = []

        def forward(self, x):
            Model.items.append(x * 2)
            return x + len(Model.items)

    model = Model()
    compiled = compile(model)

    def call(step):
        y = compiled(numbers(2, step=step))
        return y, len(Model.items), [item.clone() for item in Model.items]

    return call


@case("A tensor that was assigned anew between calls is the first one.", issue=115774)
def attribute_that_is_assigned_anew(compile):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = torch.zeros(3)

        def forward(self, x, position):
            self.cache[position] = x
            return self.cache * 1

    model = Model()
    compiled = compile(model)

    def call(step):
        if step == 1:
            model.cache = torch.zeros(3)
        y = compiled(torch.tensor(2.0 + step), torch.tensor(step))
        return y, model.cache.clone()

    return call


@case("A dictionary that a method of a local class fills stays empty.", issue=197896)
def closure_filled_by_a_local_class(compile):
    kept = {}

    def function(x):
        class Helper:
            def keep(self, value):
                kept["last"] = value

        y = x * 2
        Helper().keep(y + 1)
        return y

    compiled = compile(function)

    def call(step):
        y = compiled(numbers(2, step=step))
        return y, kept["last"].clone(), kept["last"] is y

    return call


@case("Which of two objects is which is decided once.", issue=196173)
def identity_of_objects(compile):
    class Node:
        def __init__(self, scale):
            self.scale = scale
            self.seen = None

    first, second = Node(2.0), Node(3.0)
    chosen = {"node": first}

    def function(x):
        node = chosen["node"]
        node.seen = x * node.scale
        return x + 1 if node is first else x - 1

    compiled = compile(function)

    def call(step):
        chosen["node"] = second if step == 1 else first
        y = compiled(numbers(2, step=step))
        return y, *(None if n.seen is None else n.seen.clone() for n in (first, second))

    return call


@case("A list given as an argument doesn't get what is appended to it.", issue=169253)
def list_given_as_an_argument(compile):
    def function(x, found):
        found.append(x.sin())
        found[0] = found[0] + 1
        return len(found)

    compiled = compile(function)

    def call(step):
        found = [numbers(2, step=step)] * (1 + step % 2)
        return compiled(numbers(2, step=step, seed=1), found), [f.clone() for f in found]

    return call


@case("A module in train mode is run as in eval mode.", issue=117265)
def train_and_eval(compile):
    norm = nn.BatchNorm1d(3)
    compiled = compile(nn.Sequential(norm))

    def call(step):
        norm.train(step != 1)
        y = compiled(numbers(4, 3, step=step))
        return y, norm.running_mean.clone()

    return call


@case("A submodule that is replaced is still the first one.", issue=117265)
def a_submodule_that_is_replaced(compile):
    model = nn.Sequential(nn.Tanh(), nn.Identity())
    compiled = compile(model)

    def call(step):
        if step == 1:
            model[0] = nn.ReLU()
        if step == 2:
            model[1] = nn.Hardtanh(-0.5, 0.5)
        return compiled(numbers(5, step=step))

    return call


@case("A function of the module that a global names is the first one.", issue=None)
def a_helper_that_is_replaced(compile):
    helpers = {"act": torch.relu}
    compiled = compile(lambda x: helpers["act"](x))

    def call(step):
        helpers["act"] = (torch.relu, torch.sin, torch.cos)[step]
        return compiled(numbers(4, step=step))

    return call


@case("The default dtype is that of the first call.", issue=None)
def default_dtype_that_changes(compile):
    compiled = compile(lambda x: x + torch.ones(2) * 0.1)

    def call(step):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if step == 1 else torch.float32)
        try:
            return compiled(numbers(2, step=step))
        finally:
            torch.set_default_dtype(before)

    return call


@case("Weights that an optimizer changed are those of the first call.", issue=115774)
def weights_after_a_step(compile):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    compiled = compile(model)

    def call(step):
        optimizer.zero_grad()
        loss = compiled(numbers(4, 3, step=step)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), model.weight.detach().clone()

    return call
