"""What all optimisers share: groups of parameters, their state, and how it is saved and loaded.

A step is recorded like anything else, so forward, backward and step travel as one program. Numbers
that change from step to step travel beside it: a new learning rate makes no new program. A rule is
asked once for each parameter; what it recorded is reused while the same ones have gradients.

A step replaces each parameter and each tensor of its state by one operation in place. If what they
depend on fails, all of them keep their values. Owns groups and state. Never computes, and never
waits for a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

from shmgpu.codec import arrays
from shmgpu.codec.dtypes import DType
from shmgpu.common.wording import kind_of
from shmgpu.ops import promotion
from shmgpu.ops.elementwise import add_scaled, mul, neg
from shmgpu.ops.graph import Node
from shmgpu.ops.promotion import is_float
from shmgpu.ops.templates import Templates
from shmgpu.tensors import current
from shmgpu.tensors.grad_mode import enable_grad, no_grad
from shmgpu.tensors.tensor import Tensor, full, snapshot, tensor

Group = dict[str, Any]
Form = Any  # hashable: what a rule does depends on it, besides shapes and types
Numbers = tuple[float, ...]


class Hints(TypedDict, total=False):
    """What type checkers know of :data:`HINTS`; each optimiser takes some of them."""

    foreach: bool | None
    capturable: bool
    differentiable: bool
    fused: bool | None


# Arguments that say how torch computes a step. Nothing here depends on them.
HINTS = {"foreach": None, "capturable": False, "differentiable": False, "fused": None}
COUPLED, DECOUPLED = 1, 2  # weights decay by their gradients, or apart from them
COUNTS = ("step", "mu_product")  # plain numbers of a state; tensors of one element for torch

_templates = Templates()


class Optimizer:
    """The base of all optimisers.

    Attributes:
        param_groups: dicts, each with a list of parameters (``params``) and the settings of these,
            which may be changed between steps.
        state: for each parameter its state: tensors and counts.
        defaults: the settings of a group that does not say otherwise.
    """

    hints: tuple[str, ...] = ("foreach", "capturable", "differentiable")

    def __init__(
        self,
        params: Iterable[Any],
        defaults: Mapping[str, Any],
        hints: Mapping[str, object] | None = None,
    ) -> None:
        name = type(self).__name__
        strange = set(hints or {}) - set(self.hints)
        if strange:
            raise TypeError(f"{name} has no settings {', '.join(sorted(strange))}")
        if isinstance(params, Tensor):
            raise TypeError(f"{name}: give a list of parameters, as in [weight]")
        self.defaults = {**defaults, **{key: HINTS[key] for key in self.hints}, **(hints or {})}
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._turns: dict[Tensor, int] = {}  # of each, how many steps it has made
        if not isinstance(params, Iterable):
            raise TypeError(
                f"{name}: give a list of parameters, as model.parameters(), not {kind_of(params)}"
            )
        listed = list(params)
        if not listed:
            raise ValueError(f"{name}: there are no parameters to change")
        for group in listed if isinstance(listed[0], dict) else [{"params": listed}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters to be updated.

        Args:
            param_group: ``params``, a tensor or several, and settings other than the usual ones.

        Raises:
            ValueError: one of them collects no gradients, or is already in a group.
        """
        name = type(self).__name__
        params = param_group["params"]
        listed = [params] if isinstance(params, Tensor) else list(params)
        for one in listed:
            if not isinstance(one, Tensor) or not one.is_leaf or not one.requires_grad:
                raise ValueError(
                    f"{name}: each parameter must be a tensor made with requires_grad=True"
                )
        known = [id(one) for group in self.param_groups for one in group["params"]]
        known += [id(one) for one in listed]
        if len(set(known)) < len(known):
            raise ValueError(f"{name}: a parameter is given twice")
        self.param_groups.append({**self.defaults, **param_group, "params": listed})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zeros unless ``set_to_none``."""
        for group in self.param_groups:
            forget(group["params"], set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: called first; computes the loss and its gradients, and its result is returned.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad(), current.together:
            for group in self.param_groups:
                self._update(group)
        current.recorder().step_done()
        return loss

    def _update(self, group: Group) -> None:
        """One step of a group: one template for all of its parameters, by what is given to them."""
        names, decay = self._keeps(group), group["weight_decay"]
        flags = (bool(group.get("maximize")), _decay_of(group))
        moved = [one for one in group["params"] if one.grad is not None]
        for one in moved:
            if one.grad.shape != one.shape:
                raise RuntimeError(
                    f"a parameter of shape {one.shape} has a gradient of shape {one.grad.shape}: "
                    "set grad to a tensor of its own shape"
                )
        numbered: dict[tuple[DType, Numbers], tuple[Node, ...]] = {}  # most share their numbers
        parts: list[tuple[Form, tuple[Node, ...]]] = []
        befores: list[dict[str, Any]] = []
        changed: list[Tensor] = []
        for one in moved:
            before = one._node
            state = self.state.get(one)
            if state is None:
                state = self.state[one] = {}
            befores.append(state.copy())
            form, numbers = self._numbers(state, group)
            dtype = before.spec.dtype
            if decay:
                share = decay if flags[1] == COUPLED else 1 - group["lr"] * decay
                numbers = (share, *numbers)
            known = numbered.get((dtype, numbers))
            if known is None:
                known = tuple([promotion.number(value, dtype) for value in numbers])
                numbered[dtype, numbers] = known
            kept = []
            for name in names:
                if name not in state:
                    state[name] = full(one.shape, self._begin(group), dtype=dtype)
                kept.append(state[name])
            changed += (*kept, one)
            parts.append((form, (before, one.grad._node, *[each._node for each in kept], *known)))
        places: dict[Node, int] = {}
        key: list[Any] = [type(self), flags, len(names)]
        for form, given in parts:
            key += (form, len(given))
            for node in given:  # two may have one gradient, or the same numbers
                place = places.setdefault(node, len(places))
                key.append(place)
                key.append(node.spec)

        def record() -> list[Node]:
            return [
                node for form, given in parts for node in self._made(form, flags, given, len(names))
            ]

        for each, node in zip(
            changed, _templates.record(tuple(key), list(places), record), strict=True
        ):
            each._updated(node)  # shown by no other tensor: copy_ would have to mark a copy
        for one, as_it_was in zip(moved, befores, strict=True):
            if (undo := one._node.undo) is not None:
                turn = self._turns[one] = self._turns.get(one, 0) + 1
                one._node.undo = (*undo, partial(self._take_back, one, as_it_was, turn))

    def _take_back(self, one: Tensor, before: dict[str, Any], turn: int) -> None:
        """That step of a parameter failed: its counts are what they were, as its tensors are.

        Of several that failed the first has the last word.
        """
        if self._turns[one] >= turn:
            self._turns[one] = turn - 1
            self.state[one] = before

    def _made(
        self, form: Form, flags: tuple[bool, int], given: tuple[Node, ...], count: int
    ) -> tuple[Node, ...]:
        """What the rule records; a gradient to climb is reversed first, and weights decay."""
        (one, grad), kept, numbers = given[:2], given[2 : 2 + count], given[2 + count :]
        if flags[0]:
            grad = neg(grad)
        if flags[1]:
            decay, *rest = numbers
            numbers = tuple(rest)
            if flags[1] == COUPLED:
                grad = add_scaled(grad, one, decay)
            else:
                one = mul(one, decay)
        return self._change(form, one, grad, kept, numbers)

    # ---- what a rule says ------------------------------------------------------------------------

    def _keeps(self, group: Group) -> tuple[str, ...]:
        """The names of the tensors that are kept of each parameter, in its shape."""
        raise NotImplementedError

    def _begin(self, group: Group) -> float:
        """What these begin with."""
        return 0.0

    def _numbers(self, state: dict[str, Any], group: Group) -> tuple[Form, Numbers]:
        """What changes from step to step; it is asked once for each, and may count."""
        raise NotImplementedError

    @staticmethod
    def _change(
        form: Form,
        one: Node,
        grad: Node,
        kept: tuple[Node, ...],
        numbers: tuple[Node, ...],
    ) -> tuple[Node, ...]:
        """Record a step: what is kept becomes, and at last the parameter.

        It sees the form, and of the numbers that there are some: not what they are.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Groups and state, parameters by their positions, as in torch's optimisers.

        ``nn.state_tensors`` converts it for torch's ``load_state_dict``.
        """
        places: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            numbers = [places.setdefault(id(one), len(places)) for one in group["params"]]
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": numbers})
        kept = {places[id(one)]: _given(state) for one, state in self.state.items() if state}
        return {"state": dict(sorted(kept.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take groups and state from another run of the same model, of this library or of torch.

        Args:
            state_dict: what ``state_dict`` gave; tensors, torch tensors or arrays.

        Raises:
            ValueError: the numbers of groups or parameters differ.
        """
        if "settings" in state_dict:
            state_dict = _of_one_group(state_dict)
        saved = state_dict["param_groups"]
        counts = [
            [len(group["params"]) for group in groups] for groups in (saved, self.param_groups)
        ]
        if counts[0] != counts[1]:
            raise ValueError(
                f"the saved state is of groups of {counts[0]} parameters, this of {counts[1]}"
            )
        by_place: dict[Any, Tensor] = {}
        for group, other in zip(self.param_groups, saved, strict=True):
            by_place.update(zip(other["params"], group["params"], strict=True))
        self.param_groups = [
            {**group, **{k: v for k, v in other.items() if k != "params"}}
            for group, other in zip(self.param_groups, saved, strict=True)
        ]
        self.state = {
            by_place[place]: {k: _taken(k, v, by_place[place]) for k, v in state.items()}
            for place, state in state_dict["state"].items()
        }

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {k}: {group[k]}" for k in sorted(group) if k != "params"]
        return "\n".join([*lines, ")"])


# What earlier versions called the parts of a parameter's state.
_FORMER_PARTS = {"mean": "exp_avg", "square": "exp_avg_sq", "momentum": "momentum_buffer"}


def _of_one_group(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A state as earlier versions wrote it, in today's form: settings, and a list of states."""
    parts = [{_FORMER_PARTS.get(k, k): v for k, v in state.items()} for state in saved["state"]]
    return {
        "state": {place: state for place, state in enumerate(parts) if state},
        "param_groups": [{**saved["settings"], "params": list(range(len(parts)))}],
    }


def forget(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """No gradients in these, or zeros."""
    for one in parameters:
        if set_to_none or one.grad is None:
            one.grad = None
        else:
            one.grad = one.grad.detach().zero_()


def _given(state: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a parameter, on its way out: counts as tensors, as torch has them."""
    found = {}
    for key, value in state.items():
        if key in COUNTS:
            value = tensor(float(value))
        found[key] = snapshot(value) if isinstance(value, Tensor) else value
    return found


def _taken(key: str, value: Any, one: Tensor) -> Any:
    """A saved value: a count, or a tensor of the parameter's element type."""
    if key in COUNTS:
        return float(value)
    if isinstance(value, Tensor):
        value = snapshot(value)
    elif arrays.is_array(value):
        value = tensor(value)
    else:
        return value
    return value.to(one.dtype) if is_float(value.dtype) else value


def _is_within(number: Any, end: float) -> bool:
    """Whether it is a number from 0 to that, not included."""
    try:
        return bool(0 <= number < end)
    except TypeError:
        return False


def check(name: str, **numbers: float) -> None:
    """ValueError for a setting that is not a number from 0 on."""
    for key, number in numbers.items():
        if not _is_within(number, math.inf):
            raise ValueError(f"{name}: {key}={number!r} must be a number, 0 or more")


def check_betas(name: str, betas: tuple[float, float]) -> None:
    """ValueError for shares that are not from 0 to 1."""
    if not isinstance(betas, Sequence) or not all(_is_within(beta, 1) for beta in betas):
        raise ValueError(f"{name}: betas={betas} must be at least 0 and below 1")


def count(state: dict[str, Any]) -> float:
    """One step more: how many it makes."""
    state["step"] = state.get("step", 0.0) + 1.0
    found: float = state["step"]
    return found


def _decay_of(group: Group) -> int:
    """How weights decay."""
    if not group["weight_decay"]:
        return 0
    return DECOUPLED if group.get("decoupled_weight_decay") else COUPLED
