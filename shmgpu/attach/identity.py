"""What makes two programs share a broker that starts by itself: they have the same digest.

Programs that only use tensors always match. Programs with functions of their own match if their
functions and session functions do. A function that the broker imports counts by its name and file
(:mod:`shmgpu.attach.sources` tells whether the file has changed); one that is carried by value
counts by its code and every value that it refers to. Owns that digest, and a function's
fingerprint, by which two processes compare their code. Never runs user code, except what pickling
runs.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import marshal
import os
import secrets
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from shmgpu import function_table, installed
from shmgpu.attach import carry
from shmgpu.common import config, module_loader
from shmgpu.common.logs import logger

# Variables that a helper's libraries read where no Python sees it, or that decide what is loaded.
READ_BY_LIBRARIES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "CUBLAS_", "CUDNN_", "OMP_", "GOMP_", "KMP_", "MKL_"),
    *("OPENBLAS_", "TORCH", "PYTORCH_", "ATEN_", "LD_", "PYTHON", "HF_", "TRANSFORMERS_"),
)
# Settings that do not shape a broker: the caller's own, or those that can be changed later.
NOT_THE_BROKER_S = {
    *("auto", "helpers", "idle_timeout", "log", "progress", "debug", "debug_dir", "tick_rate_ms"),
    *("children", "restart", "max_restarts"),
}
AT_ONCE = 16  # plain values in a row that are hashed together
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_MARSHALLED = {type(None), bool, int, float, complex, str, bytes}
_UNCHANGING = (tuple, frozenset, types.CodeType)
_OF_A_CLASS = {  # what the compiler and the interpreter add to its dictionary
    *("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__"),
    *("__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
}


def of_program(session: Any, settings: Mapping[str, Any]) -> str:
    """The digest of this process's functions, a session function, settings and surroundings.

    Values that are nested too deeply to be compared make it a digest that no other program has.
    """
    try:
        return _of_program(session, settings)
    except RecursionError:
        logger.info(
            "values that functions refer to are nested too deeply to be compared with another "
            "program's: this one shares its broker with nobody"
        )
        return secrets.token_hex(16)


def _of_program(session: Any, settings: Mapping[str, Any]) -> str:
    walk = _Digest()
    walk.value(_surroundings())
    walk.value(_meant(settings))
    targets = function_table.of_users()
    if targets or session is not None:
        # A script's relative paths, and what its functions import when they run.
        walk.value([module_loader.working_directory(), list(map(module_loader.absolute, sys.path))])
        walk.value(session)
        for target in sorted(targets, key=function_table.name_of):
            walk.value(function_table.name_of(target))
            walk.value(target)
    return walk.hash.hexdigest()


def _meant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the broker will read them: "64KiB" and 65536 are one, whoever says so."""
    known = {name: settings.get(name) for name in config.SETTINGS}
    others = {name: value for name, value in settings.items() if name not in known}
    return {
        name: config.resolve(name, value) if name in known else value
        for name, value in sorted({**known, **others}.items())
        if name not in NOT_THE_BROKER_S
    }


def fingerprint(body: Any) -> str:
    """Of a function's code, and of the plain values and functions of its own module it refers to.

    "" for a body that has none (a callable), and for values that are nested too deeply.
    """
    if not isinstance(body, types.FunctionType):
        return ""
    walk = _Digest(is_plain=True, module=body.__module__)
    try:
        walk.value(body)
    except RecursionError:
        return ""
    return walk.hash.hexdigest()


def alike(one: Any, other: Any) -> bool:
    """Whether two functions, classes or plain values have the same code and values."""
    digests = []
    for value in (one, other):
        walk = _Digest(is_plain=True, module=getattr(value, "__module__", None) or "")
        try:
            walk.value(value)
        except RecursionError:
            return False
        digests.append(walk.hash.digest())
    return digests[0] == digests[1]


def _surroundings() -> list[Any]:
    read = {k: v for k, v in sorted(os.environ.items()) if k.startswith(READ_BY_LIBRARIES)}
    flags = [sys.flags.optimize, sys.flags.dev_mode, sys.flags.isolated, sys.flags.no_user_site]
    return [sys.prefix, sys.base_prefix, sys.hexversion, flags, installed.HERE, read]


class _Digest:
    """Values in a form that is the same in every process.

    Args:
        is_plain: of what is neither code nor a plain value take the type alone.
        module: whose functions are walked into nevertheless.
    """

    def __init__(self, is_plain: bool = False, module: str = "") -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self.is_plain = is_plain
        self.module = module
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no two have one address
        self._storages: dict[tuple[int, int], bytes] = {}  # digests of what views share
        self._importable: dict[str, bool] = {}  # of modules: importers look through all folders

    def put(self, *words: str | bytes) -> None:
        for word in words:
            data = word if isinstance(word, bytes) else word.encode("utf-8", "surrogatepass")
            self.hash.update(b"%d:" % len(data) + data)

    def value(self, value: Any) -> None:
        kind = type(value)
        if kind is bytes:
            self.put("bytes", value)
            return
        if kind in _PLAIN:
            self.put(_plain(kind, value))
            return
        # Whether two equal objects are the same object is chance: the compiler decides, or pickle.
        if kind not in _UNCHANGING:
            if id(value) in self._seen:
                self.put("again", str(self._seen[id(value)]))
                return
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
        self.put(kind.__qualname__)
        of_kind = _OF_KIND.get(kind)
        if of_kind is not None:
            of_kind(self, value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, function_table.DeclaredFunction):
            self._decorated(value)
        elif not self.is_plain:
            self._any(value)

    def _many(self, values: Any) -> None:
        self.put(str(len(values)))
        if len(values) >= AT_ONCE and _MARSHALLED.issuperset(map(type, values)):
            # Version 2 of the format has no references, which would tell one object from two
            # equal ones.
            self.put(marshal.dumps(list(values), 2))
            return
        for one in values:
            self.value(one)

    def _table(self, table: Mapping[Any, Any]) -> None:
        self._many(list(table))
        self._many(list(table.values()))

    def _set(self, values: Any) -> None:
        digests = []
        for one in values:
            if type(one) in _PLAIN:
                digests.append(_plain(type(one), one))
                continue
            walk = _Digest(self.is_plain, self.module)
            walk._importable = self._importable
            walk._seen = dict(self._seen)  # an element may refer to the set that it is in
            walk.value(one)
            digests.append(walk.hash.hexdigest())
        self.put("\n".join(sorted(digests)))

    def _code(self, code: types.CodeType) -> None:
        """Where it stands in its file is left out: a line more above it changes nothing."""
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.put(code.co_code, repr(names), repr((code.co_flags, code.co_argcount)))
        self.put(getattr(code, "co_exceptiontable", b""))
        self._many(code.co_consts)

    def _function(self, function: types.FunctionType) -> None:
        if self._by_name(function):
            return
        self._code(function.__code__)
        self.value(function.__defaults__)
        self.value(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:
                self.put("empty")
        for name in sorted(globals_of(function.__code__)):
            if name in function.__globals__ and not name.startswith("__"):
                self.put(name)
                self.value(function.__globals__[name])

    def _by_name(self, value: Any) -> bool:
        """Whether whoever reads it imports it; then its name and file are all there is to it."""
        name = getattr(value, "__module__", None)
        if not isinstance(name, str):
            return False
        called = carry.name_in_module(value)
        if self.is_plain:
            if name == self.module:
                return False
        elif function_table.found(name, called) is None or not self._can_import(name):
            return False
        self.put("named", "" if self.is_plain else name, called)
        if not self.is_plain:
            self._file(sys.modules.get(name))
        return True

    def _can_import(self, name: str) -> bool:
        if name not in self._importable:
            self._importable[name] = carry.is_importable(name)
        return self._importable[name]

    def _file(self, module: Any) -> None:
        path = getattr(module, "__file__", None)
        self.put(os.path.realpath(path) if isinstance(path, str) else "")

    def _class(self, kind: type) -> None:
        if self._by_name(kind):
            return
        self._many(kind.__bases__)
        for name in sorted(set(vars(kind)) - _OF_A_CLASS):
            self.put(name)
            self.value(vars(kind)[name])

    def _module(self, module: types.ModuleType) -> None:
        self.put(module.__name__)
        if not self.is_plain:
            self._file(module)

    def _named_only(self, value: Any) -> None:
        if not self._by_name(value):
            _, parts = carry.NAMED_ONLY[type(value)](value)
            self._many(parts)

    def _decorated(self, target: function_table.DeclaredFunction) -> None:
        if not self.is_plain:
            self.value(target.declared)
        self.value(target.body)

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject:
            self._many(array.tolist())
        elif not self.is_plain:
            self.put(str(array.dtype), repr(array.shape), str(array.nbytes))
            self.hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _storage(self, storage: Any) -> None:
        """The elements of torch's tensors: what it pickles names their address in memory."""
        typed = getattr(storage, "_untyped_storage", None)
        if typed is not None:
            self.put(str(storage.dtype))
            storage = typed
        key = storage.data_ptr(), storage.nbytes()
        if key not in self._storages:
            elements = sys.modules["torch"].empty(0, dtype=sys.modules["torch"].uint8)
            elements = elements.set_(storage.cpu()).numpy()
            self._storages[key] = hashlib.blake2b(elements, digest_size=16).digest()
        self.put(str(storage.device), self._storages[key])

    def _any(self, value: Any) -> None:
        """An object, as it would be pickled; one that cannot be is not carried either."""
        # What pickles an object may be the user's own, and raise whatever it likes.
        try:
            if _is_storage(value):
                self._storage(value)
                return
            if isinstance(value, np.generic):
                self.put(str(value.dtype), value.tobytes())
                return
            made = value.__reduce_ex__(4)
            parts = made if isinstance(made, str) else [_listed(part) for part in made]
        except RecursionError:
            raise
        except Exception:
            import cloudpickle

            try:
                self.put(cloudpickle.dumps(value))
            except Exception:
                self.put("not carried")
            return
        if isinstance(parts, str):
            self.put(parts)
            return
        for part in parts:
            self.value(part)


def _plain(kind: type, value: Any) -> str:
    # Python refuses to write a number of thousands of digits in decimal.
    return f"{kind.__name__} {value:x}" if kind is int else f"{kind.__name__} {value!r}"


def _listed(part: Any) -> Any:
    return list(part) if hasattr(part, "__next__") else part


def _is_storage(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.UntypedStorage, torch.TypedStorage))


def globals_of(code: types.CodeType) -> set[str]:
    """Names of globals that it reads, and that functions within it do."""
    found = {one.argval for one in dis.get_instructions(code) if "GLOBAL" in one.opname}
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            found |= globals_of(value)
    return found


_OF_KIND: dict[type, Any] = {
    **dict.fromkeys(carry.NAMED_ONLY, _Digest._named_only),
    tuple: _Digest._many,
    list: _Digest._many,
    dict: _Digest._table,
    set: _Digest._set,
    frozenset: _Digest._set,
    bytearray: lambda walk, value: walk.put(bytes(value)),
    slice: lambda walk, value: walk._many((value.start, value.stop, value.step)),
    types.CodeType: _Digest._code,
    types.FunctionType: _Digest._function,
    types.MethodType: lambda walk, value: walk._many((value.__func__, value.__self__)),
    types.BuiltinFunctionType: lambda walk, value: walk.put(value.__qualname__),
    types.ModuleType: _Digest._module,
    staticmethod: lambda walk, value: walk.value(value.__func__),
    classmethod: lambda walk, value: walk.value(value.__func__),
    property: lambda walk, value: walk._many((value.fget, value.fset, value.fdel)),
    types.MemberDescriptorType: lambda walk, value: walk.put(value.__name__),
    types.GetSetDescriptorType: lambda walk, value: walk.put(value.__name__),
    functools.partial: lambda walk, value: walk._many((value.func, value.args, value.keywords)),
    np.ndarray: _Digest._array,
    function_table.Batch: lambda walk, value: walk._many((value.max_size, value.max_delay)),
}
