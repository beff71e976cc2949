"""Operations on elements in C: what a fused loop computes for each of them.

``{0}`` to ``{2}`` are the inputs' elements, ``{f}`` the suffix of the type's C functions.

Owns these expressions. Never has one on which C and the libraries differ in the last bit, or that a
compiler does not turn into vector instructions: so no exp, which is faster in the libraries, and no
sqrt, which torch's vector library rounds differently from C.
"""

from __future__ import annotations

from shmgpu.ops.promotion import bool_, float32, float64

C_TYPES = {bool_: "unsigned char", float32: "float", float64: "double"}

OF_FLOATS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "neg": "-{0}",
    "abs": "__builtin_fabs{f}({0})",
    "floor": "__builtin_floor{f}({0})",
    "ceil": "__builtin_ceil{f}({0})",
    "round": "__builtin_rint{f}({0})",
    "relu": "{0} < 0 ? 0 : {0}",
}
OF_ALL = {
    "logical_not": "!{0}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "where": "{0} ? {1} : {2}",
    "to": "{0}",
    "full": "{0}",
}
