"""``make audit``: what is known to be wrong with our code and with what it is installed with.

``python tests/audit TOOLS PYTHON [STEP ...]``: TOOLS is the folder of pip-audit's, bandit's and
CycloneDX's programs, PYTHON the interpreter of the environment that is looked at. One line for each
step; one for which this machine has no network is skipped, with a word, and any other failure of a
tool fails the audit. ``--write`` enters new packages into hashes.txt.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from audit import baseline, constraints

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "audit"
LIMIT_S = 900
WRITE = "--write"
# What pip-audit and pip say, in lower case, where what they ask cannot be reached.
NO_NETWORK = (
    "cannot connect to proxy",
    "connection aborted",
    "connection refused",
    "connection reset",
    "connecttimeout",
    "could not connect to",
    "failed to establish a new connection",
    "failure in name resolution",
    "name or service not known",
    "network is unreachable",
    "no route to host",
    "read timed out",
    "readtimeout",
    "unable to connect to proxy",
)


class Wrong(Exception):
    """What was found."""


class Skipped(Exception):
    """Why a step was left out."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Of one of the tools.

    Raises:
        Wrong: it cannot be run, or does not end.
    """
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Wrong(f"{command[0]} has not ended within {LIMIT_S} s") from None
    except OSError as error:
        raise Wrong(f"{command[0]} cannot be run ({error.strerror})") from None


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"status {done.returncode}"


def failure(done: subprocess.CompletedProcess[str], what: str) -> Wrong | Skipped:
    """Of a tool that asks the network: whether that is why it failed."""
    said = (done.stderr + done.stdout).lower()
    if any(words in said for words in NO_NETWORK):
        return Skipped(f"{what} cannot be had here ({last_line(done)})")
    return Wrong(f"{pathlib.Path(done.args[0]).name}: {last_line(done)}")


# ---- what was found, from what the tools say ---------------------------------------------------


def of_advisories(packages: list[dict[str, Any]]) -> str:
    """Of pip-audit's list."""
    asked = [one for one in packages if "skip_reason" not in one]
    if not asked:
        raise Skipped("no package is known where this machine asks for advisories")
    found = [
        f"{one['name']} {one['version']}: {flaw['id']}, mended in "
        f"{', '.join(flaw['fix_versions']) or 'no release yet'}"
        for one in asked
        for flaw in one["vulns"]
        if not {flaw["id"], *flaw["aliases"]} & set(baseline.ADVISORIES)
    ]
    if found:
        raise Wrong("\n".join(found))
    return f"{len(asked)} packages, of {len(packages)}, without an advisory"


def of_code(findings: list[dict[str, Any]], rows: tuple[baseline.Accepted, ...]) -> str:
    """Of bandit's findings, held against the baseline."""
    used, unknown = set(), []
    for one in findings:
        file = one["filename"].removeprefix("./")
        fits = [
            row
            for row in rows
            if row.test == one["test_id"]
            and row.file in (baseline.ANYWHERE, file)
            and row.code in one["code"]
        ]
        used.update(fits)
        if not fits:
            unknown.append(f"{file}:{one['line_number']}: {one['test_id']} {one['issue_text']}")
    stale = [
        f"the baseline's row finds nothing: {row.test} {row.file}"
        for row in rows
        if row not in used
    ]
    if unknown or stale:
        raise Wrong("\n".join([*unknown, *stale]))
    return f"{len(findings)} findings, each in the baseline with its reason"


def of_materials(components: list[dict[str, Any]], pinned: dict[str, set[str]]) -> str:
    """Of a bill's components: each is one of the constraints."""
    strange = [
        f"{one['name']} {one['version']} is not what constraints.txt pins"
        for one in components
        if one["version"].partition("+")[0] not in pinned.get(constraints.normal(one["name"]), ())
    ]
    if strange:
        raise Wrong("\n".join(strange))
    return f"{len(components)} components, as constraints.txt pins them"


def of_archives(archives: dict[str, str], known: dict[str, str]) -> str:
    """Of what an index offers for the constraints: hashes by file, held against hashes.txt."""
    other = [
        f"{file} is not the file that hashes.txt knows by that name"
        for file, digest in archives.items()
        if known.get(file, digest) != digest
    ]
    new = sorted(set(archives) - set(known))
    if other:
        raise Wrong("\n".join(other))
    if new:
        raise Wrong("\n".join([*new, "are not in hashes.txt: look at them, then --write"]))
    return f"{len(archives)} archives have the hashes that are known"


# ---- the steps ---------------------------------------------------------------------------------


def advisories(tools: pathlib.Path, python: str) -> str:
    """pip-audit."""
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    if site.returncode:
        raise Wrong(last_line(site))
    out = OUT / "advisories.json"
    out.unlink(missing_ok=True)
    words = ["--path", site.stdout.strip(), "--skip-editable", "--progress-spinner", "off"]
    done = run(str(tools / "pip-audit"), *words, "-f", "json", "-o", str(out))
    if not out.exists():
        raise failure(done, "the advisories")
    return of_advisories(json.loads(out.read_text())["dependencies"])


def code(tools: pathlib.Path, python: str) -> str:
    """bandit."""
    out = OUT / "bandit.json"
    done = run(str(tools / "bandit"), "-q", "-r", "shmgpu", "-f", "json", "-o", str(out))
    if done.returncode not in (0, 1):
        raise Wrong(last_line(done))
    said = json.loads(out.read_text())
    if said["errors"]:
        raise Wrong(str(said["errors"]))
    return of_code(said["results"], baseline.CODE)


def materials(tools: pathlib.Path, python: str) -> str:
    """CycloneDX's bill of materials."""
    out = OUT / "sbom.json"
    done = run(str(tools / "cyclonedx-py"), "environment", python, "-o", str(out))
    if done.returncode:
        raise Wrong(last_line(done))
    bill = json.loads(out.read_text())
    told = [one for one in bill["components"] if one["name"] not in constraints.OURS]
    return f"{of_materials(told, constraints.pinned())} ({out.relative_to(ROOT)})"


def hashes(tools: pathlib.Path, python: str, writes: bool = False) -> str:
    """pip, asked what it would install."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = pathlib.Path(folder, "wanted.txt"), pathlib.Path(folder, "report.json")
        wanted.write_text("\n".join(constraints.hashed_lines()))
        words = ["--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
        done = run(python, "-m", "pip", "install", "-q", *words, "-r", str(wanted))
        if done.returncode or not report.exists():
            raise failure(done, "the index's archives")
        archives = constraints.archives_of(json.loads(report.read_text()))
    if writes:
        constraints.write_hashes({**archives, **constraints.known_hashes()})
    return of_archives(archives, constraints.known_hashes())


STEPS: dict[str, Callable[..., str]] = {
    "advisories": advisories,
    "code": code,
    "materials": materials,
    "hashes": hashes,
}


def main(tools: str, python: str, *words: str) -> int:
    for one in words:
        if one not in (*STEPS, WRITE):
            print(f"{one!r} is no step of the audit: name {', '.join(STEPS)} or {WRITE}")
            return 2
    OUT.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in [one for one in words if one in STEPS] or STEPS:
        more = {"writes": True} if name == "hashes" and WRITE in words else {}
        try:
            said = STEPS[name](pathlib.Path(tools), python, **more)
        except Skipped as why:
            said = f"skipped, {why}"
        except Wrong as what:
            failed = True
            said = f"failed\n{what}"
        print(f"  {name}: {said}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
