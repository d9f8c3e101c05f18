"""The pages of the site: links to the source name what is there, every formula has one, and no page is left out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from docs.update_readme import BLOCK
from tools.site import SOURCE_LINK, as_references, made_pages, source_links

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
FORMULAS = ("how-it-works.md",)


@cache
def defined(module: str) -> set[str]:
    """The names of a module, and those of its classes behind a dot."""
    path = ROOT / "src" / module.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
    found = set(_names(tree))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for name in _names(node)}
    return found


def _names(tree: ast.Module | ast.ClassDef) -> list[str]:
    names = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_links_to_the_source_name_what_is_there(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for module, name in source_links(text):
        assert (ROOT / "src" / module.replace(".", "/")).with_suffix(".py").exists() or not name, module
        assert not name or name in defined(module), f"{page}: {module} has no {name}"
    assert text.count("](../src/") == len(SOURCE_LINK.findall(text)), "a link to the source of another form"


@pytest.mark.parametrize("page", FORMULAS)
def test_every_formula_is_linked_to_its_function(page: str) -> None:
    rows = [line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    formulas = [row for row in rows if not row.startswith(("| quantity", "| what | formula", "| what | how"))]
    assert len(formulas) > 30
    for row in formulas:
        assert source_links(row.split(" | ")[-1]), row


def test_pages_that_are_made_link_to_pages_that_are_there() -> None:
    made = made_pages()
    for name, text in made.items():
        if not name.startswith("reference/"):
            for target in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", as_references(text)):
                assert target in made or (DOCS / target).exists() or target.startswith("adr/"), f"{name}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r": ([\w-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted({*PAGES, "contributing.md", "changelog.md", "security.md", "decisions.md"})


def test_the_cookbook_answers_twelve_questions_each_by_a_command() -> None:
    text = (DOCS / "cookbook.md").read_text(encoding="utf-8")
    questions = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(questions) == 12
    for question in questions:
        assert question.partition("\n")[0].endswith("?")
        assert BLOCK.search(question), question.partition("\n")[0]
