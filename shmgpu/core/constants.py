"""Limits, roles, states and the forms of blocks, as numbers and words of the header.

Owns no number: C does. Never repeats one by hand.
"""

from __future__ import annotations

from shmgpu.core.binding import ffi, format_of, lib, words_of

HAS_FAULTS = hasattr(lib, "shm_fault_arm")  # the test build, in which roles can be made to die

CHILD_RUNNING: int = lib.SHM_CHILD_RUNNING
HELPER_STARTING: int = lib.SHM_HELPER_STARTING
HELPER_READY: int = lib.SHM_HELPER_READY
HELPER_DEAD: int = lib.SHM_HELPER_DEAD
HELPER_GIVEN_UP: int = lib.SHM_HELPER_GIVEN_UP
HELPER_LEAVING: int = lib.SHM_HELPER_LEAVING
HELPER_ABSENT: int = lib.SHM_HELPER_ABSENT
HELPER_UNLOADED: int = lib.SHM_HELPER_UNLOADED
HELPER_LOADING: int = lib.SHM_HELPER_LOADING
# States of those that get calls, and of those that will: a dead one is replaced.
HELPERS_THAT_SERVE: tuple[int, ...] = (HELPER_READY, HELPER_UNLOADED, HELPER_LOADING)
HELPERS_TO_COME: tuple[int, ...] = (HELPER_STARTING, HELPER_DEAD)
SESSION_LOADED: int = lib.SHM_SESSION_LOADED
SESSION_NONE: int = lib.SHM_SESSION_NONE
SESSION_LOADING: int = lib.SHM_SESSION_LOADING
MAX_HELPERS: int = lib.SHM_MAX_HELPERS
MAX_POOLS: int = lib.SHM_MAX_POOLS
MAX_CHILDREN: int = lib.SHM_MAX_CHILDREN
MAX_WINDOW: int = lib.SHM_MAX_WINDOW
MAX_FUNCTIONS: int = lib.SHM_MAX_FUNCTIONS
MAX_BATCH: int = lib.SHM_MAX_BATCH
MAX_TRACE: int = lib.SHM_MAX_TRACE
NO_HELPER: int = lib.SHM_NO_HELPER  # in a trace record
FRAME_BYTES: int = lib.SHM_FRAME_BYTES  # what a message takes of a pipe
UNIT_NS: int = lib.SHM_UNIT_NS  # of started_units and finished_units in a trace record
ALIGNMENT: int = lib.SHM_ALIGNMENT  # of blocks of an arena
BROADCAST_REPORT_BYTES: int = lib.SHM_BROADCAST_REPORT_BYTES
GUARD_BYTES: int = lib.SHM_GUARD_BYTES  # addresses between two arenas without huge pages

ROLE_NONE: int = lib.SHM_ROLE_NONE
ROLE_PARENT: int = lib.SHM_ROLE_PARENT
ROLE_HELPER: int = lib.SHM_ROLE_HELPER
ROLE_CHILD: int = lib.SHM_ROLE_CHILD

BYTES_GATHERED: int = lib.SHM_BYTES_GATHERED
BYTES_COPIED_IN: int = lib.SHM_BYTES_COPIED_IN
BYTES_COPIED_OUT: int = lib.SHM_BYTES_COPIED_OUT
BYTES_HOST_TO_DEVICE: int = lib.SHM_BYTES_HOST_TO_DEVICE
BYTES_DEVICE_TO_HOST: int = lib.SHM_BYTES_DEVICE_TO_HOST


BLOCK_FORMAT = format_of("shm_block_t")  # what stands before the addresses
BLOCK_RESULT: int = ffi.offsetof("shm_block_t", "result")

CHILD_STATES = words_of("shm_child_state", "SHM_CHILD_")
HELPER_STATES = words_of("shm_helper_state", "SHM_HELPER_")
BYTES_NAMES = [word.replace(" ", "_") for word in words_of("shm_bytes_kind", "SHM_BYTES_")][:-1]
