"""How many programs a broker has room for that nobody told."""

from __future__ import annotations

import pytest
from attach.commands import starting_by_themselves

import shmgpu
from shmgpu import core
from shmgpu.attach import automatic

MIB = 1 << 20


@pytest.fixture
def machine(monkeypatch):
    """Says how much memory this machine has to give."""

    def of(mib):
        def check(size_bytes):
            if size_bytes > mib * MIB:
                raise shmgpu.LaunchError(f"{size_bytes // MIB} MiB are asked, {mib} MiB are there")

        monkeypatch.setattr(core, "check_memory", check)
        for name in ("ARENA", "MAX_CHILDREN"):
            monkeypatch.delenv(f"SHMGPU_{name}", raising=False)

    return of


@pytest.mark.parametrize(
    ("mib", "arena", "count"),
    [
        (24_000, None, 64),
        (2_900, None, 22),
        (24_000, "512MiB", 23),
        (100, None, 1),  # half is not enough for one, and the whole is
        (64, None, 1),
    ],
)
def test_as_many_places_as_fit_in_half_of_the_memory(machine, mib, arena, count):
    machine(mib)
    assert automatic.slots_that_fit(arena) == count


def test_where_not_one_arena_fits_it_is_said_what_to_set(machine):
    machine(63)
    with pytest.raises(shmgpu.LaunchError, match=r"64 MiB are asked.*63 MiB.*SHMGPU_ARENA") as told:
        automatic.slots_that_fit()
    assert "SHM_" not in str(told.value)


def test_who_says_how_many_places_gets_them(machine, monkeypatch):
    machine(63)
    assert automatic.slots_of({"slots": 5}) == 5
    monkeypatch.setenv("SHMGPU_MAX_CHILDREN", "7")
    assert automatic.slots_of({}) == 7


def test_a_program_that_finds_its_broker_full_is_told_how_to_get_places(tmp_path):
    code = (
        "import subprocess, sys, shmgpu as gt\n"
        "gt.set_backend('numpy')\n"
        "gt.ones(1).tolist()\n"
        "if len(sys.argv) < 2:\n"
        "    sys.exit(subprocess.call([sys.executable, sys.argv[0], 'again']))\n"
    )
    (tmp_path / "one.py").write_text(code)
    with starting_by_themselves(tmp_path, SHMGPU_MAX_CHILDREN="1") as place:
        status, _, complained = place.run("one.py")
        assert status == 1
        assert "every slot for a child is taken" in complained, complained
        assert "SHMGPU_MAX_CHILDREN" in complained
