"""The first lines that run in a broker started by exec, before anything that has threads.

A program, not a module: :mod:`shmgpu.spawn` runs it by its path, with the request on its standard
input. Owns what must come before the package is imported: the search path of whoever started it,
and the fork that makes a broker which outlives them nobody's child.
"""

import sys


def main() -> None:
    """Read what is to be done, and do it in a process that may be a fork of this one."""
    # An interpreter looks beside its program first, and here lie files called as others' are.
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    import os
    import pickle
    import signal

    with open(0, "rb", closefd=False) as file:
        request = pickle.load(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if request["outlives"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are quotas to read anew
        if os.fork():
            os._exit(0)
    sys.path[:] = request["sys_path"]
    from shmgpu import spawned

    spawned.main(request)


if __name__ == "__main__":
    main()
