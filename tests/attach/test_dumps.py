"""What programs ask about stays out of core dumps, in every process that maps it."""

from __future__ import annotations

import pytest
from attach import brokers

import shmgpu

ROLES = """
import shmgpu

def dumped():
    kept, name = {}, ""
    for line in open("/proc/self/smaps"):
        if "-" in line.split()[0]:
            name = line.split()[5:][:1]
        elif line.startswith("VmFlags:") and name and "shmgpu-" in name[0]:
            kept.setdefault(name[0].partition(":shmgpu-")[2], set()).add("dd" not in line.split())
    return {name: found for name, found in kept.items() if name in ("arena", "scratch")}

@shmgpu.function(arrays="numpy")
def of_helper(helper):
    return repr(dumped())

def main(rank):
    return [repr(dumped()), of_helper()]
"""

LAUNCH = (
    ROLES
    + """
if __name__ == "__main__":
    (said,) = shmgpu.launch(main, children=1, helpers=1, scratch="1MiB", devices="cpu")
    print(*said, sep="\\n")
"""
)

JOIN = """
import shmgpu, {module}
with shmgpu.connect({path!r}):
    print(*{module}.main(0), sep="\\n")
"""


@pytest.mark.parametrize("switch", [{}, {"SHMGPU_DUMP_ARENAS": "1"}], ids=["unless", "if"])
def test_arenas_and_scratch_regions_are_in_core_dumps_only_if_asked_for(
    tmp_path, monkeypatch, switch
):
    """The kernel says so of each mapping; a core file would say the same, and be large."""
    asked = bool(switch)
    for name, value in switch.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "roles.py").write_text(ROLES)
    (tmp_path / "launched.py").write_text(LAUNCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = f"import runpy; runpy.run_path({str(tmp_path / 'launched.py')!r}, run_name='__main__')"
    child, helper = brokers.said(code).splitlines()
    assert child == repr({"arena": {asked}})
    assert helper == repr({"arena": {asked}, "scratch": {asked}})
    path = tmp_path / "b.sock"
    with brokers.up(path, "roles", helpers=1, scratch="1MiB"):
        client, helper = brokers.said(JOIN.format(module="roles", path=str(path))).splitlines()
    assert client == repr({"arena": {asked}})
    assert helper == repr({"arena": {asked}, "scratch": {asked}})


def test_a_switch_of_dumps_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("SHMGPU_DUMP_ARENAS", "perhaps")
    with pytest.raises(shmgpu.ConfigError, match="SHMGPU_DUMP_ARENAS='perhaps' is neither"):
        shmgpu.init(helpers=1, devices="cpu")
