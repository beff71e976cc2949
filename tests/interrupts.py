"""Interrupts code at every point where CPython runs signal handlers, one after the other.

The interpreter looks for signals after calls, at the top of functions and at backward jumps;
which of them exactly differs between versions. A handler written in C (``interrupts.c``) asks for
its own next run each time, so it is run wherever this interpreter looks at all, and acts at the
n-th point. Then the operation is done again and interrupted at the next one, until it is too short.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import pathlib
import signal
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Iterator
from typing import Any

import shmgpu

SOURCE = pathlib.Path(__file__).with_suffix(".c")
SIGNAL = signal.SIGUSR2
PACKAGE = (str(pathlib.Path(shmgpu.__file__).parent) + "/",)
LIBRARY = (*PACKAGE, "/threading.py", "/concurrent/futures/")  # and what it calls on its way
MOST = 20_000  # points of one operation: more, and it never ends


def build(folder: pathlib.Path) -> Any:
    """The handler as a module."""
    made = folder / f"interrupts_c{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    command = ["cc", "-shared", "-fPIC", "-O1", f"-I{include}", str(SOURCE), "-o", str(made)]
    subprocess.run(command, check=True, timeout=120)
    spec = importlib.util.spec_from_file_location("interrupts_c", made)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Interrupts:
    """The handler, in place of a signal's."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._c = build(folder)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Meanwhile :meth:`at_every_point` may be used."""
        before = signal.signal(SIGNAL, self._c.handle)
        try:
            yield
        finally:
            self._c.disarm()
            signal.signal(SIGNAL, before)

    def interrupt(self, act: Callable[[], object] | None = None) -> None:
        """Interrupt the main thread, be it asleep; KeyboardInterrupt unless ``act`` is given."""
        self._c.arm(SIGNAL, 0, -1, act, ("",))
        signal.pthread_kill(threading.main_thread().ident, SIGNAL)

    def at_every_point(
        self,
        operation: Callable[[], object],
        check: Callable[[], object],
        act: Callable[[], object] | None = None,
        files: tuple[str, ...] = LIBRARY,
        every: int = 1,
        start: int = 0,
        gap: int = -1,
    ) -> int:
        """Do an operation again and again, interrupt it once each time, and check what is left.

        Args:
            operation: raises KeyboardInterrupt or goes on, as it comes.
            check: called after each.
            act: what the signal handler does; raises KeyboardInterrupt unless given.
            files: parts of the names of files whose points count.
            every: take each so many-th point only.
            start: the first of them.
            gap: points until it is interrupted a second time; none: once only.

        Returns:
            How many points there were.
        """
        for at in range(start, MOST, every):
            # What an earlier one left is not collected meanwhile: raised in a finalizer, the
            # exception would be lost.
            gc.disable()
            self._c.arm(SIGNAL, at, gap, act, files)
            try:
                try:
                    operation()
                except KeyboardInterrupt:
                    pass
                reached = self._c.disarm()
            except KeyboardInterrupt:  # the second, in the line above
                reached = self._c.disarm()
            finally:
                gc.enable()
            try:
                check()
            except BaseException as error:
                error.add_note(f"after point {at}") if hasattr(error, "add_note") else None
                raise
            if not reached:
                return at
        raise AssertionError(f"more than {MOST} points")
