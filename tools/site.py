"""What the site has besides the pages of ``docs``: a hook of MkDocs (``mkdocs.yml``, ``make docs``).

Links to the source (``../src/astra/cost/step.py#seconds``) become links to the function's page, which is made for every
module that is linked to; a name that is not there fails the strict build. Commands of blocks marked ``run`` are run,
and what they print is shown. The contributing guide, the changelog, the security policy and the decisions become pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from docs.update_readme import filled_in

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
EXECUTED: Final = ("cookbook.md",)
SOURCE_LINK: Final = re.compile(r"\[(?P<text>[^\]]+)\]\(\.\./src/(?P<path>astra/[\w/]+)\.py(?:#(?P<name>[\w.]+))?\)")
PAGES: Final = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
REFERENCE: Final = "reference"
IN_API: Final = {"astra.api"}  # whose functions docs/api.md has


def source_links(text: str) -> list[tuple[str, str]]:
    """The modules and names that a page links to in the source."""
    return [(_module(found["path"]), found["name"] or "") for found in SOURCE_LINK.finditer(text)]


def as_references(text: str) -> str:
    """A page whose links to the source are links to the pages of its functions."""
    return SOURCE_LINK.sub(
        lambda found: f"[{found['text']}][{_module(found['path'])}{'.' + found['name'] if found['name'] else ''}]", text
    )


def from_the_root(text: str) -> str:
    """A page of the root as one of ``docs``: links to ``docs/`` are to pages beside it."""
    text = re.sub(r"\]\((?:\./)?src/", "](../src/", text.replace("](docs/", "]("))
    for page, name in PAGES.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text


def decisions() -> str:
    """The decisions, one after another."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((DOCS / "adr").glob("*.md"))]
    lower = [re.sub(r"^(#+) ", r"#\1 ", text, flags=re.MULTILINE).replace("](../", "](") for text in texts]
    lower = [re.sub(r"\[(\d+)\]\(\1-[\w-]+\.md\)", r"\1", text) for text in lower]  # they are all on one page
    return "# Decisions\n\nWhy things are as they are, in the order they were decided.\n\n" + "\n\n".join(lower)


def made_pages() -> dict[str, str]:
    """Pages that are made of something else, by name."""
    pages = {page: from_the_root((ROOT / name).read_text(encoding="utf-8")) for page, name in PAGES.items()}
    pages["decisions.md"] = decisions()
    texts = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
    linked = {module for text in (*texts, *pages.values()) for module, _ in source_links(text)}
    for module in sorted(linked - IN_API):
        pages[f"{REFERENCE}/{module}.md"] = f"---\nsearch:\n  exclude: true\n---\n# {module}\n\n::: {module}\n"
    return pages


def _module(path: str) -> str:
    return path.removesuffix("/__init__").replace("/", ".")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages that are made; the decisions are one page, not one each."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - only where the site is built

    for name in [file.src_uri for file in files if file.src_uri.startswith("adr/")]:
        files.remove(files.get_file_from_path(name))
    for name, text in made_pages().items():
        made = File.generated(config, name, content=text)
        if name.startswith(REFERENCE):
            from mkdocs.structure.files import InclusionLevel  # noqa: PLC0415

            made.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Run what is to be run, and turn links to the source into links to pages."""
    if page.file.src_uri in EXECUTED:
        markdown = filled_in(markdown)
    markdown = re.sub(r"\]\(adr/(\d+)[^)]*\)", r"](decisions.md)", markdown)
    return as_references(markdown)
