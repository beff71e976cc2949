"""``python -m shmgpu``: the command line, for where the command is not on the path."""

import sys

from shmgpu.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
