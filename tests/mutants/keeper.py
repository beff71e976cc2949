"""A compiler in front of the compiler: what was compiled before, from the same text, is copied.

``python keeper.py FOLDER CC ARGUMENTS...``. A copy of the tree is built anew for each change of one
file of C; the others' objects are the same each time. A header counts for every file.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys


def key(words: list[str], source: pathlib.Path) -> str:
    """Of the command, the file, and all headers around."""
    texts = [source, *sorted(pathlib.Path("csrc").rglob("*.h"))]
    told = hashlib.sha256(repr(words).encode())
    for path in texts:
        told.update(path.read_bytes())
    return told.hexdigest()


def main() -> int:
    folder, *words = sys.argv[1:]
    sources = [word for word in words if word.endswith(".c")]
    if "-c" not in words or "-o" not in words or len(sources) != 1:
        return subprocess.run(words).returncode
    made = pathlib.Path(words[words.index("-o") + 1])
    kept = pathlib.Path(folder, key(words, pathlib.Path(sources[0])))
    needs = ".d"  # beside an object make wants to know which headers it was made of
    if kept.exists():
        if kept.with_suffix(needs).exists():
            shutil.copyfile(kept.with_suffix(needs), made.with_suffix(needs))
        shutil.copyfile(kept, made)
        return 0
    status = subprocess.run(words).returncode
    if status == 0:
        kept.parent.mkdir(parents=True, exist_ok=True)
        if made.with_suffix(needs).exists():
            shutil.copyfile(made.with_suffix(needs), kept.with_suffix(needs))
        shutil.copyfile(made, kept.with_suffix(f".{os.getpid()}"))
        kept.with_suffix(f".{os.getpid()}").rename(kept)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
