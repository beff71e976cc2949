"""What `make audit` makes of what its tools say, and what it can hold to without them."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from audit import __main__ as audit
from audit import baseline, constraints

ROW = baseline.Accepted("B301", "a.py", "loads", "only we write it")


def finding(**changed):
    return {
        "filename": "./a.py",
        "test_id": "B301",
        "code": "3 pickle.loads(x)",
        "line_number": 3,
        "issue_text": "Pickle",
        **changed,
    }


def package(**more):
    return {"name": "one", "version": "1.0", "vulns": [], **more}


def flaw(name):
    return {"id": name, "aliases": [f"CVE-{name}"], "fix_versions": ["1.1"]}


def test_a_finding_of_the_baseline_is_counted():
    assert audit.of_code([finding()], (ROW,)).startswith("1 findings")
    anywhere = ROW._replace(file=baseline.ANYWHERE, code="")
    assert audit.of_code([finding(filename="b.py", code="")], (anywhere,))


@pytest.mark.parametrize(
    "changed", [{"filename": "b.py"}, {"test_id": "B302"}, {"code": "3 pickle.load(x)"}]
)
def test_another_finding_fails_the_audit(changed):
    with pytest.raises(audit.Wrong, match=":3: B30"):
        audit.of_code([finding(), finding(**changed)], (ROW,))


def test_a_row_that_finds_nothing_fails_the_audit():
    with pytest.raises(audit.Wrong, match=r"finds nothing: B301 a\.py"):
        audit.of_code([], (ROW,))


@pytest.mark.skipif(
    not (constraints.ROOT / "shmgpu").is_dir(),
    reason="the package's sources are not beside these tests",
)
def test_every_row_of_the_baseline_has_a_file_and_a_reason():
    for row in baseline.CODE:
        assert len(row.reason) > 10
        assert row.file == baseline.ANYWHERE or (constraints.ROOT / row.file).exists()


def test_an_advisory_fails_the_audit_unless_a_row_says_why_not(monkeypatch):
    told = [package(), package(vulns=[flaw("PYSEC-1")])]
    with pytest.raises(audit.Wrong, match=r"one 1\.0: PYSEC-1, mended in 1\.1"):
        audit.of_advisories(told)
    monkeypatch.setitem(baseline.ADVISORIES, "CVE-PYSEC-1", "is not used so")
    assert audit.of_advisories([*told, package(skip_reason="?")]).startswith("2 packages, of 3")


def test_where_no_package_is_known_the_step_is_skipped():
    with pytest.raises(audit.Skipped):
        audit.of_advisories([package(skip_reason="not found")])


def test_what_is_not_pinned_fails_the_audit():
    parts = [{"name": "Zope.Event", "version": "6.2"}, {"name": "torch", "version": "2.13.0+cpu"}]
    pinned = {"zope-event": {"6.2"}, "torch": {"2.13.0"}}
    assert audit.of_materials(parts, pinned).startswith("2 components")
    for wrong in ({"zope-event": {"6.3"}, "torch": {"2.13.0"}}, {"torch": {"2.13.0"}}):
        with pytest.raises(audit.Wrong, match=r"Zope\.Event 6\.2 is not what"):
            audit.of_materials(parts, wrong)


def test_an_archive_with_another_hash_or_none_fails_the_audit():
    known = {"one.whl": "1", "two.whl": "2"}
    assert audit.of_archives({"one.whl": "1"}, known).startswith("1 archives")
    with pytest.raises(audit.Wrong, match=r"one\.whl is not the file"):
        audit.of_archives({"one.whl": "3"}, known)
    with pytest.raises(audit.Wrong, match=r"three\.whl\nare not in"):
        audit.of_archives({"three.whl": "3"}, known)


def test_every_pin_has_an_archive_with_a_hash():
    """A version that is raised is looked at: `make audit T='hashes --write'` enters its archive."""
    known = constraints.known_hashes()
    assert all(len(digest) == 64 for digest in known.values())
    files = {tuple(file.split("-")[:2]) for file in known}
    there = {(constraints.normal(name), version) for name, version in files}
    for line in constraints.hashed_lines():
        name, _, version = line.partition(";")[0].strip().partition("==")
        if ";" not in line:  # what other Pythons or machines take has no archive here
            sdist = f"{name.lower()}-{version}.tar.gz"
            assert (constraints.normal(name), version) in there or sdist in map(str.lower, known), (
                line
            )


def fake(folder, name, text):
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{text}")
    path.chmod(0o755)


def test_each_step_says_a_line_and_one_without_a_network_is_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audit, "OUT", tmp_path / "out")
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    monkeypatch.setattr(baseline, "CODE", (ROW,))
    write = "open(sys.argv[sys.argv.index('-o') + 1], 'w').write(json.dumps({}))\n"
    said = {"results": [finding()], "errors": []}
    fake(tmp_path, "bandit", write.replace("{}", repr(said)))
    bill = {"components": [{"name": "shmgpu", "version": "0"}, {"name": "torch", "version": "0"}]}
    fake(tmp_path, "cyclonedx-py", write.replace("{}", repr(bill)))
    fake(tmp_path, "pip-audit", "sys.exit('no route to host')")
    assert audit.main(str(tmp_path), sys.executable, "advisories", "code", "materials") == 1
    told = capsys.readouterr().out
    assert "advisories: skipped, the advisories cannot be had here (no route to host)" in told
    assert "code: 1 findings" in told
    assert "materials: failed\ntorch 0 is not what constraints.txt pins" in told
    assert json.loads(pathlib.Path(tmp_path, "out", "sbom.json").read_text()) == bill


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("after connection broken by 'NewConnectionError(... Name or service not known)'", "skip"),
        ("ProxyError('Unable to connect to proxy')\nERROR: No matching distribution", "skip"),
        ("pip-audit: error: unrecognized arguments: --path", "wrong"),
        ("ERROR: No matching distribution found for six==99 (from versions: 1.17.0)", "wrong"),
        ("certificate verify failed: self-signed certificate", "wrong"),
    ],
)
@pytest.mark.parametrize("step", ["advisories", "hashes"])
def test_only_a_network_that_is_not_there_lets_a_step_be_skipped(
    tmp_path, monkeypatch, step, said, kind
):
    def run(*command):
        asks = "pip" in command or command[0].endswith("pip-audit")
        return subprocess.CompletedProcess(command, int(asks), "/site", said if asks else "")

    monkeypatch.setattr(audit, "run", run)
    monkeypatch.setattr(audit, "OUT", tmp_path)
    with pytest.raises({"skip": audit.Skipped, "wrong": audit.Wrong}[kind]):
        audit.STEPS[step](tmp_path, sys.executable)


def test_an_interpreter_that_fails_is_not_asked_about(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audit, "OUT", tmp_path)
    fake(tmp_path, "python", "sys.exit('no module named encodings')")
    assert audit.main(str(tmp_path), str(tmp_path / "python"), "advisories") == 1
    assert capsys.readouterr().out == "  advisories: failed\nno module named encodings\n"


def test_a_tool_that_is_not_there_or_does_not_end_fails_in_a_sentence(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(audit, "OUT", tmp_path / "out")
    assert audit.main(str(tmp_path), sys.executable, "code") == 1
    assert "bandit cannot be run (No such file" in capsys.readouterr().out
    fake(tmp_path, "bandit", "import signal; signal.pause()")
    monkeypatch.setattr(audit, "LIMIT_S", 0.1)
    assert audit.main(str(tmp_path), sys.executable, "code") == 1
    assert "bandit has not ended within 0.1 s" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["hash", "--wirte"])
def test_a_word_that_is_no_step_is_refused(tmp_path, monkeypatch, capsys, word):
    monkeypatch.setattr(audit, "STEPS", dict.fromkeys(audit.STEPS, pytest.fail))
    assert audit.main(str(tmp_path), sys.executable, "code", word) == 2
    assert capsys.readouterr().out == (
        f"{word!r} is no step of the audit: name advisories, code, materials, hashes or --write\n"
    )
