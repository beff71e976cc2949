"""``python -m benchmarks``."""

import sys

from benchmarks.measure import endings


def _main() -> int:
    from benchmarks.cli import (
        main,
    )  # which imports all workloads: Ctrl-C may come before it is done

    return main()


sys.exit(endings.run(_main))
