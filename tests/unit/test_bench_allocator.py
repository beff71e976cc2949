"""The traces that the allocator is measured on: their form, and that made ones stay the same."""

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.measure import native  # noqa: E402
from benchmarks.measure.figures import ProbeFailed, Unavailable  # noqa: E402
from benchmarks.measure.harness import Effort, measure, row_of  # noqa: E402
from benchmarks.traces import adversarial, form, record  # noqa: E402
from benchmarks.workloads import allocator  # noqa: E402

# Figures of different days and machines compare only while the traces are these.
FINGERPRINTS = {
    "comb": "82aa95656bed17cd",
    "growing": "1ea54ab8c02021bd",
    "straddling": "1b82a61faf8d817b",
    "lifo": "00e897f0334bcce0",
    "fifo": "ca81fda8b4038bde",
    "scattered": "c448ce220895dc72",
    "few_huge": "cfe79e228a8c2eb6",
}


def test_a_trace_says_which_block_is_freed_by_its_age():
    trace = form.Trace("three blocks")
    first, second = trace.allocate(8), trace.allocate(16)
    trace.free(first)
    third = trace.allocate(32)
    trace.free(second)
    assert trace.text() == "# three blocks\n+8\n+16\n-2\n+32\n-2\n"
    assert list(form.events(trace.lines)) == [(0, 8), (1, 16), (0, 0), (2, 32), (1, 0)]
    assert third == 2
    assert form.peak_live_bytes(trace.lines) == 48


def test_a_recording_leaves_out_frees_of_what_was_there_before():
    events = [(0xA0, -64), (0xB0, 8), (0xC0, 16), (0xB0, -8), (0xB0, 4)]
    assert record.text_of("two", events) == "# two\n+8\n+16\n-2\n+4\n"
    with pytest.raises(ValueError, match="lost a free"):
        record.text_of("twice", [(0xB0, 8), (0xB0, 8)])


def test_a_recording_is_cut_at_its_greatest_size(monkeypatch):
    monkeypatch.setattr(record, "MAX_TRACE_BYTES", 12)
    assert record.text_of("cut", [(n, 8) for n in range(1, 9)]) == "# cut\n+8\n+8\n"


@pytest.mark.parametrize("name", adversarial.PATTERNS)
def test_an_adversarial_trace_is_the_same_everywhere_and_frees_each_block_once(name):
    text = adversarial.make(name)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == FINGERPRINTS[name]
    alive = set()
    for block, nbytes in form.events(text.splitlines()):
        if nbytes:
            alive.add(block)
        else:
            alive.remove(block)


def test_the_three_orders_of_freeing_meet_the_same_sizes():
    sizes = [
        [nbytes for _, nbytes in form.events(adversarial.make(name).splitlines()) if nbytes]
        for name in ("lifo", "fifo", "scattered")
    ]
    assert sizes[0] == sizes[1] == sizes[2]


def test_the_readme_describes_every_trace_as_it_is():
    readme = (ROOT / allocator.TRACES / "README.md").read_text()
    for trace in [*allocator.traces(), *map(allocator.made, adversarial.PATTERNS)]:
        assert form.describe(ROOT / trace) in readme


def test_without_mimalloc_only_its_figures_are_skipped(monkeypatch):
    monkeypatch.setattr(allocator.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(Unavailable, match="libmimalloc is not installed"):
        allocator.mimalloc()


needs_compiler = pytest.mark.skipif(
    shutil.which(native.compiler()) is None, reason="needs a C compiler"
)


@pytest.mark.slow
@needs_compiler
def test_a_small_trace_is_replayed_on_every_allocator(tmp_path, monkeypatch):
    monkeypatch.setattr(adversarial, "STEPS", 2_000)
    trace = adversarial.write("lifo", tmp_path)
    figures = allocator.replay(trace, 1, ("tlsf", "glibc"))
    peak = form.peak_live_bytes(trace.read_text().splitlines())
    for name in ("tlsf", "glibc"):
        assert figures[f"{name} live"] == pytest.approx(peak / allocator.MIB)
        assert figures[f"{name} footprint"] >= 0.9 * figures[f"{name} live"]


@needs_compiler
def test_a_library_that_is_not_mimalloc_is_not_measured_as_mimalloc(tmp_path, monkeypatch):
    monkeypatch.setattr(adversarial, "STEPS", 2_000)
    trace = adversarial.write("lifo", tmp_path)
    with pytest.raises(ProbeFailed, match="not mimalloc's"):
        allocator.replay(trace, 1, ("mimalloc",), "--mimalloc", "libm.so.6")


@needs_compiler
def test_a_group_gives_a_row_a_figure():
    group = next(g for g in allocator.WORKLOAD.groups if g.name == "growing")
    samples = measure(group, Effort(0.0, 1))
    rows = {figure.name: row_of(group, figure, samples) for figure in group.figures}
    assert rows["footprint_growing"].baseline == "peak live"
    assert rows["footprint_growing"].ratio >= 1
    beside = rows["warm_growing_mimalloc"]
    assert beside.value and (beside.ratio or "libmimalloc is not installed" in beside.notes[0])
