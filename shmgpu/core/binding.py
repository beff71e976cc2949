"""The compiled binding: the only import of it, and what reads its types.

Owns the two handles of cffi, and conversions from C enumerations and structures. Other files of
this wing use them; nothing outside of it does. Never calls a function of the library.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from shmgpu import installed

try:
    import shmgpu._core as _binding
except ImportError as error:  # pragma: no cover - needs a broken installation
    raise ImportError(
        f"shmgpu's compiled core could not be loaded ({error}): {installed.what_to_do()}"
    ) from error

ffi: Any = _binding.ffi
lib: Any = _binding.lib

UINTPTR = ffi.typeof("uintptr_t")
cast = ffi.cast
buffer_of = ffi.buffer

kept: list[Any] = []  # C keeps pointers into these for as long as the process lives


def words_of(enumeration: str, prefix: str) -> list[str]:
    """The words of a C enumeration that counts from 0: ``SHM_HELPER_GIVEN_UP`` is "given up"."""
    numbers: dict[str, int] = ffi.typeof(f"enum {enumeration}").relements
    names = sorted(numbers, key=numbers.__getitem__)
    return [name.removeprefix(prefix).replace("_", " ").lower() for name in names]


_CODES = {"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "uint64_t": "Q"}


def format_of(structure: str, wanted: Collection[str] | None = None) -> str:
    """For :mod:`struct`: the wanted fields of a C structure, all of them unless said."""
    code, end = "<", 0
    for name, field in ffi.typeof(structure).fields:
        if field.type.kind == "primitive" and (wanted is None or name in wanted):
            code += "x" * (field.offset - end) + _CODES[field.type.cname]
            end = field.offset + ffi.sizeof(field.type)
    size: int = ffi.sizeof(structure)
    return code + "x" * (size - end)


def numbers_of(enumeration: str, prefix: str) -> dict[str, int]:
    """Words and numbers of a C enumeration, without its last, which counts them."""
    numbers: dict[str, int] = ffi.typeof(f"enum {enumeration}").relements
    words = {name.removeprefix(prefix).lower(): int(number) for name, number in numbers.items()}
    return {word: number for word, number in words.items() if number < len(words) - 1}


def as_dict(pointer: Any, kind: str) -> dict[str, int]:
    return {
        name: int(getattr(pointer, name))
        for name, field in ffi.typeof(kind).fields
        if field.type.kind == "primitive"
    }
