"""The first lines that run in a broker started by exec, before anything that has threads.

A program, not a module: :mod:`shmgpu.attach.spawn` runs it by its path, with the request on its
standard input. Owns what must happen before the package is imported: it sets the search path of the
process that started it, imports the same copy of the package, and forks, so that a broker that
outlives its starter has no parent to wait for it. Never imports a user's module.
"""

import sys


def import_package(folder: str) -> None:
    """Import the package that lies there, however whoever started this had found it."""
    import importlib.util

    name = "shmgpu"
    spec = importlib.util.spec_from_file_location(
        name, folder + "/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def main() -> None:
    """Read what is to be done, and do it in a process that may be a fork of this one."""
    # An interpreter looks for modules beside its program first, and files here have names that
    # other packages' modules have, too.
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
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are quotas to read again
        told, tell = os.pipe()
        broker = os.fork()
        if broker:  # its number comes first, for a caller that gives up waiting and ends it
            os.write(request["report"], b"%d\n" % broker)
            os._exit(0)
        os.close(tell)
        os.read(told, 1)
        os.close(told)
    sys.path[:] = request["sys_path"]
    import_package(request["package"])
    from shmgpu.broker import spawn_main

    spawn_main.main(request)


if __name__ == "__main__":
    main()
