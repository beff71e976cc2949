"""Fuzz target: any bytes as a broker's manifest are one that holds, or ConfigError.

One that is read can be asked for each of its functions, and is the same when written and read.
"""

from __future__ import annotations

import os

from shmgpu.attach.manifest import Manifest
from shmgpu.errors import ConfigError
from shmgpu.function_table import by_row


def read(data: bytes) -> Manifest:
    """Of a memory file that holds these bytes."""
    descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC)
    try:
        os.pwrite(descriptor, data, 0)
        return Manifest.read(descriptor)
    finally:
        os.close(descriptor)


def one_input(data: bytes) -> None:
    try:
        found = read(data)
    except ConfigError as error:
        str(error).encode()
        return
    for target in by_row.values():
        assert isinstance(found.row_of(target), int)
        found.has_other_code(target)
    try:
        descriptor = found.write()
    except UnicodeEncodeError:  # half of a pair of UTF-16, which JSON can name
        return
    try:
        assert Manifest.read(descriptor) == found
    finally:
        os.close(descriptor)


def set_up() -> None:
    """Nothing is needed."""
