"""The pages keep their word: links lead somewhere, code blocks run, named commands exist.

In a page, a comment on the line before a block says what is special about it:

    <!-- no-run: needs a GPU -->   the block is only compiled
    <!-- continue -->              it runs after the blocks before it, as one program
"""

from __future__ import annotations

import dataclasses
import doctest
import functools
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Folders that hold what others wrote or what was built.
FOREIGN = {".git", "build", "dist", "node_modules"}
RUN_LIMIT_S = 100


@dataclasses.dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    no_run: bool
    continues: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def find_pages() -> list[pathlib.Path]:
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard", "*.md"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        pages = [ROOT / name for name in listed.split("\0") if name]
    else:
        pages = [
            path
            for path in ROOT.rglob("*.md")
            if not any(
                part in FOREIGN or part.startswith(".")
                for part in path.relative_to(ROOT).parts[:-1]
            )
        ]
    return sorted(path for path in pages if path.exists())


def split_page(path: pathlib.Path) -> tuple[str, list[Block]]:
    """A page's prose (line for line, blocks left empty) and its fenced blocks."""
    prose: list[str] = []
    blocks: list[Block] = []
    block: Block | None = None
    fence = comment = ""
    indent = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        stripped = line.strip()
        if block is not None:
            if stripped.startswith(fence) and not stripped.strip("`~"):
                blocks.append(block)
                block = None
            else:
                block.text += line[indent:] if not line[:indent].strip() else line
                block.text += "\n"
            prose.append("")
            continue
        opening = re.match(r"(`{3,}|~{3,})\s*([\w+-]*)", stripped)
        if opening:
            fence, indent = opening.group(1), len(line) - len(line.lstrip())
            block = Block(
                page=str(path.relative_to(ROOT)),
                line=number,
                language=opening.group(2).lower(),
                text="",
                no_run="no-run" in comment,
                continues="continue" in comment,
            )
            if "no-run" in comment and not re.search(r"no-run:\s*\S", comment):
                raise ValueError(f"{block}: no-run needs a reason: <!-- no-run: why -->")
            prose.append("")
        else:
            prose.append(line)
        comment = stripped if re.fullmatch(r"<!--.*-->", stripped) else ""
    if block is not None:
        raise ValueError(f"{block}: this block is never closed")
    return "\n".join(prose), blocks


PAGES = find_pages()
BLOCKS = [block for page in PAGES for block in split_page(page)[1]]


def blocks_in(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def anchors(path: pathlib.Path) -> set[str]:
    """The anchors that a page's headings get, as hosts of Markdown make them."""
    prose, _ = split_page(path)
    found: set[str] = set(re.findall(r'<a (?:name|id)="([^"]+)"', prose))
    for heading in re.findall(r"(?m)^#{1,6}\s+(.*?)\s*#*$", prose):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 0
        while (slug if not number else f"{slug}-{number}") in found:
            number += 1
        found.add(slug if not number else f"{slug}-{number}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose, _ = split_page(page)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    targets = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", prose)
    targets += re.findall(r"(?m)^\[[^\]]+\]:\s*(\S+)", prose)
    targets += re.findall(r'(?:src|href)="([^"]+)"', prose)
    broken = []
    for target in targets:
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if (ROOT / "shmgpu") in [path, *path.parents] and not (ROOT / "shmgpu").is_dir():
            continue  # a wheel is being tested, far from the package's sources
        if not path.exists() or ROOT not in [path, *path.parents]:
            broken.append(target)
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            broken.append(target)
    assert not broken, f"{page.relative_to(ROOT)} links to {broken}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_names_a_place_on_somebodys_machine(page):
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"(?<![\w.~$}/-])/(?:root|work|home|Users|mnt)/[\w./-]*", text)
    assert not found
    assert "../shared" not in text


def test_whoever_reads_a_page_of_the_package_knows_that_a_wheel_has_none():
    reads = re.compile(r"with_name\(\s*[\"'](\w+\.md)|\.PAGE\b")
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_pages.py"]
    readers = {path.name: text for path in tests if reads.search(text := path.read_text("utf-8"))}
    assert {"test_stricter.py", "test_every_row.py"} <= set(readers)
    aware = ("pages.text_of(", "the package's pages are not")
    unaware = [name for name, text in readers.items() if not any(one in text for one in aware)]
    assert not unaware, f"make dist runs these beside a wheel: {unaware}"


def test_the_front_page_is_short():
    page = ROOT / "README.md"
    if not page.exists():
        pytest.skip("the pages are not beside these tests")
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= 1500, "move what a newcomer need not know to the page of its wing"
    assert text.count("![") == 1


def test_no_passage_of_the_pages_stands_twice():
    """Twelve lines alike, blank ones not counted: say it once, and link to it."""
    seen: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for start in range(len(lines) - 12):
            passage = tuple(lines[start : start + 13])
            name = f"{page.relative_to(ROOT)}: {lines[start]}"
            assert seen.setdefault(passage, name) == name, (seen[passage], name)


def beside(block: Block) -> list[Block]:
    """The programs of a block's page, in order."""
    return [other for other in blocks_in("python", "py") if other.page == block.page]


def runs_in_the_next(block: Block) -> bool:
    following = [other for other in beside(block) if other.line > block.line][:1]
    return any(other.continues and not other.no_run for other in following)


def program_of(block: Block) -> str:
    """The block's text, after that of the blocks it continues."""
    page = beside(block)
    texts = [block.text]
    place = page.index(block)
    while page[place].continues and place > 0:
        place -= 1
        texts.insert(0, page[place].text)
    return "\n".join(texts)


@pytest.mark.parametrize("block", blocks_in("python", "py"), ids=str)
def test_python_blocks_compile(block):
    compile(program_of(block), str(block), "exec")


@pytest.mark.slow  # `make doorstep` runs those of the first pages, as installed
@pytest.mark.parametrize("block", blocks_in("python", "py"), ids=str)
def test_python_blocks_run(block, tmp_path):
    text = program_of(block)
    if block.no_run or runs_in_the_next(block):
        return
    program = tmp_path / "block.py"
    program.write_text(text, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SHMGPU_")}
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=RUN_LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{block} failed:\n{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("block", blocks_in("pycon"), ids=str)
def test_python_sessions_answer_as_shown(block):
    test = doctest.DocTestParser().get_doctest(block.text, {}, str(block), block.page, block.line)
    if not block.no_run:
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


@pytest.mark.parametrize("block", blocks_in("c"), ids=str)
def test_c_blocks_compile(block, tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler here")
    if block.no_run:
        return
    source = tmp_path / "block.c"
    source.write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-Wno-unused-function",
         "-fsyntax-only", "-I", str(ROOT / "csrc"), "-include", "shmgpu.h", str(source)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"{block}:\n{done.stderr}"


@functools.cache
def make_targets() -> set[str]:
    return set(re.findall(r"(?m)^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))


@functools.cache
def why_no_subcommand(name: str) -> str:
    code = f"import sys\nfrom shmgpu.cli.main import main\nsys.exit(main([{name!r}, '--help']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stderr[-300:] or "it fails"


def why_not_a_command(words: list[str]) -> str:
    """Nothing when this command of ours exists, or is none of ours; else what is wrong."""
    while words and re.fullmatch(r"\w+=.*|sudo|env|time|timeout|-[a-zA-Z-]+", words[0]):
        words = words[1:]
    if not words:
        return ""
    command, rest = pathlib.Path(words[0]).name, words[1:]
    if command == "make":
        for word in rest:
            if "=" not in word and not word.startswith("-") and word not in make_targets():
                return f"the Makefile has no target {word}"
    elif re.fullmatch(r"python[\d.]*", command) and rest:
        if rest[0] == "-m" and len(rest) > 1:
            top = rest[1].split(".")[0]
            if not (ROOT / top).exists() and importlib.util.find_spec(top) is None:
                return f"there is no module {rest[1]}"
        elif rest[0].endswith(".py") and not rest[0].startswith(("/", "~")):
            # A name without a folder is the reader's own file.
            if "/" in rest[0] and not (ROOT / rest[0]).exists():
                return f"there is no file {rest[0]}"
    elif command == "shmgpu":
        names = [word for word in rest if not word.startswith("-")]
        if names and (failure := why_no_subcommand(names[0])):
            return f"shmgpu {names[0]} does not exist: {failure}"
    return ""


def commands_of(line: str) -> list[list[str]]:
    """The words of each command in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return []  # half of a quoted text: not a command of ours
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("();<>|&"):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


@pytest.mark.parametrize("block", blocks_in("bash", "sh", "shell", "console"), ids=str)
def test_commands_in_blocks_exist(block):
    shell_session = block.language == "console"
    wrong = []
    for line in block.text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if shell_session and not line.startswith("$"):
            continue  # what the command prints
        line = line.removeprefix("$").strip()
        for words in commands_of(line):
            if complaint := why_not_a_command(words):
                wrong.append(f"{line}: {complaint}")
    assert not wrong, f"{block}: " + "; ".join(wrong)


def test_a_page_is_read_as_its_author_means_it(tmp_path, monkeypatch):
    """The reader of pages itself: fences, comments, anchors."""
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# One `thing`: here!\n\n```python\nx = 1\n```\n\n"
        "<!-- continue -->\n```python\ny = x\n```\n"
        "# One `thing`: here!\n- item\n\n  ~~~c\n  int z;\n  ~~~\n"
        "<!-- no-run: no -->\n```python\nz\n```\n"
    )
    _, blocks = split_page(page)
    assert [block.language for block in blocks] == ["python", "python", "c", "python"]
    assert [block.continues for block in blocks] == [False, True, False, False]
    assert [block.no_run for block in blocks] == [False, False, False, True]
    assert blocks[2].text == "int z;\n"
    assert anchors(page) == {"one-thing-here", "one-thing-here-1"}
