"""What mkdocs.yml cannot say: pages that are kept elsewhere in the repository, and links that leave docs/.

The README of each distribution becomes a page, so that a new folder is in the site without an edit here or in mkdocs.yml.
A link to a file that is not a page becomes its name: the site has no copy of the sources.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
_LINK: Final = re.compile(r"(!?)\[([^]]+)\]\(([^()#\s]*)(#[^()\s]*)?\)")
_FOLDERS: Final = (("core", "reference"), ("libs/*", "reference"), ("plugins/*", "reference"), ("engines/*", "engines"))


def pages_elsewhere() -> dict[str, Path]:
    """Where pages of the site come from that are not in docs/: their place in the site, and their source."""
    pages = {"operate/deploy.md": ROOT / "deploy/README.md", "internals/contributing.md": ROOT / "CONTRIBUTING.md"}
    for folder, section in _FOLDERS:
        for readme in sorted(ROOT.glob(f"{folder}/README.md")):
            if not readme.parent.name.startswith("_"):
                pages[f"{section}/distributions/{readme.parent.name}.md"] = readme
    return pages


def source_of(page: str) -> Path:
    """The file that a page of the site is made of."""
    return pages_elsewhere().get(page, ROOT / "docs" / page)


def linked(text: str, page: str) -> str:
    """The page's text with links as the site needs them."""
    sources = {path: name for name, path in pages_elsewhere().items()}
    source = source_of(page)

    def link(found: re.Match[str]) -> str:
        mark, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = (source.parent / target).resolve()
        if (path / "README.md").is_file():
            path = path / "README.md"
        if path in sources:
            name = sources[path]
        elif path.is_relative_to(ROOT / "docs"):
            name = str(path.relative_to(ROOT / "docs"))
        else:
            return f"{words} (`{path.relative_to(ROOT)}`)" if path.exists() else found[0]
        return f"{mark}[{words}]({os.path.relpath(name, Path(page).parent)}{anchor})"

    return _LINK.sub(link, text)


def unlisted(nav: Sequence[Any]) -> dict[str, list[str]]:
    """Pages that mkdocs.yml does not list, by the folder that they are in: distributions, and what was added since."""
    listed = set(listed_pages(nav))
    names = {*pages_elsewhere(), *(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("*/**/*.md"))}
    return _by_folder(sorted(names - listed))


def listed_pages(nav: Sequence[Any]) -> Iterator[str]:
    """The pages that a navigation names, in order."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from listed_pages(inner if isinstance(inner, list) else [inner])


def complete(nav: Sequence[Any]) -> None:
    """Put the pages that a navigation does not list at the end of their section, in place."""
    missing = unlisted(nav)
    for section in nav:
        for title, entries in section.items() if isinstance(section, dict) else ():
            if isinstance(entries, list):
                entries += missing.get(title.lower(), [])
                if own := missing.get(f"{title.lower()}/distributions"):
                    entries.append({"Distributions": own})


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation."""
    complete(config.nav or [])
    return config


def _by_folder(names: Sequence[str]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault(str(Path(name).parent), []).append(name)
    return folders


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are kept elsewhere."""
    from mkdocs.structure.files import File  # only in the environment of the site

    for name, path in pages_elsewhere().items():
        files.append(File.generated(config, name, content=path.read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return linked(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Warn, and so fail a strict build, where a page of an API shows none of its names."""
    if page.file.src_uri.startswith("reference/python-") and "doc-heading" not in html:
        logging.getLogger("mkdocs.hooks").warning("%s shows no name of the package", page.file.src_uri)
    return html
