"""Pages that are made of other files: each row of the limits once, under a heading."""

import re
import tomllib
from pathlib import Path

import pytest

from funcaot._torch.patch_table import PATCHES
from funcaot.report.words import WORDS
from scripts import docs_pages

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TABLE = (DOCS / "limits.md").read_text()
PAGES = tomllib.loads((DOCS / "situations.toml").read_text())["page"]


def test_each_row_of_the_limits_is_on_one_page():
    rows = list(docs_pages.limits(TABLE))
    # As many as there are lines of tables without heads.
    lines = [line for line in TABLE.splitlines() if line.startswith("| ")]
    assert len(rows) == len(lines) - lines.count("| What | What happens | What to do |")
    found = docs_pages.situations(TABLE, PAGES)
    placed = [limit for page in found.values() for _, limit in page]
    assert sorted(limit.what for limit in placed) == sorted(limit.what for limit in rows)
    for page in PAGES:
        assert all(limit.section == page["section"] for _, limit in found[page["name"]])


def test_most_rows_have_a_heading_that_people_search():
    found = docs_pages.situations(TABLE, PAGES)
    placed = [item for page in found.values() for item in page]
    own = [heading for heading, limit in placed if heading != limit.what]
    assert len(own) >= 0.9 * len(placed)
    assert len(set(own)) == len(own)


def test_a_row_without_a_heading_gets_its_own_words():
    table = "## Artifacts\n\n| What | What happens | What to do |\n|---|---|---|\n| New | a | b |\n"
    found = docs_pages.situations(table, PAGES)
    assert found["limits-artifacts"] == [
        ("New", docs_pages.Limit(what="New", happens="a", remedy="b", section="Artifacts"))
    ]


def test_texts_of_rows_stay():
    found = docs_pages.situations(TABLE, PAGES)
    for page in PAGES:
        text = docs_pages.limit_page(page, found[page["name"]]).replace("](../", "](")
        for _, limit in found[page["name"]]:
            for cell in (limit.happens, limit.remedy):
                assert cell in text


def test_links_lead_one_folder_up():
    given = "[a](effects.md#x) [b](https://c.d) [e](#f)"
    assert docs_pages.one_folder_up(given) == "[a](../effects.md#x) [b](https://c.d) [e](#f)"


def test_every_change_to_torch_is_listed():
    page = docs_pages.patches_page()
    assert all(f"| `{patch.name}` |" in page for patch in PATCHES)


def test_the_glossary_has_the_words_of_reports():
    text = (DOCS / "glossary.md").read_text()
    terms = dict(re.findall(r"^(\S.*)\n((?:    .*\n)+)", text, re.MULTILINE))
    meanings = {word: " ".join(meaning.split()) for word, meaning in terms.items()}
    assert {word: meanings.get(word) for word in WORDS} == WORDS


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_pages_that_are_linked_exist(page):
    made = {f"generated/{each['name']}.md" for each in PAGES} | {"generated/patches.md"}
    made |= {f"generated/tutorial-{path.stem}.md" for path in DOCS.glob("tutorials/*.ipynb")}
    links = re.findall(r"\]\((?![a-z]+:)([^)#\s]+)", page.read_text())
    assert [link for link in links if link not in made and not (DOCS / link).exists()] == []
