"""A module that ``shmgpu up`` cannot load: what is said of it, and what the log keeps."""

from __future__ import annotations

import pytest
from attach.commands import Place

from shmgpu.attach import endpoint

FUNCTION = "import os, sys, shmgpu\n@shmgpu.function(arrays='numpy')\ndef f(helper): pass\n"
UP = ("shmgpu", "up", "--arena", "1MiB", "--devices", "cpu", "--threads", "1")

BAD = {  # what stands in line 4, and what is said of it
    "a variable that is missing": ("os.environ['MODEL_PATH']", "raises KeyError: 'MODEL_PATH'"),
    "its own import": ("import no_such_part", "raises ModuleNotFoundError: No module named"),
    "a call of another module's": ("os.stat('/nowhere')", "raises FileNotFoundError: [Errno 2]"),
    "a wish to end": ("sys.exit('bye')", "raises SystemExit: bye"),
    "a wish to end as by a signal": ("sys.exit(143)", "raises SystemExit: 143"),
    "a wish to end well": ("sys.exit()", "raises SystemExit"),
}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture(params=["foreground", "detached"])
def tried(request, place):
    """Runs ``shmgpu up`` with a module of that text; sentence, traceback, whether by its file."""

    def run(text, name="demo.py"):
        (place.directory / "demo.py").write_text(text)
        detached = request.param == "detached"
        status, said, complained = place.run(*UP, *["--detach"] * detached, name)
        assert (status, said) == (1, ""), complained
        sentence, _, after = complained.partition("\n")
        assert not place.path.exists()
        if not detached:
            return sentence, after
        log = endpoint.beside(place.path, ".log")
        assert after == ""
        assert sentence.endswith(f"; the traceback is in {log}")
        return sentence, log.read_text()

    return run


@pytest.mark.table
@pytest.mark.parametrize(
    ("bad", "name"),
    # By its name it is found in another way; what it raises then goes the same way.
    [*((bad, "demo.py") for bad in BAD), ("its own import", "demo"), ("a wish to end", "demo")],
)
def test_a_module_that_raises_is_named_with_its_line_and_its_traceback(tried, bad, name):
    line, said = BAD[bad]
    sentence, after = tried(f"{FUNCTION}{line}\n", name)
    assert sentence.startswith("shmgpu: ") and f"{name} cannot be loaded: line 4 of " in sentence
    assert f"demo.py {said}" in sentence
    assert f"    {line}\n" in after
    assert "shmgpu/common/module_loader.py" not in after and "importlib" not in after


def test_a_syntax_error_names_file_and_line(tried):
    sentence, after = tried("import shmgpu\ndef f(:\n")
    assert "demo.py cannot be loaded: SyntaxError: " in sentence
    assert "demo.py, line 2)" in sentence
    assert "def f(:" in after and "importlib" not in after


@pytest.mark.parametrize("name", [".", "..", "", "attach.", ".attach"])
def test_what_is_no_modules_name_is_refused_in_a_sentence(place, name):
    status, _, complained = place.run(*UP, name)
    assert status == 1
    assert complained == (
        f"shmgpu: {name!r} is not a module's name: name a module, or a file ending in .py\n"
    )


def test_a_module_that_changes_the_directory_or_the_path_is_loaded(place):
    (place.directory / "moves.py").write_text(f"{FUNCTION}os.chdir('/')\nsys.path.pop(0)\n")
    assert place.run(*UP, "--detach", "moves")[::2] == (0, "")
    assert place.run("shmgpu", "down")[0] == 0


def test_only_this_starts_lines_are_shown_of_the_log(place):
    endpoint.beside(place.path, ".log").write_text("of an older run\n")
    (place.directory / "demo.py").write_text(
        f"{FUNCTION}print('of this run', flush=True)\nos._exit(3)\n"
    )
    status, _, complained = place.run(*UP, "--detach", "demo.py")
    assert status == 1 and "the broker ended before it was ready; its log" in complained
    assert "of this run" in complained and "of an older run" not in complained
