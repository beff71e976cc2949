"""What a layer is: parameters, buffers and layers within, found by their names.

Owns how these are found, the hooks around ``forward``, and the dict by which a model's state is
saved and loaded. Never computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from shmgpu.codec import arrays, dtypes
from shmgpu.former import moved_from
from shmgpu.nn import earlier
from shmgpu.ops.casting import cast
from shmgpu.ops.promotion import is_float
from shmgpu.optim.optimizer import forget
from shmgpu.tensors.devices import is_device
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.hooks import RemovableHandle, registered
from shmgpu.tensors.tensor import Tensor, snapshot, tensor

State = dict[str, Tensor]

__getattr__ = moved_from(__name__)


class _IsParameter(type):
    """``isinstance(x, Parameter)`` asks what the tensor does, not how it was made."""

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, Tensor) and one.requires_grad and one.is_leaf


class Parameter(Tensor, metaclass=_IsParameter):
    """A trained tensor: a copy of the data that collects gradients.

    What is made is a plain :class:`~shmgpu.Tensor`. One with ``requires_grad=False`` is not
    trained: a module takes it as a parameter by :meth:`Module.register_parameter` only.

    Args:
        data: a tensor, or what :func:`shmgpu.tensor` takes.
        requires_grad: whether it collects gradients.
    """

    __slots__ = ()

    def __new__(cls, data: Any, requires_grad: bool = True) -> Tensor:  # type: ignore[misc]
        """A plain tensor."""
        if isinstance(data, Tensor):
            return snapshot(data).requires_grad_(requires_grad)
        return tensor(data, requires_grad=requires_grad)


class IncompatibleKeys(NamedTuple):
    """What :meth:`Module.load_state_dict` did not find, or did not need."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if any(self):
            return f"IncompatibleKeys(missing_keys={self[0]}, unexpected_keys={self[1]})"
        return "<All keys matched successfully>"


_TABLES = ("_parameters", "_buffers", "_modules")


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


class Module:
    """A layer, or a model made of them.

    Tensors that collect gradients and are set as attributes are its parameters; modules set as
    attributes are its children. Subclasses say in ``forward`` what it computes.

    Attributes:
        training: whether layers that behave differently in training do so.
    """

    training: bool

    def __init__(self) -> None:
        tables = self.__dict__
        for table in _TABLES:
            tables[table] = {}
        tables["_not_in_state"] = set()
        tables["_hooks"] = {}
        tables["_pre_hooks"] = {}
        tables["training"] = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The attributes of a pickle; an earlier version's are completed."""
        Module.__init__(self)
        self.__dict__.update(earlier.completed(type(self), state))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say in forward() what it computes"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As ``forward``, with the hooks before and after."""
        if not self._hooks and not self._pre_hooks:
            return self.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._pre_hooks.values()):
            if with_kwargs:
                changed = hook(self, args, kwargs)
                args, kwargs = (args, kwargs) if changed is None else changed
            else:
                changed = hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        out = self.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._hooks.values()):
            changed = hook(self, args, kwargs, out) if with_kwargs else hook(self, args, out)
            out = out if changed is None else changed
        return out

    # ---- attributes ------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_parameters" not in tables:
            raise AttributeError(
                f"call super().__init__() before {type(self).__name__}.{name} is set"
            )
        home = self._home(name, value)
        if isinstance(value, Tensor) and name in self._parameters and home != "_parameters":
            raise TypeError(
                f"{type(self).__name__}.{name} is a parameter, and this tensor collects no "
                "gradients: wrap it in nn.Parameter, or change the parameter in place "
                "under no_grad()"
            )
        for table in _TABLES:
            if table != home:
                tables[table].pop(name, None)
        if home is None:
            object.__setattr__(self, name, value)
        else:
            tables.pop(name, None)
            tables[home][name] = value

    def _home(self, name: str, value: Any) -> str | None:
        """The table that the value belongs into; None if it is an attribute like any other."""
        if isinstance(value, Module):
            return "_modules"
        if name in self._buffers and (value is None or isinstance(value, Tensor)):
            return "_buffers"
        if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
            return "_parameters"
        if value is None:
            return next((table for table in _TABLES if name in self.__dict__[table]), None)
        return None

    def __getattr__(self, name: str) -> Any:
        for table in _TABLES:
            found = self.__dict__.get(table, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in _TABLES:
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                self._not_in_state.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for table in _TABLES for name in self.__dict__[table])]

    def _free(self, name: str, what: str) -> None:
        """Refuse a name that cannot be a part's."""
        taken = name not in self.__dict__[what] and hasattr(self, name)
        if not name or "." in name or taken:
            raise KeyError(
                f"{type(self).__name__}: {name!r} cannot name a part: "
                + ("there is such an attribute" if taken else "give one letter or more, no dot")
            )

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer: a tensor that is part of the state and is not trained.

        Args:
            name: its attribute's name.
            tensor: what it is; None for none yet.
            persistent: whether ``state_dict`` has it.

        Raises:
            KeyError: the name is taken, or has a dot.
        """
        self._free(name, "_buffers")
        self._buffers[name] = tensor
        (self._not_in_state.discard if persistent else self._not_in_state.add)(name)

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """A trained tensor; None for none.

        Raises:
            KeyError: the name is taken, or has a dot.
        """
        self._free(name, "_parameters")
        self._parameters[name] = param

    def add_module(self, name: str, module: Module | None) -> None:
        """A child module; None for none.

        Raises:
            KeyError: the name is taken, or has a dot.
        """
        self._free(name, "_modules")
        self._modules[name] = module

    register_module = add_module

    def _part(self, target: str, table: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path).__dict__[table]
        if found.get(name) is None:
            raise AttributeError(f"{type(self).__name__} has no {what} {target!r}")
        return found[name]

    def get_submodule(self, target: str) -> Module:
        """The module of a dotted name; this one for the empty name.

        Raises:
            AttributeError: there is none.
        """
        module: Module = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(f"{type(self).__name__} has no module {target!r}")
            module = found
        return module

    def get_parameter(self, target: str) -> Tensor:
        """The parameter of a dotted name; AttributeError if there is none."""
        found: Tensor = self._part(target, "_parameters", "parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of a dotted name; AttributeError if there is none."""
        found: Tensor = self._part(target, "_buffers", "buffer")
        return found

    # ---- hooks -----------------------------------------------------------------------------------

    def _register(self, table: str, hook: Any, prepend: bool, with_kwargs: bool) -> RemovableHandle:
        return registered(self.__dict__[table], (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after each ``forward``.

        What it returns, unless None, is the output. ``prepend`` has it called before the others;
        with ``with_kwargs`` it is called with (module, args, kwargs, output).
        """
        return self._register("_hooks", hook, prepend, with_kwargs)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before each ``forward``.

        What it returns, unless None, are the arguments: a tuple, or the only one. With
        ``with_kwargs`` it is called with (module, args, kwargs), and returns both.
        """
        return self._register("_pre_hooks", hook, prepend, with_kwargs)

    # ---- what is in it -------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all within, by their dotted names; one that is shared once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, _joined(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all within."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly within, by their names; one that is shared once."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly within."""
        for _, module in self.named_children():
            yield module

    def _named(
        self, table: str, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        within = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
        for path, module in within if recurse else [(prefix, self)]:
            for name, one in module.__dict__[table].items():
                if one is not None and id(one) not in seen:
                    if remove_duplicate:
                        seen.add(id(one))
                    yield _joined(path, name), one

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All parameters by their dotted names; a shared one once."""
        yield from self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """All parameters."""
        for _, one in self.named_parameters(recurse=recurse):
            yield one

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers by their dotted names."""
        yield from self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers: state that is not trained."""
        for _, one in self.named_buffers(recurse=recurse):
            yield one

    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call ``fn`` with each module within, then with this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # ---- training ------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zeros unless ``set_to_none``."""
        forget(self.parameters(), set_to_none)

    def train(self, mode: bool = True) -> Module:
        """Switch training mode on or off, here and in all modules within."""
        for module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self) -> Module:
        """Switch to evaluation: ``train(False)``."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Whether the parameters collect gradients: False freezes them."""
        for one in self.parameters():
            one.requires_grad_(requires_grad)
        return self

    # ---- element types -------------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> Module:
        """Parameters and buffers of floats in another element type; as PyTorch's.

        A device is accepted and changes nothing: tensors live where helpers compute.

        Args:
            *args: an element type, a device, a tensor whose type is meant, or several of them.
            **kwargs: ``dtype=``, ``device=``, ``non_blocking=``.

        Raises:
            TypeError: the type is not of floats, or an argument is none of these.
        """
        strange = set(kwargs) - {"dtype", "device", "non_blocking"}
        if strange:
            raise TypeError(f"to: {sorted(strange)} are none of its arguments: dtype, device")
        given = [one for one in (*args, kwargs.get("dtype")) if not _is_device(one)]
        for one in given:
            kind = one.dtype if isinstance(one, Tensor) else dtypes.of_any(one)
            if not is_float(kind):
                raise TypeError(f"to: a module can be of float types, not of {kind.name}")
            for part in (*self.parameters(), *self.buffers()):
                _recast(part, kind)
        return self

    def float(self) -> Module:
        """As float32."""
        return self.to("float32")

    def double(self) -> Module:
        """As float64."""
        return self.to("float64")

    def half(self) -> Module:
        """As float16."""
        return self.to("float16")

    def bfloat16(self) -> Module:
        """As bfloat16."""
        return self.to("bfloat16")

    def cpu(self) -> Module:
        """The module itself: where tensors live, helpers decide."""
        return self

    def cuda(self, device: Any = None) -> Module:
        """The module itself: where tensors live, helpers decide."""
        return self

    # ---- state ---------------------------------------------------------------------------------

    def _state(self, prefix: str) -> Iterator[tuple[str, dict[str, Any], str]]:
        """What the state is made of: its name, and the table and the key where it stands."""
        for table in ("_parameters", "_buffers"):
            found = self.__dict__[table]
            for name, one in found.items():
                if one is not None and name not in self._not_in_state:
                    yield prefix + name, found, name
        for name, module in self._modules.items():
            if module is not None:
                yield from module._state(f"{prefix}{name}.")

    def state_dict(
        self, destination: State | None = None, prefix: str = "", keep_vars: bool = False
    ) -> State:
        """Parameters and buffers by their dotted names, as tensors that no longer change.

        Args:
            destination: a dict to enter them in; a new one by default.
            prefix: what the names begin with.
            keep_vars: enter the parameters themselves.
        """
        state = {} if destination is None else destination
        for name, table, key in self._state(prefix):
            state[name] = table[key] if keep_vars else snapshot(table[key])
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Take parameters and buffers from a dict of tensors, arrays or torch tensors.

        Args:
            state_dict: what ``state_dict`` of the same model gave, of this library or of torch.
            strict: refuse names that are missing or unexpected.
            assign: use these tensors, in their element types, in place of the model's own.

        Returns:
            The names that were missing, and those that were unexpected.

        Raises:
            RuntimeError: names are missing or unexpected, or a shape differs. Nothing was taken.
        """
        own = {name: (table, key) for name, table, key in self._state("")}
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        wrong = []
        if strict:
            for what, names in (("Missing", missing), ("Unexpected", unexpected)):
                if names:
                    listed = ", ".join(f'"{name}"' for name in names)
                    wrong.append(f"{what} key(s) in state_dict: {listed}. ")
        for name, (table, key) in own.items():
            if name in state_dict:
                given, have = tuple(state_dict[name].shape), table[key].shape
                if given != have:
                    wrong.append(
                        f"size mismatch for {name}: copying a param with shape {given} from "
                        f"checkpoint, the shape in current model is {have}."
                    )
        if wrong:
            told = "".join(f"\n\t{one}" for one in wrong)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:{told}")
        with no_grad():
            for name, (table, key) in own.items():
                if name in state_dict:
                    _take(table, key, state_dict[name], assign)
        return IncompatibleKeys(missing, unexpected)

    def extra_repr(self) -> str:
        """What ``repr`` shows between the parentheses."""
        return ""

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}({self.extra_repr()}"]
        for name, module in self._modules.items():
            inner = repr(module).replace("\n", "\n  ")
            lines.append(f"\n  ({name}): {inner}")
        return "".join(lines) + ("\n)" if self._modules else ")")


def _is_device(given: Any) -> bool:
    """Whether that names a place, or how to go there, and not an element type."""
    return given is None or isinstance(given, (bool, int)) or is_device(given)


def _recast(one: Tensor, kind: dtypes.DType) -> None:
    """The tensor in another float type: it stays the same object, and what it is."""
    if not is_float(one.dtype) or one.dtype is kind:
        return
    collects = one.requires_grad
    with no_grad():
        one._become(cast(one._node, kind))
        if one._shared is not None:  # views of it keep the elements as they were
            one._shared.leave(one)
    if collects:
        one._collect()
    if one.grad is not None:
        one.grad = one.grad.to(kind)


def _take(table: dict[str, Any], key: str, value: Any, assign: bool) -> None:
    """One value of a state into its place."""
    one: Tensor = table[key]
    if arrays.is_tensor(value):
        value = value.detach()
    if assign:
        given = value.detach() if isinstance(value, Tensor) else tensor(value)
        table[key] = given.requires_grad_(one.requires_grad)
    else:
        one.copy_(value)
