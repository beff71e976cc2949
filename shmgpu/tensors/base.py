"""The class of tensors: what a program works with; each shows one node of the graph.

Owns what a tensor is, how its elements are changed in place, and its gradients. How they are read
is below, in :mod:`shmgpu.tensors.elements`; its operations are added above, in
:mod:`shmgpu.tensors.tensor`. Never sends a message: whoever reads an element asks the recorder for
it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shmgpu import core
from shmgpu.codec import dtypes
from shmgpu.errors import BadParams, NotRunning
from shmgpu.ops import (
    brackets,
    creation,
    elementwise,
    graph,
    indexing,
    reductions,
    shaping,
    stretching,
    views,
)
from shmgpu.ops.casting import alias, cast
from shmgpu.ops.graph import Node, spec_of
from shmgpu.ops.promotion import CATEGORY, bool_, is_float
from shmgpu.ops.redistribution import redistribute
from shmgpu.tensors import autograd, current, devices, interop, once
from shmgpu.tensors.elements import Data, Readable, shown_elements
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.hooks import RemovableHandle, registered
from shmgpu.tensors.message import Held, LostValue, said
from shmgpu.tensors.operands import as_index, as_operand, leaf_of, places_among, places_of
from shmgpu.tensors.sharing import Shared, snapshot, view
from shmgpu.tensors.walks import is_on

if TYPE_CHECKING:  # operators and methods that shmgpu.tensors.tensor adds
    from shmgpu.tensors.typed_operations import Operations
else:
    Operations = object


class Tensor(Readable, Operations):
    """An array that is computed when it is read.

    Attributes:
        grad: sum of the gradients that :meth:`backward` has added, or None.
    """

    if not TYPE_CHECKING:  # to which ``grad`` is a property, below
        __slots__ = ("__weakref__", "_hooks", "_shared", "_view", "grad")
    __array_priority__ = 1000

    def __init__(self, node: Node) -> None:
        self._node = node
        self._shared: Shared | None = None  # with views of it, or with what it is a view of
        self._view: views.Chain | None = None  # how it is cut from what is shared; None: all of it
        self.grad = None
        current.show(node)

    def __del__(self) -> None:
        self._node.owners -= 1

    if TYPE_CHECKING:
        __torch_function__: Any

        # It is None until there is one, and whoever reads it knows that there is. An attribute that
        # was set to None would be None to them until it is set again.
        @property
        def grad(self) -> Tensor | Any:
            """As above."""

        @grad.setter
        def grad(self, value: Tensor | None) -> None: ...

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to or through it."""
        return self._node.needs_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

    @property
    def is_leaf(self) -> bool:
        """Whether gradients end here: it was not computed from tensors that require them."""
        return self._node.leaf is not None or not self._node.needs_grad

    @property
    def T(self) -> Tensor:
        """The tensor with its axes in reverse order."""
        return view(self, shaping.permute(self._node, tuple(reversed(range(self.ndim)))))

    @property
    def mT(self) -> Tensor:
        """The matrices of the last two axes, transposed."""
        return view(self, shaping.transpose(self._node, -2, -1))

    def t(self) -> Tensor:
        """A matrix transposed; a vector as it is. ValueError for more axes."""
        if self.ndim > 2:
            raise ValueError(f"t: takes at most two axes, not {self.shape}: use mT or permute")
        return self.T

    @property
    def device(self) -> devices.device:
        """Where it is computed: the device of the helpers that tensors live on."""
        return devices.here()

    @property
    def is_cuda(self) -> bool:
        """Whether it is computed on a CUDA device."""
        return devices.here().type == "cuda"

    def to(
        self,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        non_blocking: bool = False,
        copy: bool = False,
        memory_format: Any = None,
    ) -> Tensor:
        """In another element type; the tensor itself if it already has it.

        A device is accepted and changes nothing: tensors live where helpers compute.

        Args:
            *args: an element type, a device, a tensor whose type is meant, or several of them.
            dtype: the element type.
            device: ``"cpu"``, ``"cuda:0"``, a :class:`shmgpu.device`, ...
            non_blocking: accepted, and changes nothing: nothing is computed here.
            copy: return a copy in any case.
            memory_format: accepted, and changes nothing: helpers decide how elements lie.

        Raises:
            TypeError: an argument is none of these.
        """
        for one in args:
            if type(one) is Tensor:
                dtype = one.dtype
            elif devices.is_device(one):
                device = one
            elif not isinstance(one, bool) and one is not None:
                dtype = one
        devices.accepted(device)
        kind = self.dtype if dtype is None else dtypes.of_any(dtype)
        if kind is not self.dtype:
            return Tensor(cast(self._node, kind))
        return self.clone() if copy else self

    def cpu(self) -> Tensor:
        """The tensor itself: its elements are read where the program runs."""
        return self

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Tensor:
        """The tensor itself: tensors live where helpers compute."""
        devices.accepted(device)
        return self

    def type(self, dtype: Any = None) -> Any:
        """In another element type; without one, the name of its own."""
        return f"shmgpu.{self.dtype.name}" if dtype is None else self.to(dtype)

    def view_as(self, other: Tensor) -> Tensor:
        """The same elements in another tensor's shape."""
        return view(self, shaping.reshape(self._node, other.shape))

    def reshape_as(self, other: Tensor) -> Tensor:
        """As :meth:`view_as`."""
        return self.view_as(other)

    def expand_as(self, other: Tensor) -> Tensor:
        """Axes of length 1 expanded to another tensor's shape."""
        return view(self, stretching.expand(self._node, other.shape))

    def type_as(self, other: Tensor) -> Tensor:
        """In another tensor's element type."""
        return self.to(other.dtype)

    def __iter__(self) -> Any:
        """Its parts along the first axis, as views."""
        if not self.shape:
            raise TypeError("a tensor without axes cannot be iterated over: use item()")
        return iter([view(self, one) for one in shaping.unbind(self._node)])

    def __contains__(self, element: Any) -> bool:
        """Whether an element is equal to that."""
        return bool(Tensor(reductions.any(elementwise.eq(self._node, as_operand(element)))).item())

    # ---- its elements --------------------------------------------------------------------------

    @property
    def data(self) -> Data:
        """Its elements as a read-only array, computed now if they were not before.

        May be set, to a tensor or an array of any shape: no gradients flow through that.
        """
        return shown_elements(self._node)

    @data.setter
    def data(self, value: Any) -> None:
        node = alias(as_operand(value)) if type(value) is Tensor else leaf_of(value, None)
        if self._node.needs_grad and self._node.leaf is None:
            raise RuntimeError(
                "gradients flow through this tensor: set the data of a leaf, or of detach()"
            )
        if self._node.leaf is not None and not is_float(node.spec.dtype):
            raise TypeError(
                f"a tensor that collects gradients cannot become {node.spec.dtype.name}: give it "
                "elements of a float type"
            )
        if self._shared is not None:  # views keep the elements as they were
            self._shared.leave(self)
        with no_grad():
            node = self._where_it_is(node)
        self._replace(node, checks=False)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return interop.with_numpy(Tensor, function, args, kwargs)

    def __shmgpu_array__(self) -> np.ndarray[Any, Any]:
        """What a call carries: the elements where they lie in the arena."""
        if self._node.needs_grad and self._node.leaf is None and graph.grad_mode.enabled:
            raise BadParams(
                "a call cannot carry a tensor that gradients flow through (it would lose them): "
                "pass tensor.detach()"
            )
        return current.elements(self._node)

    @staticmethod
    def __shmgpu_result__(array: np.ndarray[Any, Any]) -> Any:
        """What a call with tensors gives: tensors; an array where tensors have no such type."""
        kind = dtypes.of_numpy(array.dtype)
        if kind not in CATEGORY:
            return array
        if not array.size:  # it lies nowhere
            return Tensor(leaf_of(array, None))
        held = Held(array, core.address_of(array))
        return Tensor(graph.leaf(spec_of(kind, array.shape), held))

    def __pos__(self) -> Tensor:
        return self

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        # The package has it loaded when it is first asked for; it stands above this file.
        return sys.modules["shmgpu"].array_api.of_version(api_version)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The tensor itself: tensors live where helpers compute."""
        devices.accepted(device)
        return self

    # A copy is a tensor of its own: what a helper holds, and how often it is shown, are counted.

    def __copy__(self) -> Tensor:
        return self.__deepcopy__({}) if self._node.leaf is not None else Tensor(self._node)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self._node.needs_grad and self._node.leaf is None:
            raise RuntimeError(
                "a tensor that gradients flow through cannot be copied: copy tensor.detach()"
            )
        made = memo[id(self)] = snapshot(self)
        if self._node.needs_grad:
            made.requires_grad_()
        if self.grad is not None:
            made.grad = self.grad.__deepcopy__(memo)
        return made

    def __reduce__(self) -> Any:
        if self._node.needs_grad and self._node.leaf is None:
            raise RuntimeError(
                "a tensor that gradients flow through cannot be pickled: pickle tensor.detach()"
            )
        return _unpickled, (np.array(self.numpy()), self.requires_grad)

    # ---- gradients -----------------------------------------------------------------------------

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set whether this tensor collects gradients; returns the tensor."""
        node = self._node
        if requires_grad == node.needs_grad:
            return self
        if not requires_grad:
            if node.leaf is None:
                raise RuntimeError(
                    "gradients flow through this tensor: use detach() to get one without"
                )
            self._become(alias(node))
            return self
        if not is_float(node.spec.dtype):
            raise TypeError(
                f"a tensor of {node.spec.dtype.name} has no gradient: convert it to a float type"
            )
        # An operation that had nothing to do returned the same node for two tensors.
        if node.owners > 1:
            self._become(alias(node))
        self._collect()
        return self

    def _collect(self) -> None:
        self._node.needs_grad = True
        self._node.leaf = weakref.ref(self)

    def retain_grad(self) -> None:
        """Have :meth:`backward` set ``grad`` of this tensor, too, which is not a leaf.

        Raises:
            RuntimeError: no gradients flow to it.
        """
        node = self._node
        if not node.needs_grad:
            raise RuntimeError("retain_grad: no gradients flow to this tensor")
        if node.leaf is not None or self.retains_grad:
            return
        me = weakref.ref(self)

        def keep(g: Node) -> Node:
            tensor = me()
            if tensor is not None:
                tensor._add_grad(g)
            return g

        autograd.retained_by(node)[id(self)] = keep

    @property
    def retains_grad(self) -> bool:
        """Whether ``grad`` of this tensor, which is not a leaf, is set by :meth:`backward`."""
        return id(self) in autograd.retained_by(self._node, False)

    def register_hook(self, hook: Any) -> RemovableHandle:
        """Call ``hook(gradient)`` whenever this tensor's gradient is computed.

        Args:
            hook: what it returns, unless None, is the gradient from then on; it must not change
                its argument in place.

        Returns:
            What removes the hook: a handle with ``remove()``, or a context.

        Raises:
            RuntimeError: no gradients flow to the tensor.
        """
        if not self._node.needs_grad:
            raise RuntimeError("register_hook: no gradients flow to this tensor")

        def call(g: Node) -> Node:
            changed = hook(Tensor(g))
            if changed is None:
                return g
            if changed.shape != g.spec.shape:
                raise RuntimeError(
                    f"a hook returned the shape {changed.shape} for a gradient of {g.spec.shape}: "
                    "return the same shape"
                )
            node: Node = cast(changed._node, g.spec.dtype)
            return node

        if self._node.leaf is None:
            return registered(autograd.hooks_of(self._node), call)
        autograd.watch()
        hooks: dict[int, Any] = once.made_once(self, "_hooks", dict)
        return registered(hooks, call)

    def detach_(self) -> Tensor:
        """No gradients flow through this tensor any more; it keeps its elements."""
        if self._node.needs_grad:
            self._become(alias(self._node))
        return self

    def detach(self) -> Tensor:
        """The same elements, through which no gradients flow.

        A change in place of one is seen in the other, as in PyTorch; see :meth:`clone`.
        """
        return view(self, alias(self._node), views.DETACHED)

    def clone(self) -> Tensor:
        """A separate tensor with the same elements."""
        return Tensor(
            elementwise.mul(self._node, 1) if self._node.needs_grad else alias(self._node)
        )

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Compute gradients, and add them to ``grad`` of every leaf that this tensor depends on.

        Args:
            gradient: the gradient with respect to this tensor, in its shape; by default ones.
            retain_graph: keep what a second call needs.
            create_graph: make the gradients differentiable themselves.

        Raises:
            RuntimeError: no leaf requires a gradient, or the graph was released.
        """
        backward_from([self], [gradient], retain_graph, create_graph, "this tensor")

    def _own_gradient(self, share: Node) -> Node:
        """This tensor's gradient, put on the tensor's mesh where it is not there yet.

        That of a sum is made of numbers alone, which say nothing of a mesh.
        """
        layout = said(self._node)
        if layout is None or is_on(layout.mesh, share):
            return share
        return self._where_it_is(share)

    def _add_grad(self, share: Node) -> None:
        share = self._own_gradient(share)
        before = self.grad
        if before is not None and type(before._node.value) is not LostValue:
            share = elementwise.add(before._node, share)
        self.grad = Tensor(share)

    # ---- in place ------------------------------------------------------------------------------

    def _become(self, node: Node) -> None:
        """Show another node."""
        self._node.owners -= 1
        self._node = node
        current.show(node)

    def _updated(self, node: Node) -> Tensor:
        """Take the result of an in-place operation: whoever shares the elements shows it, too."""
        before = self._node
        if node.spec is not before.spec:  # there is one object of each
            node = self._fitted(node)
        # Gradients of what was there are zeros.
        if before.needs_grad and not node.needs_grad and graph.grad_mode.enabled:
            node = indexing.put_slices(before, [slice(None)] * self.ndim, node)
        if self._shared is None:
            self._replace(node)
        else:
            self._shared.write(self, node)
        return self

    def _fitted(self, node: Node) -> Node:
        """The result of an in-place operation in the tensor's own element type."""
        if node.spec.shape != self.shape:
            raise ValueError(
                f"in place: the result's shape {node.spec.shape} is not the tensor's {self.shape}"
            )
        dtype = self.dtype
        if CATEGORY[node.spec.dtype] > CATEGORY[dtype]:
            raise TypeError(
                f"in place: the result is {node.spec.dtype.name} and the tensor {dtype.name}, "
                "which cannot hold it: write x = x + y instead of x += y, or convert"
            )
        return cast(node, dtype)

    def _replace(self, node: Node, checks: bool = True) -> None:
        """Show another node; the present one again if that cannot be computed."""
        before = self._node
        collects = before.leaf is not None
        if collects and checks and graph.grad_mode.enabled:
            raise RuntimeError(
                "a tensor that collects gradients was changed in place: do it under no_grad()"
            )
        if collects and (node.needs_grad or node.owners):  # its own, to be marked
            node = alias(node)
        if node.value is None and node is not before:
            node.undo = (weakref.ref(self), before)
        self._become(node)
        if collects:
            node.needs_grad = True
            node.leaf = before.leaf

    def _where_it_is(self, node: Node) -> Node:
        """What is made of others alone, lying as this tensor does on a mesh, if it is on one."""
        layout = said(self._node)
        if layout is None or node.spec.shape != self.shape:
            return node
        return redistribute(node, layout)

    def zero_(self) -> Tensor:
        """Set all elements to 0."""
        return self._updated(self._where_it_is(creation.zeros_like(self._node)))

    def copy_(self, source: Any) -> Tensor:
        """Copy the elements of ``source``, expanded to this shape."""
        node = as_operand(source, self.dtype)
        node = stretching.expand(cast(node, self.dtype), self.shape)
        node = indexing.put_slices(self._node, [slice(None)] * self.ndim, node)
        return self._updated(self._where_it_is(node))

    def fill_(self, value: float) -> Tensor:
        """Set all elements to a number."""
        return self._updated(self._where_it_is(creation.full(self.shape, value, self.dtype)))

    def contiguous(self) -> Tensor:
        """The tensor itself; of a view whose elements lie apart, as a copy, as PyTorch gives it.

        How elements lie in memory the helper decides. That it is a copy shows only where one of the
        two is changed in place, so nothing is copied before.
        """
        if self._shared is None or self._shared.is_contiguous(self):
            return self
        return type(self)(self._node)

    def __getitem__(self, index: Any) -> Tensor:
        if type(index) is Tensor and index.dtype is bool_:
            if not index.ndim:  # all of it, or nothing, along a new axis
                return self[None][index.reshape(1)]
            index = index.numpy()  # it is looked at: the shape depends on its elements
        if isinstance(index, (list, np.ndarray)):
            index = places_of(index, self.shape)
        elif isinstance(index, tuple):
            index = places_among(index, self.shape)
        return view(self, brackets.getitem(self._node, as_index(index)))

    def __setitem__(self, index: Any, value: Any) -> None:
        operand = as_operand(value, None)
        if type(operand) is Node and operand.spec.shape not in ((), (1,)):  # a value for each hit
            if type(index) is Tensor and index.dtype is bool_ and index.ndim:
                index = index.numpy()  # it is looked at: which values go where depends on it
            if isinstance(index, (list, np.ndarray)):
                index = places_of(index, self.shape)
        if isinstance(index, tuple):
            index = places_among(index, self.shape)
        index = as_index(index)
        if type(value) is Tensor and self._is_part(index, value):
            return  # ``x[index] += y`` has done so
        self._updated(brackets.setitem(self._node, index, operand))

    def _is_part(self, index: Any, value: Tensor) -> bool:
        """Whether that tensor is the view which the index names."""
        if value._shared is None or value._shared is not self._shared:
            return False
        chain = views.chain_from(self._node, brackets.getitem(self._node, index))
        return chain is not None and value._view == (*(self._view or ()), *chain)


def backward_from(
    outs: Sequence[Tensor],
    gradients: Sequence[Any],
    retain_graph: bool | None,
    create_graph: bool,
    who: str,
) -> None:
    """Compute gradients of all of these at once, and add them to ``grad`` of every leaf.

    ``gradients``: with respect to each, None for ones; ``who``: what a sentence calls one.
    """
    seeds = []
    for out, gradient in zip(outs, gradients, strict=True):
        if not out._node.needs_grad:
            raise RuntimeError(f"backward: nothing that {who} depends on has requires_grad=True")
        seed = None if gradient is None else as_operand(gradient, out.dtype)
        if seed is not None and seed.spec.shape != out.shape:
            raise ValueError(
                f"backward: the gradient's shape {seed.spec.shape} is not the tensor's {out.shape}"
            )
        seeds.append(seed)
    with current.together:
        found = autograd.gradients(
            [out._node for out in outs],
            seeds,
            create_graph=create_graph,
            retain_graph=retain_graph,
        )
        for node, share in found.items():
            tensor = node.leaf()
            if tensor is not None:
                tensor._add_grad(share)


def _unpickled(array: np.ndarray[Any, Any], requires_grad: bool) -> Tensor:
    try:
        made = Tensor(leaf_of(array, None))
    except NotRunning as error:
        raise NotRunning(
            f"unpickling a tensor makes a new one, and no tensors can be made here "
            f"({error}): pass tensor.numpy() instead"
        ) from None
    return made.requires_grad_() if requires_grad else made
