"""Which files a broker that started by itself was made of: every file that its processes imported.

A script that is edited and run again must not be served by what the previous run loaded. So the
broker and its helpers record each module they import in a file beside the socket, and a program
that is about to join checks whether those files are unchanged. Owns that record, the import hook
that writes it, and the comparison. Never decides who joins what: :mod:`shmgpu.attach.automatic`
does.

One of the user's modules is unchanged if its time, size and inode are, or else its content. The
first file of an installed package stands for the whole package: installers give it a new time.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import secrets
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

from shmgpu.common.logs import logger

INSTALLERS = {"site-packages", "dist-packages"}  # folders whose files are not edited
LARGEST = 64 << 20  # bytes of a module whose content is looked at


def is_installed(path: str) -> bool:
    """Whether that file came with Python or by an installer, and so is no user's to edit."""
    has_name = not INSTALLERS.isdisjoint(path.split(os.sep))
    return has_name or is_standard(path) or _is_in(path, _site())


def is_standard(path: str) -> bool:
    """Whether it came with Python."""
    return _is_in(path, _standard()) and INSTALLERS.isdisjoint(path.split(os.sep))


@functools.cache
def _standard() -> tuple[str, ...]:
    return _roots(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


@functools.cache
def _site() -> tuple[str, ...]:
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return _roots(*found, *getattr(site, "getsitepackages", list)(), site.getusersitepackages())


def _roots(*folders: str) -> tuple[str, ...]:
    both = {folder for one in folders if one for folder in (one, os.path.realpath(one))}
    return tuple(folder + os.sep for folder in both)


def _is_in(path: str, roots: tuple[str, ...]) -> bool:
    return path.startswith(roots)


def file_of(spec: Any) -> str:
    """The file that a module comes from; "" where it comes from none (built in, a namespace)."""
    archive = getattr(getattr(spec, "loader", None), "archive", None)
    origin = archive or (spec.origin if getattr(spec, "has_location", False) else None)
    return os.path.abspath(origin) if isinstance(origin, str) else ""


class Record:
    """The file, as the broker's processes write it.

    Attributes:
        instance: drawn for each broker, so that no file is taken for another's.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.instance = secrets.token_hex(8)
        self._noted: set[str] = set()
        unfinished = path.with_name(f"{path.name}.{self.instance}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(unfinished, flags, 0o600)
        self._inode = os.fstat(self._descriptor).st_ino
        try:
            self._write(self.instance)
            os.rename(unfinished, path)
        except BaseException:
            os.close(self._descriptor)
            os.unlink(unfinished)
            raise

    def begin(self) -> None:
        """Note what is loaded, and from now on what will be, here and in forked processes."""
        for module in list(sys.modules.values()):
            self._note_module(module)
        sys.meta_path.insert(0, _Noting(self))

    def end(self) -> None:
        """Remove the file, where it still is this broker's."""
        sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _Noting)]
        try:
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        os.close(self._descriptor)

    def _note_module(self, module: ModuleType) -> None:
        spec = getattr(module, "__spec__", None)
        if spec is not None:
            self.note(spec)

    def note(self, spec: Any) -> None:
        """Note a module that is about to be loaded."""
        path = file_of(spec)
        if not path or path in self._noted or is_standard(path):
            return
        if is_installed(path) and "." in spec.name:
            return
        self._noted.add(path)
        try:
            line = [path, *_stamp(path), "" if is_installed(path) else _content(path)]
        except OSError:  # it was imported, and is gone since: later programs find no such file
            line = [path, 0, 0, 0, ""]
        try:
            self._write(line)
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s), so the next program gets a broker of its own",
                self.path,
                error,
            )
            # A list that lacks some files would still vouch for them.
            os.ftruncate(self._descriptor, 0)

    def _write(self, line: Any) -> None:
        data = json.dumps(line).encode() + b"\n"
        if os.write(self._descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _stamp(path: str) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _content(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read(LARGEST), digest_size=16).hexdigest()


def changed(path: str | os.PathLike[str], instance: str) -> str:
    """The first file that is not what the broker of that instance loaded; "" where all are.

    A record that cannot be read, or is another broker's, counts as changed itself.
    """
    try:
        lines = pathlib.Path(path).read_bytes().splitlines()
        if not lines or json.loads(lines[0]) != instance:
            return str(path)
        for line in lines[1:]:
            file, *stamp, content = json.loads(line)
            if not _is_as_it_was(file, stamp, content):
                return str(file)
    except (OSError, TypeError, ValueError):
        return str(path)
    return ""


def _is_as_it_was(file: str, stamp: Sequence[int], content: str) -> bool:
    try:
        if list(_stamp(file)) == list(stamp):
            return True
        return bool(content) and _content(file) == content
    except OSError:
        return False


class _Noting:
    """The first importer: finds what the others find, and has it noted before it is loaded."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        for spec in self._others(name, path, target):
            self.record.note(spec)
            if type(spec.loader) is importlib.machinery.SourceFileLoader and not is_installed(
                str(spec.origin)
            ):
                spec.loader = _DatedSource(spec.loader.name, spec.loader.path)
            return spec
        return None

    def _others(self, name: str, path: Any, target: Any) -> Iterator[Any]:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec = find(name, path, target)
                if spec is not None:
                    yield spec


class _DatedSource(importlib.machinery.SourceFileLoader):
    """Takes kept bytecode for the source's only where that was written before it.

    Python compares length and whole seconds: two edits in one second, and it is the first one's.
    """

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        try:
            kept = os.stat(importlib.util.cache_from_source(path)).st_mtime_ns
            is_newer = kept > os.stat(path).st_mtime_ns
        except (OSError, NotImplementedError):
            is_newer = False
        return super().get_code(fullname) if is_newer else self._compiled(path)

    def _compiled(self, path: str) -> CodeType:
        return self.source_to_code(self.get_data(path), path)
