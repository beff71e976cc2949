"""The allocator against a plain model: what it hands out, takes back and refuses."""

from __future__ import annotations

import mmap
import pathlib
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from typing import Any

import cffi
import pytest
from amount import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

CSRC = pathlib.Path(__file__).resolve().parents[2] / "csrc"
GRANULE = 64
CAPACITY = 256 * 1024

DECLARATIONS = """
typedef struct shmi_tlsf shmi_tlsf_t;
int shmi_tlsf_create(shmi_tlsf_t **out, void *base, size_t size);
void shmi_tlsf_destroy(shmi_tlsf_t *t);
void *shmi_tlsf_malloc(shmi_tlsf_t *t, size_t size, int *status);
void *shmi_tlsf_memalign(shmi_tlsf_t *t, size_t alignment, size_t size, int *status);
void *shmi_tlsf_realloc(shmi_tlsf_t *t, void *ptr, size_t size, int *status);
int shmi_tlsf_free(shmi_tlsf_t *t, void *ptr);
size_t shmi_tlsf_usable_size(const shmi_tlsf_t *t, const void *ptr);
void shmi_tlsf_stats(const shmi_tlsf_t *t, shm_arena_stats_t *stats);
int shmi_tlsf_check(const shmi_tlsf_t *t);
int shmi_tlsf_walk(const shmi_tlsf_t *t,
                   int (*visit)(void *address, size_t bytes, int is_live, void *ctx), void *ctx);
"""


def declared(header: str, pattern: str) -> str:
    """Return the piece of the public header that pattern finds, so that it is said only once."""
    found = re.search(pattern, header, re.DOTALL)
    assert found, pattern
    return found.group(0)


@pytest.fixture(scope="session")
def tlsf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[cffi.FFI, Any]]:
    """The allocator alone, compiled as a shared library of its own."""
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or "cc"
    library = tmp_path_factory.mktemp("tlsf") / "libtlsf.so"
    sources = [str(CSRC / "memory/tlsf.c"), str(CSRC / "base/status.c")]
    options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", f"-I{CSRC}"]
    subprocess.run([compiler, *options, *sources, "-o", str(library)], check=True)
    ffi = cffi.FFI()
    header = (CSRC / "shmgpu.h").read_text()
    ffi.cdef(declared(header, r"enum shm_status \{.*?\};"))
    ffi.cdef(declared(header, r"typedef struct shm_arena_stats \{.*?\} shm_arena_stats_t;"))
    ffi.cdef(DECLARATIONS)
    yield ffi, ffi.dlopen(str(library))


def sizes() -> st.SearchStrategy[int]:
    """Sizes as programs ask for them: small ones, powers of two, and some of any size."""
    return st.one_of(
        st.integers(1, 1024),
        st.sampled_from([2**k + d for k in range(6, 18) for d in (-64, -1, 0, 1, 64)]),
        st.integers(1, CAPACITY),
    ).filter(lambda size: size > 0)


def rounded(size: int) -> int:
    """Return size in bytes of whole granules."""
    return -(-size // GRANULE) * GRANULE


class Model(RuleBasedStateMachine):
    """Blocks live in a dictionary offset -> (bytes, fill); the rest is free by subtraction."""

    ffi: cffi.FFI
    lib: Any

    def __init__(self) -> None:
        super().__init__()
        pages = self.ffi.from_buffer(mmap.mmap(-1, 2 * CAPACITY))
        address = int(self.ffi.cast("uintptr_t", pages))
        skipped = -address % CAPACITY  # so that alignment comes out the same in every run
        self.memory = memoryview(self.ffi.buffer(pages))[skipped : skipped + CAPACITY]
        self.base = address + skipped
        out = self.ffi.new("shmi_tlsf_t **")
        assert self.lib.shmi_tlsf_create(out, self.pointer(0), CAPACITY) == 0
        self.heap = out[0]
        self.status = self.ffi.new("int *")
        self.live: dict[int, tuple[int, int]] = {}
        self.dead: set[int] = set()
        self.fill = 0
        self.peak = 0

    def teardown(self) -> None:
        for offset in list(self.live):
            assert self.lib.shmi_tlsf_free(self.heap, self.pointer(offset)) == 0
        self.live.clear()
        assert self.lib.shmi_tlsf_check(self.heap) == 0
        assert self.stats().largest_free_bytes == CAPACITY
        self.lib.shmi_tlsf_destroy(self.heap)

    def pointer(self, offset: int) -> Any:
        return self.ffi.cast("void *", self.base + offset)

    def stats(self) -> Any:
        stats = self.ffi.new("shm_arena_stats_t *")
        self.lib.shmi_tlsf_stats(self.heap, stats)
        return stats

    def gaps(self) -> list[tuple[int, int]]:
        """Return the free ranges (offset, bytes) as the live blocks leave them."""
        found, at = [], 0
        for offset in sorted(self.live):
            if offset > at:
                found.append((at, offset - at))
            at = offset + self.live[offset][0]
        return [*found, (at, CAPACITY - at)] if at < CAPACITY else found

    def gap_holds(self, size: int, alignment: int = GRANULE) -> bool:
        def wasted(offset: int) -> int:
            return -(self.base + offset) % alignment

        return any(wasted(at) + rounded(size) <= room for at, room in self.gaps())

    def adopt(self, pointer: Any, size: int) -> None:
        """Enter a block into the model, checked against all it must not overlap, and fill it."""
        offset = int(self.ffi.cast("uintptr_t", pointer)) - self.base
        length = rounded(size)
        assert offset % GRANULE == 0
        assert any(at <= offset and offset + length <= at + room for at, room in self.gaps())
        assert self.lib.shmi_tlsf_usable_size(self.heap, pointer) == length
        self.fill = self.fill % 255 + 1
        self.memory[offset : offset + length] = bytes([self.fill]) * length
        self.live[offset] = (length, self.fill)
        self.dead.discard(offset)

    def forget(self, offset: int) -> bytes:
        """Take a block out of the model; return what it held, which must be what was put in."""
        length, fill = self.live.pop(offset)
        held = bytes(self.memory[offset : offset + length])
        assert held == bytes([fill]) * length
        self.dead.add(offset)
        return held

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.live)))

    @rule(size=sizes(), repeat=st.integers(1, 4))
    def allocate(self, size: int, repeat: int) -> None:
        for _ in range(repeat):
            pointer = self.lib.shmi_tlsf_malloc(self.heap, size, self.status)
            if pointer == self.ffi.NULL:
                wanted = self.lib.SHM_EBAD_SIZE if size > CAPACITY else self.lib.SHM_EARENA_FULL
                assert self.status[0] == wanted
                assert not self.gap_holds(size)
                return
            self.adopt(pointer, size)

    @rule(size=sizes(), power=st.integers(0, 16))
    def allocate_aligned(self, size: int, power: int) -> None:
        pointer = self.lib.shmi_tlsf_memalign(self.heap, 1 << power, size, self.status)
        if pointer == self.ffi.NULL:
            assert not self.gap_holds(size, 1 << max(power, 6))
        else:
            assert int(self.ffi.cast("uintptr_t", pointer)) % (1 << power) == 0
            self.adopt(pointer, size)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = self.pick(data)
        self.forget(offset)
        assert self.lib.shmi_tlsf_free(self.heap, self.pointer(offset)) == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data(), size=sizes())
    def resize(self, data: st.DataObject, size: int) -> None:
        offset = self.pick(data)
        old = self.live[offset][0]
        behind = dict(self.gaps()).get(offset + old, 0)
        pointer = self.lib.shmi_tlsf_realloc(self.heap, self.pointer(offset), size, self.status)
        if pointer == self.ffi.NULL:
            assert size > CAPACITY or (not self.gap_holds(size) and old + behind < size)
            return
        held = self.forget(offset)
        start = int(self.ffi.cast("uintptr_t", pointer)) - self.base
        if rounded(size) <= old + behind:
            assert start == offset
        kept = min(old, rounded(size))
        assert self.memory[start : start + kept] == held[:kept]
        self.adopt(pointer, size)

    @rule(data=st.data())
    def misuse(self, data: st.DataObject) -> None:
        """Freeing anything but a live block's start is refused (and the invariants hold)."""
        granules = [st.integers(-2, CAPACITY // GRANULE + 2).map(lambda granule: granule * GRANULE)]
        if self.dead:
            granules.append(st.sampled_from(sorted(self.dead)))
        if self.live:
            inside = [offset + GRANULE for offset in sorted(self.live)]
            granules.append(st.sampled_from(inside))
        offset = data.draw(st.one_of(granules)) + data.draw(st.sampled_from([0, 0, 1, 32]))
        if offset in self.live:
            return
        pointer = self.pointer(offset)
        assert self.lib.shmi_tlsf_free(self.heap, pointer) == self.lib.SHM_EBAD_FREE
        assert self.lib.shmi_tlsf_usable_size(self.heap, pointer) == 0
        assert self.lib.shmi_tlsf_realloc(self.heap, pointer, 1, self.status) == self.ffi.NULL
        assert self.status[0] == self.lib.SHM_EBAD_FREE

    @invariant()
    def statistics_agree(self) -> None:
        assert self.lib.shmi_tlsf_check(self.heap) == 0
        stats = self.stats()
        used = sum(length for length, _ in self.live.values())
        self.peak = max(self.peak, used)
        assert stats.used_bytes == used
        assert stats.free_bytes == CAPACITY - used
        assert stats.live_blocks == len(self.live)
        assert stats.largest_free_bytes == max((room for _, room in self.gaps()), default=0)
        assert self.peak <= stats.peak_bytes <= stats.footprint_bytes <= CAPACITY

    @invariant()
    def walk_visits_the_same_blocks(self) -> None:
        visited: list[tuple[int, int, bool]] = []

        @self.ffi.callback("int(void *, size_t, int, void *)")
        def visit(address: Any, length: int, is_live: int, _: Any) -> int:
            offset = int(self.ffi.cast("uintptr_t", address)) - self.base
            visited.append((offset, length, bool(is_live)))
            return 0

        assert self.lib.shmi_tlsf_walk(self.heap, visit, self.ffi.NULL) == 0
        expected = [(offset, length, True) for offset, (length, _) in self.live.items()]
        expected += [(offset, room, False) for offset, room in self.gaps()]
        assert visited == sorted(expected)


@pytest.mark.table
def test_allocator_behaves_like_the_model(tlsf: tuple[cffi.FFI, Any]) -> None:
    ffi, lib = tlsf
    machine = type("BoundModel", (Model,), {"ffi": ffi, "lib": lib})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(300),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
