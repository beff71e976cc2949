"""A device that is none: it records what torch is asked for on the CPU, and does it again.

As on a real one, capturing does nothing (what was written is put back, what was made is spoilt), a
replay knows memory and numbers but not who gave them, and what waits for the device is refused.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shmgpu.engine.backends import TorchBackend

REFUSED = ("_local_scalar_dense", "item", "nonzero", "masked_select", "manual_seed")


def tensors(tree):
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def memory(tensor):
    return tensor.untyped_storage().data_ptr()


class Tape(TorchDispatchMode):
    """Everything that is asked for while it is entered."""

    def __init__(self, generators):
        super().__init__()
        self.generators = {one._cdata for one in generators}
        self.calls = []
        self.before = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.name.partition("::")[2] in REFUSED:
            raise RuntimeError("operation not permitted when stream is capturing")
        generator = kwargs.get("generator")
        if generator is not None and generator._cdata not in self.generators:
            raise RuntimeError("the generator was not registered with the graph")
        given = [*args, *kwargs.values()]
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._save(argument, value)
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                self._save(argument, kwargs[argument.name])
        made = func(*args, **kwargs)
        inputs = {memory(one) for one in tensors(given)}
        own = [memory(one) not in inputs for one in tensors(made)]
        self.calls.append((func, args, kwargs, tensors(made), own))
        return made

    def _save(self, argument, value):
        if argument.alias_info is not None and argument.alias_info.is_write:
            self.before += [(one, one.clone()) for one in tensors(value)]

    # A device asks nobody whether memory was made in inference mode.
    @torch.inference_mode()
    def undo(self):
        """Nothing was done."""
        for _, _, _, made, own in self.calls:
            for one, is_own in zip(made, own, strict=True):
                if is_own:
                    one.fill_(77)
        for one, before in reversed(self.before):
            one.copy_(before)
        self.before.clear()

    @torch.inference_mode()
    def replay(self):
        for func, args, kwargs, made, own in self.calls:
            again = tensors(func(*args, **kwargs))
            for one, other, is_own in zip(made, again, own, strict=True):
                if is_own:
                    one.copy_(other)


class StandInDriver:
    """Notes what it is asked for, in ``events``."""

    def __init__(self):
        self.events = []
        self.fails = False

    def beside(self, work):
        self.events.append("beside")
        return work()

    def capture(self, work, generators):
        self.events.append("capture")
        if self.fails:
            raise RuntimeError("the device cannot\nsecond line")
        tape = Tape(generators)
        states = [one.get_state() for one in generators]
        with tape:
            results = work()
        tape.undo()
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)

        def replay():
            self.events.append("replay")
            tape.replay()

        return replay, results

    def copy(self, destinations, sources):
        self.events.append(f"copy {len(destinations)}")
        torch._foreach_copy_(list(destinations), list(sources))

    def put_numbers(self, destination, values):
        self.events.append(f"numbers {len(values)}")
        destination.copy_(torch.tensor(values, dtype=torch.float64))

    def finish(self):
        self.events.append("finish")


class StandIn(TorchBackend):
    """Torch on the CPU, as if it were another device."""

    made = None  # the latest

    def __init__(self, device="cpu"):
        super().__init__("cpu")
        self.is_host = False
        self.standing_in = StandInDriver()
        StandIn.made = self

    def driver(self):
        return self.standing_in


class Unreplayed(TorchBackend):
    """Torch on the CPU; random numbers are what a device would draw."""

    def kernel(self, op, specs, params, out):
        return op.torch(self.module, specs, params, out)
