"""The site: the project's pages and a reference of the public names, in ``build/site``.

``make site`` runs this. Pages are rendered by markdown-it, the reference by pdoc; a link that leads
nowhere fails the build (links.py). Owns where each page lies in the site and what links of pages
become there. Never documents what is not public: dir() of the public modules says what is.
"""

from __future__ import annotations

import argparse
import builtins
import html
import importlib
import os
import pathlib
import re
import shutil
import string
import sys
import textwrap
import types
import warnings
from collections.abc import Iterator, Sequence

import links
import pdoc.doc
import pdoc.docstrings
import pdoc.render
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
MODULES = ("", "amp", "arena", "debug", "errors", "nn", "optim", "serve")  # in shmgpu, itself first
LEFT_OUT = {"build", "dist", "node_modules"}  # built, or written by others
# What calls return: users get these classes, and never call them.
NOT_CONSTRUCTED = """
    shmgpu.Bound shmgpu.Block shmgpu.CallFuture shmgpu.Data shmgpu.Function shmgpu.Helper
    shmgpu.Membership shmgpu.Session shmgpu.Tensor shmgpu.arena.Block shmgpu.serve.Model
""".split()
# What signatures say of classes that are not public, where users know another name for it.
KNOWN_AS = {
    "shmgpu.ops.graph.Node": "Tensor",
    "shmgpu.tensors.elements.Readable": "Tensor",
    "shmgpu.tensors.operands.Shown": "Tensor",
    "shmgpu.function_table.DeclaredFunction": "Function",
}
# Names that pages use of other things, too: to be meant here, they need their module before them.
AMBIGUOUS = {"Tensor", *dir(builtins)}
MAP = pathlib.Path("shmgpu/README.md")  # the page that lists the public names
PICTURES = {".svg", ".png"}
# What the navigation calls the pages of each top folder, in its order.
FOLDERS = {
    "": "Start",
    "shmgpu": "The package",
    "examples": "Examples",
    "csrc": "The C core",
    "benchmarks": "Benchmarks",
    "tests": "Tests",
}


def pages() -> list[pathlib.Path]:
    """Every page of the tree, from its root."""
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*.md")]
    return sorted(
        path
        for path in found
        if not any(part in LEFT_OUT or part.startswith(".") for part in path.parts[:-1])
    )


def address(path: pathlib.Path) -> str:
    """Where a file or folder of the tree lies in the site."""
    if (ROOT / path).is_dir():
        return (path / "index.html").as_posix()
    if path.suffix in PICTURES:
        return path.as_posix()
    if path.name == "README.md":
        return path.with_name("index.html").as_posix()
    return path.with_suffix(".html").as_posix() if path.suffix == ".md" else f"{path}.html"


def relative(target: str, start: str) -> str:
    """The link from one address to another."""
    return os.path.relpath(target, os.path.dirname(start) or ".")


def slugs() -> Iterator[str]:
    """Send it the text of a heading; it yields the anchor, as hosts of Markdown make them."""
    seen: set[str] = set()
    anchor = ""
    while True:
        text = yield anchor
        slug = anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 0
        while anchor in seen:
            number += 1
            anchor = f"{slug}-{number}"
        seen.add(anchor)


class Reference:
    """The public names as pdoc shows them: which there are, and where each is in the site."""

    def __init__(self, out: pathlib.Path) -> None:
        self.out = out
        self.modules = {}
        for path, name in KNOWN_AS.items():
            place, _, inner = path.rpartition(".")
            inner_class = getattr(importlib.import_module(place), inner)
            inner_class.__module__, inner_class.__qualname__ = "shmgpu", name
        for name in MODULES:
            full = f"shmgpu.{name}" if name else "shmgpu"
            self.modules[full] = pdoc.doc.Module(_shown(full))

    def write(self) -> None:
        """One file for each module, an index and what its search looks through."""
        pdoc.render.env.globals["public_classes"] = {
            (one.__module__, one.__qualname__)
            for module in self.modules.values()
            for one in vars(module.obj).values()
            if isinstance(one, type) and one.__name__ in module.obj.__all__
        }
        pdoc.render.env.globals["not_constructed"] = [f"{one}.__init__" for one in NOT_CONSTRUCTED]
        pdoc.render.configure(
            docformat="google",
            show_source=False,
            footer_text="",
            template_directory=HERE / "reference",
        )
        for full, module in self.modules.items():
            place = self.out / self.file(full)
            place.parent.mkdir(parents=True, exist_ok=True)
            text = pdoc.render.html_module(module, self.modules)
            place.write_text(_CLASS.sub(_shortened, text), encoding="utf-8")
        place = self.out / "reference" / "search.js"
        place.write_text(pdoc.render.search_index(self.modules), encoding="utf-8")

    @staticmethod
    def file(full: str) -> str:
        """A module's file in the site."""
        return f"reference/{full.replace('.', '/')}.html"

    def find(self, name: str) -> str:
        """Where ``shmgpu.nn.Linear.forward`` is shown, or what it belongs to; empty if nowhere."""
        parts = name.split(".")
        cut = 2 if ".".join(parts[:2]) in self.modules else 1
        full, rest = ".".join(parts[:cut]), parts[cut:]
        file = self.file(full)
        if not rest:
            return file
        anchors = links.read(self.out / file).anchors
        shown = [".".join(rest[:length]) for length in range(len(rest), 0, -1)]
        return next((f"{file}#{one}" for one in shown if one in anchors), "")

    def of_code(self, code: str, bare: bool) -> str:
        """The address of what a page's inline code names, if it names something public.

        A word alone may be one of some other program; ``bare`` says that it is not.
        """
        found = re.fullmatch(r"@?(?:(shmgpu)\.)?([A-Za-z_][\w.]*)(\(.*\))?", code, re.DOTALL)
        if not found:
            return ""
        package, name, called = found.groups()
        if not (package or called or bare or name[0].isupper()):
            return ""
        first = name.partition(".")[0]
        if not package and (first not in _all_of("shmgpu") or first in AMBIGUOUS):
            return ""
        return self.find(f"shmgpu.{name}")


# A class in a signature, highlighted or plain. What is public has become a link before.
_CLASS = re.compile(
    r'<span class="n">shmgpu</span>(?:<span class="o">\.</span><span class="n">\w+</span>)+'
    r'|(?<=<span class="annotation">: )shmgpu(?:\.\w+)+'
    r'|(?<=<span class="base">)shmgpu(?:\.\w+)+'
)


def _shortened(found: re.Match[str]) -> str:
    """Its name alone, where its module is nobody's business."""
    names = re.findall(r"\w+", re.sub(r"<[^>]+>", "", found[0]))
    return names[-1] if names[1] not in _all_of("shmgpu") else found[0]


def _all_of(full: str) -> list[str]:
    return list(importlib.import_module(full).__all__)


def _shown(full: str) -> types.ModuleType:
    """The module with all it offers, loaded: pdoc shows what ``__all__`` names and is there."""
    module = importlib.import_module(full)
    names = [name for name in dir(module) if not name.startswith("_")]
    for name in names:
        setattr(module, name, getattr(module, name))
    module.__dict__["__all__"] = names
    module.__doc__ = _as_markdown(module.__doc__ or "")
    return module


def _as_markdown(text: str) -> str:
    """A module's docstring with its lists of names as lists of Markdown, where pdoc links names."""
    text = re.sub(r"::\n", ":\n", text)
    text = re.sub(r"(?m)^ {4}(\w+) {2,}(\S.*)$", r"- `\1`: \2", text)
    of_names = re.compile(r"(?m)^((?: {4}(?:\w+ )+\w+\n){3,})")
    return of_names.sub(lambda found: re.sub(r"(\w+)", r"`\1`", found[1]).replace("    ", ""), text)


def _examples(text: str) -> str:
    """A docstring's examples as blocks of code: pdoc takes ``>>>`` for a quotation."""

    def fenced(found: re.Match[str]) -> str:
        return f"###### Example:\n```pycon\n{textwrap.dedent(found[1]).strip()}\n```\n"

    return _google(re.sub(r"(?m)^Example:\n((?:(?: {4}.*)?\n?)+)", fenced, text))


_google = pdoc.docstrings.google
pdoc.docstrings.google = _examples


class Site:
    """The site while it is written."""

    def __init__(self, out: pathlib.Path) -> None:
        self.out = out
        self.reference = Reference(out)
        self.pages = pages()
        self.template = string.Template((HERE / "page.html").read_text(encoding="utf-8"))
        self.linked: set[pathlib.Path] = set()  # files and folders that pages link to
        self.markdown = MarkdownIt("commonmark", {"highlight": _highlighted})
        self.markdown.enable(["table", "strikethrough"])
        self.titles = {path: self._title(path) for path in self.pages}

    def write(self) -> None:
        """All of it."""
        self.reference.write()
        shutil.copy(HERE / "style.css", self.out / "style.css")
        colours = HtmlFormatter(style="default").get_style_defs(".code")
        with (self.out / "style.css").open("a", encoding="utf-8") as style:
            style.write(colours + "\n")
        for path in self.pages:
            self._put(address(path), self.titles[path], self._rendered(path))
        for path in sorted(self.linked - set(self.pages)):
            self._write_linked(path)

    def _write_linked(self, path: pathlib.Path) -> None:
        """A file that a page links to: a picture as it is, anything else as text to read."""
        place = self.out / address(path)
        if path.suffix in PICTURES:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, place)
        elif (ROOT / path).is_dir():
            if path / "README.md" not in self.pages:
                names = sorted(one.name for one in (ROOT / path).iterdir() if one.is_file())
                rows = "".join(f"<li><code>{html.escape(name)}</code></li>" for name in names)
                self._put(address(path), f"{path}/", f"<h1>{path}/</h1><ul>{rows}</ul>")
        else:
            text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
            body = f"<h1>{html.escape(str(path))}</h1>{_source(text, path.name)}"
            self._put(address(path), str(path), body)

    def _put(self, where: str, title: str, body: str) -> None:
        place = self.out / where
        place.parent.mkdir(parents=True, exist_ok=True)
        text = self.template.substitute(
            title=html.escape(title),
            style=relative("style.css", where),
            navigation=self._navigation(where),
            body=body,
        )
        place.write_text(text, encoding="utf-8")

    def _navigation(self, where: str) -> str:
        parts = []
        tops = {_top(path) for path in self.pages}
        for top in [*FOLDERS, *sorted(tops - FOLDERS.keys())]:
            inside = [path for path in self.pages if _top(path) == top]
            inside.sort(key=lambda path: (path.parent.parts, path.name != "README.md", path.name))
            rows = [(address(path), self.titles[path]) for path in inside]
            parts.append(_group(FOLDERS.get(top, top), rows, where))
        rows = [(Reference.file(full), full) for full in self.reference.modules]
        parts.insert(1, _group("Reference", rows, where))
        return "".join(parts)

    def _title(self, path: pathlib.Path) -> str:
        for line in (ROOT / path).read_text(encoding="utf-8").splitlines():
            if line.startswith("# "):
                return re.sub(r"[`*]", "", line[2:]).strip()
        return str(path)

    def _rendered(self, path: pathlib.Path) -> str:
        tokens = self.markdown.parse((ROOT / path).read_text(encoding="utf-8"))
        anchors = slugs()
        next(anchors)
        for token, following in zip(tokens, [*tokens[1:], None], strict=True):
            if token.type == "heading_open" and following is not None:
                text = "".join(
                    one.content
                    for one in following.children or ()
                    if one.type in ("text", "code_inline")
                )
                token.attrSet("id", anchors.send(text))
            self._resolve(token, path)
        return self.markdown.renderer.render(tokens, self.markdown.options, {})

    def _resolve(self, token: Token, page: pathlib.Path) -> None:
        """Links of a page as links of the site; inline code that names something public, too."""
        for kind in ("href", "src"):
            target = token.attrGet(kind)
            if isinstance(target, str):
                token.attrSet(kind, self._target(target, page))
        if token.type in ("html_block", "html_inline"):
            token.content = re.sub(
                r'\b(href|src)="([^"]*)"',
                lambda found: f'{found[1]}="{self._target(found[2], page)}"',
                token.content,
            )
        inside_a_link = False
        for child in token.children or ():
            self._resolve(child, page)
            if child.type in ("link_open", "link_close"):
                inside_a_link = child.type == "link_open"
            elif child.type == "code_inline" and not inside_a_link:
                self._link_code(child, page)

    def _link_code(self, token: Token, page: pathlib.Path) -> None:
        found = self.reference.of_code(token.content, page == MAP)
        if found:
            code = f"<code>{html.escape(token.content)}</code>"
            token.type, token.tag = "html_inline", ""
            token.content = f'<a href="{relative(found, address(page))}">{code}</a>'

    def _target(self, target: str, page: pathlib.Path) -> str:
        if re.match(r"[a-z][a-z0-9+.-]*:|#|$", target):
            return target
        name, _, anchor = target.partition("#")
        path = pathlib.Path(os.path.normpath(page.parent / name))
        if not (ROOT / path).exists() or path.parts[:1] == ("..",):
            return target  # the check says so
        self.linked.add(path)
        return relative(address(path), address(page)) + (f"#{anchor}" if anchor else "")


def _top(page: pathlib.Path) -> str:
    return page.parts[0] if len(page.parts) > 1 else ""


def _group(title: str, rows: Sequence[tuple[str, str]], where: str) -> str:
    items = []
    for target, text in rows:
        here = ' aria-current="page"' if target == where else ""
        link = f'<a href="{relative(target, where)}"{here}>{html.escape(text)}</a>'
        items.append(f"<li>{link}</li>")
    return f"<h2>{html.escape(title)}</h2>\n<ul>{''.join(items)}</ul>\n" if items else ""


def _highlighted(text: str, language: str, attributes: str) -> str:
    try:
        lexer = get_lexer_by_name(language) if language else TextLexer()
    except ClassNotFound:
        lexer = TextLexer()
    return f'<pre class="code">{highlight(text, lexer, HtmlFormatter(nowrap=True))}</pre>'


def _source(text: str, name: str) -> str:
    try:
        lexer = get_lexer_for_filename(name)
    except ClassNotFound:
        lexer = TextLexer()
    return f'<pre class="code">{highlight(text, lexer, HtmlFormatter(nowrap=True))}</pre>'


def build(out: pathlib.Path) -> list[str]:
    """Write the site anew; what is wrong with its links."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with warnings.catch_warnings():
        # Tensor has methods called int and bool, which hide the types from its own annotations.
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        Site(out).write()
    return links.broken(out)


def main() -> int:
    """The command: where the site is, or which links lead nowhere."""
    parser = argparse.ArgumentParser(description="Build the site of pages and reference.")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "site")
    out = parser.parse_args().out
    wrong = build(out)
    for line in wrong:
        print(f"  {line}", file=sys.stderr)
    files = sum(1 for _ in out.rglob("*.html"))
    print(f"  {os.path.relpath(out)}/index.html: {files} files, {len(wrong)} broken links")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
