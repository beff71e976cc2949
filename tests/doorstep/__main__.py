"""``make doorstep``: what a user does first, as one who has just cloned or installed does it.

``python tests/doorstep [WORD ...]`` runs the checks whose names have one of the words in them.
``SEED=7`` repeats the moments of Ctrl-C. On a terminal a line shows how far it is; a check that
fails is printed whole, and at the end one line says how it went.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import random
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from doorstep.checks import Check, all_checks
from doorstep.place import Failed, Place


def names_in_shared_memory() -> set[str]:
    return {one.name for one in os.scandir("/dev/shm") if one.stat().st_uid == os.getuid()}


def outcome(check: Check, place: Place) -> tuple[str, float]:
    """Why it failed, or nothing; and how long it took."""
    began = time.monotonic()
    try:
        check(place)
    except Failed as error:
        return str(error), time.monotonic() - began
    except Exception:
        return traceback.format_exc(), time.monotonic() - began
    return "", time.monotonic() - began


def main(words: list[str]) -> int:
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    checks = {
        name: check
        for name, check in all_checks(seed).items()
        if not words or any(word in name for word in words)
    }
    shows = sys.stdout.isatty()
    talks = bool(os.environ.get("VERBOSE"))
    began = time.monotonic()
    names_before = names_in_shared_memory()
    place = Place()
    if shows:
        print("  an environment, as a newcomer makes it", end="", flush=True)
    place.prepare()
    prepared_s = time.monotonic() - began
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        running = {pool.submit(outcome, check, place): name for name, check in checks.items()}
        for done, future in enumerate(concurrent.futures.as_completed(running), 1):
            name = running[future]
            why, took_s = future.result()
            if shows:
                print(f"\r\033[K  {done} of {len(checks)}: {name}", end="", flush=True)
            if talks:
                print(f"  {took_s:6.1f} s  {'FAILED' if why else 'ok'}  {name}", flush=True)
            if why:
                failed += 1
                print(f"{chr(13) if shows else ''}FAILED {name}\n{why}\n", flush=True)
    left = sorted(names_in_shared_memory() - names_before)
    if left:
        failed += 1
        print(f"FAILED left in /dev/shm: {left}")
    if shows:
        print("\r\033[K", end="")
    print(
        f"doorstep: {len(checks)} checks, {failed} failed, {time.monotonic() - began:.0f} s "
        f"({prepared_s:.0f} of them to set up), seed {seed}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
