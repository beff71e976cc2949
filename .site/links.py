"""Which links of a folder of HTML files lead nowhere: to no file of it, or to no anchor of one.

Owns that check alone, and needs the standard library alone. Never opens a connection: links to
other sites are left alone.
"""

from __future__ import annotations

import functools
import html.parser
import os
import pathlib
import re
import urllib.parse


class _AnchorReader(html.parser.HTMLParser):
    """The anchors that a file has, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element is called, and what it names."""
        for name, value in attrs:
            if not value:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src"):
                self.targets.append(value)


@functools.cache
def read(path: pathlib.Path) -> _AnchorReader:
    """An HTML file's anchors and links."""
    reader = _AnchorReader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def broken(folder: pathlib.Path) -> list[str]:
    """A line for each link that leads nowhere."""
    read.cache_clear()
    wrong = []
    for page in sorted(folder.rglob("*.html")):
        for target in sorted(set(read(page).targets)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            why = _why_broken(folder, page, target)
            if why:
                wrong.append(f"{page.relative_to(folder)}: {target}: {why}")
    return wrong


def _why_broken(folder: pathlib.Path, page: pathlib.Path, target: str) -> str:
    name, _, anchor = target.partition("#")
    name = urllib.parse.unquote(name.partition("?")[0])
    path = pathlib.Path(os.path.normpath(page.parent / name)) if name else page
    if not path.is_relative_to(folder) or not path.is_file():
        return "there is no such file in the site"
    if anchor and path.suffix == ".html" and urllib.parse.unquote(anchor) not in read(path).anchors:
        return "that file has no such anchor"
    return ""
