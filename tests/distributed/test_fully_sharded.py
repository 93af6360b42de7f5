"""What fully_shard can be asked for, before and after compiling, and what it keeps of its states.

The oracle is one process; with a precision of its own, it is fully_shard itself in eager.
"""

import copy
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import funcaot
from funcaot.distributed import shard
from tests.distributed.cases import ORDERS, Energy, batch, chosen, loss_of, reference, whole
from tests.distributed.ranks import Ranks

_MIXED = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
)
_OFFLOADED = CPUOffloadPolicy(pin_memory=False)

OPTIONS = {
    "resharded": {"reshard_after_forward": True},
    "not resharded": {"reshard_after_forward": False},
    "mixed": {"mp_policy": _MIXED},
    "offloaded": {"offload_policy": _OFFLOADED},
    "mixed, offloaded": {"mp_policy": _MIXED, "offload_policy": _OFFLOADED},
    "accumulated": {},
    "accumulated, not resharded": {"reshard_after_forward": False},
    "cut along columns": {
        "shard_placement_fn": lambda p: Shard(1) if p.shape[1:] == (8,) else None
    },
    "replicated": {},
    "sharded and replicated": {},
}


def _compiled(module):
    return funcaot.compile(module, backend=chosen.backend)


def _units(module, given, compiled=lambda layer: layer):
    for index, layer in enumerate(module.layers):
        if isinstance(layer, nn.Linear):
            module.layers[index] = fully_shard(compiled(layer), **given)
    return fully_shard(module, **given)


WAYS = {
    "eager": lambda module, given: fully_shard(module, **given),
    "before": lambda module, given: fully_shard(_compiled(module), **given),
    "after": lambda module, given: _compiled(fully_shard(module, **given)),
    "units before": lambda module, given: _units(module, given, _compiled),
    "units after": lambda module, given: _compiled(_units(module, given)),
}


def _given(name: str):
    """What fully_shard is asked for; meshes are of the group that is there."""
    if "replicated" not in name:
        return OPTIONS[name]
    shape = (2, 1) if name == "replicated" else (1, 2)
    return {"mesh": dist.init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))}


def _train(model, order, inside, passes=1, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for step in range(steps):
        for index in range(passes):
            model.set_requires_gradient_sync(index == passes - 1)
            given = batch(passes * step + index, dist.get_rank())
            loss = model(*given) if inside else loss_of(model, order, *given)
            loss.backward()
        found.append([whole(parameter.grad).clone() for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return found


def _cells(name: str) -> None:
    passes = 2 if "accumulated" in name else 1
    rtol, atol = (3e-2, 1e-2) if "mixed" in name else (1e-4, 1e-6)
    for order in ORDERS:
        for inside in (False, True):
            expected = reference(order, 3, dist.get_world_size(), passes)
            if "mixed" in name and (inside or order == "first"):
                eager = WAYS["eager"](Energy(order, inside=inside), _given(name))
                expected = _train(eager, order, inside)
            for way in ("before", "after", "units before", "units after"):
                model = WAYS[way](Energy(order, inside=inside), _given(name))
                cell = f"{name}, {way}, {order}, inside={inside}"
                if order != "first" and ("units" in way or not inside):
                    with pytest.raises(
                        funcaot.errors.UnsupportedError, match=r"funcaot\.distributed\.shard"
                    ):
                        _train(model, order, inside, passes)
                    continue
                found = _train(model, order, inside, passes)
                said = lambda message, cell=cell: f"{cell}: {message}"  # noqa: E731
                torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=said)
                assert all(type(each).__name__ == "DTensor" for each in model.parameters())


@pytest.mark.parametrize("name", OPTIONS)
def test_as_in_one_process(ranks: Ranks, name):
    ranks.run(_cells, name, deadline=200)


def _step(model, optimizer, step: int):
    loss_of(model, "first", *batch(step, dist.get_rank())).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return [whole(norm), *[whole(each).clone() for each in model.parameters()]]


def _made(way: str):
    model = WAYS[way](Energy(), {})
    return model, torch.optim.Adam(model.parameters(), 0.1)


def _by_state_dict(model, optimizer, way: str):
    """Another model that goes on from the first one's state."""
    state, moments = model.state_dict(), copy.deepcopy(optimizer.state_dict())
    assert all(type(value).__name__ == "DTensor" for value in state.values())
    other, another = _made(way)
    _step(other, another, 9)
    other.load_state_dict(state)
    another.load_state_dict(moments)
    return list(state), other, another


def _by_checkpoint(model, optimizer, way: str):
    """The same through files."""
    with tempfile.TemporaryDirectory() as mine:
        places = [mine]
        dist.broadcast_object_list(places)
        parts = get_state_dict(model, optimizer)
        checkpoint.save(dict(zip("mo", parts, strict=True)), checkpoint_id=places[0])
        other, another = _made(way)
        _step(other, another, 9)
        read = dict(zip("mo", get_state_dict(other, another), strict=True))
        checkpoint.load(read, checkpoint_id=places[0])
        dist.barrier()
    set_state_dict(other, another, model_state_dict=read["m"], optim_state_dict=read["o"])
    return list(parts[0]), other, another


def _by_rank_0(model, optimizer, way: str):
    """The whole state, which rank 0 reads and sends."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    other, another = _made(way)
    _step(other, another, 9)
    set_model_state_dict(
        other,
        state if dist.get_rank() == 0 else {},
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    another.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return list(other.state_dict()), other, another


STATES = {
    "state_dict": _by_state_dict,
    "checkpoint": _by_checkpoint,
    "rank 0": _by_rank_0,
}


def _goes_on(name: str) -> None:
    for way in ("before", "after", "units before", "units after"):
        model, optimizer = _made(way)
        for step in range(2):
            _step(model, optimizer, step)
        names, other, another = STATES[name](model, optimizer, way)
        assert names == list(Energy().state_dict()), way
        expected = [_step(model, optimizer, step) for step in (2, 3)]
        found = [_step(other, another, step) for step in (2, 3)]
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", STATES)
def test_states(ranks: Ranks, name):
    ranks.run(_goes_on, name)


def _of_all(ways, steps, path, action):
    """Train on the same batches on any number of ranks, and write or read the state in between."""
    found = {}
    for way in ways:
        if way == "shard":
            model = shard(Energy())
            optimizer = torch.optim.Adam(model.parameters(), 0.1)
            step = _compiled(lambda *given, model=model: loss_of(model, "first", *given))
        else:
            model, optimizer = _made(way)
            step = lambda *given, model=model: loss_of(model, "first", *given)  # noqa: E731
        if action == "read":
            step(*batch(9, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            state = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
            checkpoint.load(state, checkpoint_id=f"{path}/{way}")
            set_state_dict(
                model, optimizer, model_state_dict=state["m"], optim_state_dict=state["o"]
            )
        for index in steps:
            step(*batch(index, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if action == "write":
            state = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
            checkpoint.save(state, checkpoint_id=f"{path}/{way}")
        found[way] = [whole(each.detach()) for each in model.parameters()]
    return found


def test_a_checkpoint_is_read_by_another_number_of_ranks(ranks: Ranks, tmp_path):
    ways = ("after", "units before", "shard")
    plain = Energy()
    optimizer = torch.optim.Adam(plain.parameters(), 0.1)
    for index in range(4):
        loss_of(plain, "first", *batch(index, 0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = [each.detach() for each in plain.parameters()]
    one = Ranks(1)
    try:
        for few, many, path in ((one, ranks, tmp_path / "up"), (ranks, one, tmp_path / "down")):
            few.run(_of_all, ways, (0, 1), str(path), "write")
            for found in many.run(_of_all, ways, (2, 3), str(path), "read"):
                for way in ways:
                    said = lambda message, way=way: f"{path.name}, {way}: {message}"  # noqa: B023, E731
                    torch.testing.assert_close(found[way], expected, rtol=1e-4, atol=1e-5, msg=said)
    finally:
        one.stop()
