"""Pictures of reports: the right values at the right size, by Graphviz, matplotlib or neither."""

import sys
import weakref
from xml.etree import ElementTree

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import funcaot
from funcaot.errors import FuncaotError
from funcaot.report.draw import curve_of, dot_of, stages_of
from funcaot.report.memory import live_bytes
from funcaot.report.picture import parts_of, picture_of


def energy(x, w):
    hidden = (x @ w).tanh()
    return (hidden * hidden.exp()).sum()


def report_of(function=energy, order=1, **options):
    compiled = funcaot.compile(function, backend="eager", **options)
    x = torch.rand(8, 4, requires_grad=True)
    w = torch.rand(4, 2, requires_grad=True)
    result = compiled(x, w)
    for _ in range(order):
        (gradient,) = torch.autograd.grad(result, x, create_graph=order > 1)
        result = gradient.square().sum()
    return funcaot.report(compiled)


def test_kept_values_are_between_the_graphs_that_make_and_use_them():
    (entry,) = report_of(policy="save_all").entries
    picture = picture_of(entry)
    kept = {box.label: box for box in picture.boxes.values() if box.kind == "kept"}
    computed = {each.name: each for each in entry.residuals if each.origin == "intermediate"}
    assert computed
    assert set(computed) <= set(kept)
    assert {name: kept[name].bytes for name in computed} == {
        name: each.bytes for name, each in computed.items()
    }
    for name in computed:
        (made,) = [source for source, user in picture.arrows if user == f"kept.{name}"]
        assert made == f"0.{name}"
        assert [user for source, user in picture.arrows if source == f"kept.{name}"]
    assert all(source in picture.boxes and user in picture.boxes for source, user in picture.arrows)


def test_rows_go_down():
    (entry,) = report_of().entries
    picture = picture_of(entry)
    for source, user in picture.arrows:
        if "kept" not in source + user:
            assert picture.boxes[source].row < picture.boxes[user].row


def test_second_order_has_a_graph_for_each_derivative():
    (entry,) = report_of(order=2).entries
    titles = [part.title for part in parts_of(entry)]
    assert len(titles) >= 3
    assert titles[0] == "energy"


class Alive(TorchDispatchMode):
    """Bytes of the storages that ops made and that are alive after each op."""

    def __init__(self):
        super().__init__()
        self.storages, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if tensor._is_view() or func.is_view:
                continue
            key = len(self.storages)
            self.storages[key] = tensor.untyped_storage().nbytes()
            weakref.finalize(tensor.untyped_storage(), self.storages.__setitem__, key, 0)
        self.most = max(self.most, sum(self.storages.values()))
        return result


def test_memory_is_what_the_graph_takes():
    """The oracle runs the graph, op by op, and counts what is alive."""
    (entry,) = report_of(policy="save_all").entries
    graph = parts_of(entry)[0].graph
    arguments = [
        torch.rand(tuple(node.meta["val"].shape))
        for node in graph.graph.nodes
        if node.op == "placeholder"
    ]
    alive = Alive()
    with torch.no_grad(), alive:
        results = graph(*arguments)
    assert alive.most == max(live_bytes(list(graph.graph.nodes)))
    del results


def test_what_is_kept_counts_while_the_backward_runs():
    (entry,) = report_of(policy="save_all").entries
    (_, forward), (_, backward) = curve_of(entry)
    assert len(forward) == sum(
        1 for node in entry.graphs[-1].graph.graph.nodes if node.op == "call_function"
    )
    assert min(backward) >= entry.residual_bytes
    assert max(forward) >= entry.residual_bytes


def test_the_timeline_has_every_stage_of_every_program():
    report = report_of()
    (entry,) = report.entries
    stages = stages_of(report)
    expected = sum(entry.timings.values())
    expected += sum(sum(graph.timings.values()) for graph in entry.graphs)
    for backward in entry.backwards:
        expected += sum(backward.timings.values())
        expected += sum(sum(graph.timings.values()) for graph in backward.graphs)
    assert sum(sum(seconds.values()) for _, seconds in stages) == pytest.approx(expected)


@pytest.mark.parametrize("what", ["graphs", "memory", "timeline"])
@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_files(what, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    path = report_of(order=2).draw(tmp_path / f"picture.{suffix}", what=what)
    content = path.read_bytes()
    if suffix == "svg":
        assert ElementTree.fromstring(content).tag.endswith("svg")
        # No rectangle behind everything, so that a dark page stays dark.
        assert b'id="patch_1"' not in content or b"opacity: 0" in content
    else:
        assert content.startswith({"png": b"\x89PNG", "pdf": b"%PDF"}[suffix])


def test_the_language_of_graphviz(tmp_path):
    report = report_of()
    text = report.draw(tmp_path / "picture.dot").read_text()
    assert text == dot_of(picture_of(report.entries[-1]))
    assert text.count("{") == text.count("}")
    assert "subgraph cluster_1" in text


def test_names_are_quoted():
    def f(x):
        return x * 2

    f.__name__ = 'a "quoted" \\ name'
    compiled = funcaot.compile(f, backend="eager")
    compiled(torch.ones(3))
    text = dot_of(picture_of(funcaot.report(compiled).entries[0]))
    assert 'label="a \\"quoted\\" \\\\ name"' in text


def test_graphviz_is_used_where_it_is(tmp_path, monkeypatch):
    dot = tmp_path / "dot"
    dot.write_text('#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done\ncat > "$2"\n')
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    path = report_of().draw(tmp_path / "picture.svg")
    assert path.read_text().startswith("digraph")


def test_functions_are_boxes_with_their_names():
    class Tripled(funcaot.Function):
        @staticmethod
        def forward(x):
            return x * 3

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 3

    compiled = funcaot.compile(Tripled.apply, backend="eager")
    compiled(torch.ones(3))
    labels = [box.label for box in picture_of(funcaot.report(compiled).entries[0]).boxes.values()]
    assert any("Tripled" in label for label in labels)


def test_open_sizes():
    compiled = funcaot.compile(lambda x: x.sin().sum(), backend="eager", dynamic=True)
    compiled(torch.rand(5, requires_grad=True)).backward()
    entry = funcaot.report(compiled).entries[0]
    assert any("s" in box.shape.partition("[")[2] for box in picture_of(entry).boxes.values())
    assert max(max(steps) for _, steps in curve_of(entry)) >= 20


def test_nothing_to_draw(tmp_path):
    report = funcaot.report(funcaot.compile(energy, backend="eager"))
    with pytest.raises(FuncaotError, match="call the function first"):
        report.draw(tmp_path / "picture.svg")
    with pytest.raises(FuncaotError, match=r"graphs.*memory.*timeline"):
        report_of().draw(tmp_path / "picture.svg", what="colours")


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    report = report_of()
    with pytest.raises(FuncaotError, match=r"funcaot\[draw\]"):
        report.draw(tmp_path / "picture.svg", what="memory")
    report.draw(tmp_path / "picture.dot")


def test_an_unknown_kind_of_file(tmp_path):
    with pytest.raises(FuncaotError, match=r"\.svg, \.png, \.pdf"):
        report_of().draw(tmp_path / "picture.nothing", what="memory")
