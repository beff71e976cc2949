"""The site: its links lead somewhere, every page is there, and only public names are documented."""

from __future__ import annotations

import html
import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import shmgpu

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILDER = ROOT / ".site" / "build.py"
MODULES = ("amp", "arena", "debug", "errors", "nn", "optim", "serve")

pytestmark = [
    pytest.mark.skipif(
        not BUILDER.exists() or not (ROOT / "shmgpu").is_dir(),
        reason="the pages are not beside these tests",
    ),
    pytest.mark.timeout(400),  # to build the site takes 40 s, and beside other tests two minutes
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for tool in ("pdoc", "markdown_it", "orjson"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed: make site installs what builds the site")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, str(BUILDER), "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def links():
    spec = importlib.util.spec_from_file_location("links", BUILDER.with_name("links.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference(site: pathlib.Path) -> dict[str, pathlib.Path]:
    """The reference's files by what they say they are of."""
    folder = site / "reference"
    return {
        path.relative_to(folder).with_suffix("").as_posix().replace("/", "."): path
        for path in folder.rglob("*.html")
    }


@pytest.mark.slow
def test_every_link_and_anchor_of_the_site_leads_somewhere(site, links):
    assert links.broken(site) == []


@pytest.mark.slow
def test_every_page_is_in_the_site_and_reached_from_its_start(site, links):
    start = {target.partition("#")[0] for target in links.read(site / "index.html").targets}
    for page in ("README.md", "CONTRIBUTING.md", "shmgpu/README.md", "examples/README.md"):
        path = pathlib.Path(page)
        address = path.with_name("index.html" if path.name == "README.md" else f"{path.stem}.html")
        assert (site / address).is_file()
        assert address.as_posix() in start
    assert {f"reference/shmgpu/{name}.html" for name in MODULES} < start


@pytest.mark.slow
def test_pages_link_names_to_the_reference(site, links):
    pages = [path for path in site.rglob("*.html") if "reference" not in path.parts]
    targets = {target for path in pages for target in links.read(path).targets}
    anchors = {target.rpartition("#")[2] for target in targets if "/shmgpu.html#" in target}
    assert {"launch", "connect", "function", "RemoteError", "is_running"} <= anchors
    assert not {"Tensor.size", "bool", "sum", "max"} & anchors


@pytest.mark.slow
def test_the_reference_has_the_public_names_and_no_others(site):
    found = reference(site)
    assert set(found) == {"shmgpu", *(f"shmgpu.{name}" for name in MODULES)}
    for full, path in found.items():
        text = path.read_text(encoding="utf-8")
        module = shmgpu if full == "shmgpu" else getattr(shmgpu, full.partition(".")[2])
        modules = {name for name in dir(module) if inspect.ismodule(getattr(module, name))}
        shown = re.findall(r'<section id="([^"]+)"', text)
        assert set(shown) == set(dir(module)) - {"__version__"} - modules
        inner = re.findall(r'<div id="([^"]+)" class="classattr"', text)
        parts = {one.rpartition(".")[2] for one in inner} - {"__init__"}
        assert not [one for one in parts if one.startswith("_")]


@pytest.mark.slow
def test_the_reference_names_no_inner_module(site):
    public = {*dir(shmgpu), *MODULES}
    for path in reference(site).values():
        text = html.unescape(re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8")))
        named = set(re.findall(r"\bshmgpu\.(\w+)", text))
        assert named <= public, f"{path.name}: {named - public}"


def test_a_link_to_nowhere_is_found(links, tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="one"></h1><a href="b.html#two">x</a> <a href="#one">x</a> <a href="c.html">x</a>'
        ' <a href="https://example.org/none">x</a> <img src="../outside.png">'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#one">x</a> <a href="a.html#none">x</a>')
    assert [line.rpartition(":")[0] for line in links.broken(tmp_path)] == [
        "a.html: ../outside.png",
        "a.html: b.html#two",
        "a.html: c.html",
        "b.html: a.html#none",
    ]
