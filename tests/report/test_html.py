"""What notebooks show of reports, lowered calls and checks: well-formed, escaped, complete."""

from html.parser import HTMLParser

import pytest
import torch

import funcaot
from funcaot.report.html import residuals_table
from funcaot.report.words import WORDS
from funcaot.testing import check

VOID = {"br", "meta", "img"}


class Page(HTMLParser):
    """Text, tags and tooltips of a piece of HTML; fails where a tag isn't closed."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.titles, self.text, self.widths = [], [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.titles += [found["title"]] if tag == "abbr" else []
        if found.get("class") == "bar":
            self.widths.append(float(found["style"].split("width:")[1].split("em")[0]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def __str__(self):
        return "".join(self.text)


def energy(x, w):
    return (x @ w).tanh().sum() + x.sin().mul(w.sum()).exp().sum()


def called():
    compiled = funcaot.compile(energy, backend="eager", policy="save_all")
    w = torch.rand(4, 2, requires_grad=True)
    compiled(torch.rand(8, 4, requires_grad=True), w).backward()
    return funcaot.report(compiled)


def test_a_report_shows_graphs_residuals_and_times():
    report = called()
    page = Page(report._repr_html_())
    (entry,) = report.entries
    assert "energy: backend eager, 1 signature(s)" in str(page)
    for residual in entry.residuals:
        assert residual.name in str(page)
        assert residual.reason in str(page)
    assert f"{entry.residual_bytes:,} bytes" in str(page)
    for stage in entry.timings:
        assert stage in str(page)
    # The forward's graph and the backward's are folded, with their code.
    assert page.tags.count("pre") == len(entry.graphs) + len(entry.backwards)
    assert "torch.ops.aten.tanh.default" in str(page)
    assert "torch.ops.aten.tanh_backward.default" in str(page)
    assert set(page.titles) <= set(WORDS.values())


def test_bars_are_as_long_as_bytes():
    (entry,) = called().entries
    sizes = sorted((each.bytes for each in entry.residuals), reverse=True)
    assert len({size for size in sizes if size}) > 1
    widths = Page(residuals_table(entry.residuals)).widths
    assert widths == pytest.approx([12 * size / sizes[0] for size in sizes], abs=0.01)


def test_a_repr_is_one_line():
    report = called()
    assert repr(report) == "<funcaot report of energy: 1 signature(s), 2 graph(s) compiled>"
    kept = f"{report.entries[0].residual_bytes:,} bytes kept"
    assert repr(report.entries[0]).endswith(f"1 graph(s), {kept}>")
    assert "float32[8, 4]" in repr(report.entries[0])


def test_parts_of_a_report_show_themselves():
    (entry,) = called().entries
    assert "float32[8, 4]" in str(Page(entry._repr_html_()))
    assert "torch.ops.aten" in str(Page(entry.graphs[0]._repr_html_()))
    assert "backward for (float32[])" in str(Page(entry.backwards[0]._repr_html_()))


def test_what_users_name_is_escaped():
    def f(x):
        return x * {"<b>&": 2}["<b>&"]

    f.__name__ = "<script>alert(1)</script>"
    compiled = funcaot.compile(f, backend="eager")
    compiled(torch.ones(3))
    shown = funcaot.report(compiled)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "script" not in Page(shown).tags


def test_nothing_compiled_yet():
    report = funcaot.report(funcaot.compile(energy, backend="eager"))
    assert "0 signature(s)" in str(Page(report._repr_html_()))


def test_a_long_graph_is_cut():
    def long(x):
        for _ in range(500):
            x = x.sin()
        return x

    compiled = funcaot.compile(long, backend="eager")
    compiled(torch.ones(3))
    text = str(Page(funcaot.report(compiled)._repr_html_()))
    assert "more lines: see .graph" in text
    assert text.count("aten.sin.default") < 420


def test_a_lowered_call():
    x = torch.empty(8, 4, device="meta")
    lowered = funcaot.lower(energy, x, torch.empty(4, 2, requires_grad=True, device="meta"))
    before = str(Page(lowered._repr_html_()))
    assert str(lowered.cost) in before
    assert "traced when .backward is asked for" in before
    assert "aten.tanh.default" in before
    assert lowered.backward is not None
    after = str(Page(lowered._repr_html_()))
    assert str(lowered.backward_cost) in after
    assert "aten.tanh_backward.default" in after
    assert "residuals" in after


def test_a_lowered_call_without_gradients():
    text = str(Page(funcaot.lower(torch.sin, torch.empty(3, device="meta"))._repr_html_()))
    assert "backward" not in text
    assert "keeps" not in text


class Doubled(funcaot.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 3


def test_a_check():
    result = check(Doubled, torch.rand(3, requires_grad=True, dtype=torch.float64))
    page = Page(result._repr_html_())
    assert "Doubled" in str(page)
    for row in result.rows:
        assert row.name in str(page)
    assert "FAILED" in str(page)


@pytest.mark.parametrize("word", ["signature", "residual", "backward"])
def test_words_have_a_meaning(word):
    assert WORDS[word] in Page(called()._repr_html_()).titles
