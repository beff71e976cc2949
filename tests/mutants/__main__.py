"""``make mutants``: switch off each row's protection, one at a time; that row's test must fail.

Works on a copy of the tree, so that nothing here is ever switched off. First every test must pass
on the copy as it is. Then each mutant is put in, what is C is built anew, its test is run, and
whatever processes that leaves behind are ended: a broker without its protections leaves some.
``python tests/mutants F01 F36`` takes some rows alone.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time

from table import MUTANTS, NO_SWITCH, PENDING, Mutant
from trees import (
    BASELINE_S,
    FAULTS,
    KILLED,
    NORMAL,
    ROOT,
    TEST_S,
    CannotBuild,
    Copy,
    adopt_orphans,
    needs_faults,
)


def test_without(copy: Copy, mutant: Mutant) -> str:
    """Outcome of the mutant's test while its protection is switched off."""
    text = (copy.root / mutant.file).read_text().replace(mutant.text, mutant.off)
    try:
        with copy.changed(mutant.file, text, FAULTS if needs_faults(mutant.test) else NORMAL):
            return copy.test([mutant.test], TEST_S)[mutant.test]
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return "no build"


def bar(total: int):
    """The package's own progress bar: drawn on a terminal, nothing elsewhere."""
    sys.path.insert(0, str(ROOT))
    from shmgpu.common.progress import ProgressBar

    return ProgressBar(total, "mutants", "mutants")


def main(rows: list[str]) -> int:
    """Run the table; the exit status."""
    known = {mutant.row for mutant in MUTANTS} | set(NO_SWITCH) | set(PENDING)
    if strangers := set(rows) - known:
        raise SystemExit(
            f"There is no row {', '.join(sorted(strangers))}: use F01 to F45, or a theme."
        )
    chosen = [mutant for mutant in MUTANTS if not rows or mutant.row in rows]
    adopt_orphans()
    results = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, bar(len(chosen)) as progress:
        copy = Copy(pathlib.Path(place))
        tests = sorted({mutant.test for mutant in chosen})
        unfit = {
            test: outcome
            for test, outcome in copy.test(tests, BASELINE_S).items()
            if outcome != "passed"
        }
        if unfit:
            lines = "\n".join(f"  {test}: {outcome}" for test, outcome in unfit.items())
            print(copy.log.read_text(), file=sys.stderr)
            print(f"These must pass before anything is switched off:\n{lines}", file=sys.stderr)
            return 1
        for mutant in chosen:
            start = time.monotonic()
            outcome = test_without(copy, mutant)
            results.append((mutant, outcome, time.monotonic() - start))
            progress.update()
    for mutant, outcome, seconds in results:
        verdict = "seen" if outcome in KILLED else "SURVIVES"
        name = mutant.test.rpartition("::")[2]
        print(f"{mutant.row}  {verdict:8}  {outcome:9} {seconds:5.1f} s  {mutant.file:20} {name}")
    for row, reason in NO_SWITCH.items():
        if not rows or row in rows:
            print(f"{row}  no switch: {reason}")
    if PENDING and not rows:
        print(f"still to be entered: {' '.join(PENDING)}")
    survivors = [mutant for mutant, outcome, _ in results if outcome not in KILLED]
    print(f"{len(results)} mutants, {len(survivors)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
