"""The services of the examples take from models what they could do beside computing."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
UNITS = [EXAMPLES / "shmgpu.service", EXAMPLES / "serve" / "shmgpu-serve.service"]
MOST_EXPOSED = 3.0  # of 10, as systemd-analyze counts
SECRETS = ("--token-file", "--tls-key")

by_name = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


@by_name
def test_a_service_is_exposed_little(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian's package systemd has it)")
    done = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=true", unit],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "LC_ALL": "C", "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    if "offline" in done.stderr:
        pytest.skip(f"systemd-analyze cannot look at a file: {done.stderr.strip()}")
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < MOST_EXPOSED, done.stdout


@by_name
def test_a_service_reads_its_secrets_from_its_credentials(unit):
    """Only root may read them where they lie; a service of nobody's is handed copies."""
    text = unit.read_text(encoding="utf-8")
    (started,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = started.split()
    named = [words[at + 1] for at, word in enumerate(words) if word in SECRETS]
    handed = re.findall(r"^LoadCredential=([^:]+):/", text, re.MULTILINE)
    assert sorted(named) == sorted(f"%d/{name}" for name in handed)
    assert bool(named) == (" serve " in started)
    for hint in re.findall(r"^# .*(--\S+) (%d/\S+)", text, re.MULTILINE):
        assert f"LoadCredential={hint[1].removeprefix('%d/')}:" in text
