"""The C core as Python sees it: status codes become exceptions, addresses become integers.

Owns every crossing into C; :mod:`.binding` is the only importer of the compiled binding. Callers
say ``core.NAME``, whichever file has it. Never decides anything. Nothing above this wing
knows cffi.
"""

# ruff: noqa: F403 - all public names of the files
from shmgpu import installed

try:
    from shmgpu.core.broadcasts import *
    from shmgpu.core.constants import *
    from shmgpu.core.gangs import *
    from shmgpu.core.hosting import *
    from shmgpu.core.memory import *
    from shmgpu.core.ports import *
    from shmgpu.core.roles import *
    from shmgpu.core.scoreboard import *
    from shmgpu.core.statuses import *
except AttributeError as error:  # a name that these files have and the library has not
    if "shmgpu._core" not in str(error):
        raise
    raise ImportError(
        f"shmgpu's compiled core is older than its Python files ({error}): {installed.what_to_do()}"
    ) from error
