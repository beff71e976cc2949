"""Random numbers that follow from a seed of their own: ``Generator``, as PyTorch's.

Owns the generators that a program makes, and the default one. Never draws a number: a generator
says which seed comes next, and a helper draws from it.
"""

from __future__ import annotations

import os
from typing import Any

from shmgpu.common import seeding
from shmgpu.tensors import devices
from shmgpu.tensors.base import Tensor
from shmgpu.tensors.conversion import tensor

DEFAULT_SEED = 67280421310721  # with which PyTorch's begin, too
_HALF = 1 << 63


class Generator:
    """A source of random numbers: pass it as ``generator=`` to a function that draws.

    Args:
        device: accepted, and changes nothing: tensors live where helpers compute.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     one, other = shmgpu.Generator(), shmgpu.Generator()
        ...     x = shmgpu.rand(3, generator=one.manual_seed(7))
        ...     y = shmgpu.rand(3, generator=other.manual_seed(7))
        ...     shmgpu.equal(x, y)
        True
    """

    def __init__(self, device: Any = None) -> None:
        devices.accepted(device)
        self._seeds = seeding.Seeds()
        self.manual_seed(DEFAULT_SEED)

    @property
    def device(self) -> devices.device:
        """Where tensors live."""
        return devices.here()

    def manual_seed(self, seed: int) -> Generator:
        """Start from that seed; returns the generator itself."""
        self._seeds.begin(int(seed))
        return self

    def seed(self) -> int:
        """Start from a random seed; returns it."""
        return self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1).initial_seed()

    def initial_seed(self) -> int:
        """The seed that it began with."""
        return self._seeds.initial

    def get_state(self) -> Tensor:
        """Its state: an int64 tensor of two elements, for :meth:`set_state`."""
        initial = (self._seeds.initial + _HALF) % (2 * _HALF) - _HALF  # as int64 holds it
        return tensor([initial, self._seeds.state], dtype="int64")

    def set_state(self, new_state: Any) -> Generator:
        """Continue from that state; returns the generator itself.

        Raises:
            ValueError: it is no state that :meth:`get_state` gave.
        """
        state = new_state.tolist() if hasattr(new_state, "tolist") else list(new_state)
        if len(state) != 2 or not all(type(one) is int for one in state):
            raise ValueError("set_state: give what get_state() of a generator of shmgpu returned")
        self._seeds.initial, self._seeds.state = state
        return self

    def clone_state(self) -> Generator:
        """A new generator in the same state."""
        return Generator().set_state(self.get_state())

    def __reduce__(self) -> Any:
        return _again, (self._seeds.initial, self._seeds.state)


class _Default(Generator):
    """The one that is drawn from where none is given; a role's seed begins it, or a program's."""

    def __init__(self) -> None:
        self._seeds = seeding.TENSORS

    def manual_seed(self, seed: int) -> Generator:
        """Begin where that seed says; it holds in what this process joins, and forks, too."""
        seeding.seed_by_user(int(seed))
        return self

    def __reduce__(self) -> Any:
        return "default_generator"


default_generator = _Default()


def initial_seed() -> int:
    """The seed that the default generator began with."""
    return default_generator.initial_seed()


def seed() -> int:
    """Start the default generator from a random seed; returns it."""
    return default_generator.seed()


def _again(initial: int, state: int) -> Generator:
    made = Generator()
    made._seeds.initial, made._seeds.state = initial, state
    return made


def seeds_of(generator: Generator | None) -> seeding.Seeds:
    """From which seeds a draw takes the next.

    Raises:
        TypeError: it is no generator of this library.
    """
    if generator is None:
        return seeding.TENSORS
    if not isinstance(generator, Generator):
        raise TypeError(
            f"generator={generator!r} must be a shmgpu.Generator: PyTorch's and NumPy's draw in "
            "this process, and tensors are drawn in helpers"
        )
    return generator._seeds


def get_rng_state() -> Tensor:
    """The default generator's state, an int64 tensor, for :func:`set_rng_state`."""
    return default_generator.get_state()


def set_rng_state(new_state: Any) -> None:
    """Set the default generator to that state.

    Raises:
        ValueError: it is no state that :func:`get_rng_state` gave.
    """
    default_generator.set_state(new_state)
