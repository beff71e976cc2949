"""Recurrent layers: RNN, LSTM and GRU over sequences, and the cell of each.

The inputs of all steps are multiplied at once; what remains of a step is one product and a few
element-wise operations. Owns the weights, which are named and laid out as PyTorch's, and the order
of steps. Never reads a value to decide on a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from shmgpu.nn import functional as F
from shmgpu.nn.layers import uniform
from shmgpu.nn.module import Module
from shmgpu.ops import rules
from shmgpu.tensors.tensor import FUNCTIONS, Tensor, zeros

State = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, State], State]
chunk, sigmoid, tanh = FUNCTIONS["chunk"], FUNCTIONS["sigmoid"], FUNCTIONS["tanh"]


# One step each: (from the input, from the hidden state, the state before) -> the state after.


def _elman(activation: Callable[..., Any]) -> Step:
    """Elman, Finding Structure in Time, 1990."""
    return lambda given, kept, state: (activation(given + kept),)


def _lstm(given: Tensor, kept: Tensor, state: State) -> State:
    """Hochreiter and Schmidhuber, Long Short-Term Memory, 1997; with Gers' forget gate."""
    enter, forget, cell, leave = chunk(given + kept, 4, -1)
    inner = sigmoid(forget) * state[1] + sigmoid(enter) * tanh(cell)
    return sigmoid(leave) * tanh(inner), inner


def _gru(given: Tensor, kept: Tensor, state: State) -> State:
    """Cho et al., Learning Phrase Representations, 2014."""
    reset_x, update_x, new_x = chunk(given, 3, -1)
    reset_h, update_h, new_h = chunk(kept, 3, -1)
    new = tanh(new_x + sigmoid(reset_x + reset_h) * new_h)
    return (new + sigmoid(update_x + update_h) * (state[0] - new),)


def _elman_of(name: str, word: str) -> Step:
    if word not in ("tanh", "relu"):
        raise ValueError(f"{name}: nonlinearity={word!r} must be 'tanh' or 'relu'")
    return _elman(FUNCTIONS[word])


class _Recurrent(Module):
    """Layers of steps over a sequence. Each gate's rows lie one below the other in a weight."""

    gates: int  # rows of a weight, in hidden sizes
    states = 1  # tensors that pass from step to step
    _step: Step

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if min(input_size, hidden_size, num_layers) < 1:
            raise ValueError(f"{type(self).__name__}: sizes and num_layers must be 1 or more")
        if not 0 <= dropout <= 1:
            raise ValueError(f"{type(self).__name__}: dropout={dropout} must be a probability")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional = bidirectional
        bound = 1 / math.sqrt(hidden_size)
        rows = self.gates * hidden_size
        for layer in range(num_layers):
            width = hidden_size * len(self._ends()) if layer else input_size
            for end in self._ends():
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, width),
                    "weight_hh": (rows, hidden_size),
                }
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                for name, shape in shapes.items():
                    setattr(self, f"{name}_l{layer}{end}", uniform(bound, *shape, dtype=dtype))

    def _ends(self) -> tuple[str, ...]:
        """What the names of each direction's weights end with."""
        return ("", "_reverse") if self.bidirectional else ("",)

    def flatten_parameters(self) -> None:
        """Nothing: the weights lie where helpers keep them."""

    def _begin(self, x: Tensor, hx: Any, single: bool) -> list[Tensor]:
        """Each tensor of the state, (layers * directions, N, hidden size): zeros by default."""
        shape = (self.num_layers * len(self._ends()), x.shape[1], self.hidden_size)
        if hx is None:
            return [zeros(shape, dtype=x.dtype) for _ in range(self.states)]
        given = [hx] if isinstance(hx, Tensor) else list(hx)
        given = [one.unsqueeze(1) if single else one for one in given]
        if len(given) != self.states or any(one.shape != shape for one in given):
            wanted = shape[:1] + shape[2:] if single else shape
            raise ValueError(
                f"{type(self).__name__}: the state must be {self.states} tensor(s) of {wanted}"
            )
        return given

    def _along(self, x: Tensor, state: State, layer: int, end: str) -> tuple[list[Tensor], State]:
        """One layer in one direction, over (L, N, features)."""

        def own(name: str) -> Any:
            return getattr(self, f"{name}_l{layer}{end}") if name[0] == "w" or self.bias else None

        weight, bias = own("weight_hh"), own("bias_hh")
        given = F.linear(x, own("weight_ih"), own("bias_ih")).unbind(0)
        outputs = []
        for one in reversed(given) if end else given:
            state = self._step(one, F.linear(state[0], weight, bias), state)
            outputs.append(state[0])
        return outputs[::-1] if end else outputs, state

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """Through all layers and steps.

        Args:
            input: (L, N, input_size); (N, L, input_size) with ``batch_first``; or (L, input_size).
            hx: the state at first, (layers * directions, N, hidden_size), zeros by default; of an
                LSTM a pair of them.

        Returns:
            The last layer's outputs, (L, N, directions * hidden_size) or as the input lies; and the
            state at last, as ``hx``.

        Raises:
            ValueError: the shapes do not fit.
        """
        single = input.ndim == 2
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: the input {input.shape} must have 2 or 3 axes, the last "
                f"of {self.input_size}"
            )
        x = input.unsqueeze(1) if single else input
        if self.batch_first and not single:
            x = x.transpose(0, 1)
        begin = self._begin(x, hx, single)
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = F.dropout(x, self.dropout)
            ways = []
            for end in self._ends():
                state = tuple([one[len(last)] for one in begin])
                outputs, state = self._along(x, state, layer, end)
                ways.append(FUNCTIONS["stack"](outputs))
                last.append(state)
            x = ways[0] if len(ways) == 1 else FUNCTIONS["cat"](ways, -1)
        if self.batch_first and not single:
            x = x.transpose(0, 1)
        ended = [FUNCTIONS["stack"](list(one)) for one in zip(*last, strict=True)]
        if single:
            x, ended = x.squeeze(1), [one.squeeze(1) for one in ended]
        return x, ended[0] if self.states == 1 else tuple(ended)

    def extra_repr(self) -> str:
        """Its sizes, and the settings that are not the usual ones."""
        told = [str(self.input_size), str(self.hidden_size)]
        usual = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        for word, value in {**usual, "bidirectional": False}.items():
            if getattr(self, word) != value:
                told.append(f"{word}={getattr(self, word)}")
        return ", ".join(told)


class RNN(_Recurrent):
    """Elman's network: ``h' = tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh)``.

    Weights are initialised uniformly within 1/sqrt(hidden_size) of 0. The arguments are those of
    :class:`LSTM`, and ``nonlinearity``, ``"tanh"`` or ``"relu"``, after ``num_layers``.
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity
        self._step = _elman_of("RNN", nonlinearity)


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), with a forget gate.

    Weights are initialised uniformly within 1/sqrt(hidden_size) of 0.

    Args:
        input_size: features of each step's input.
        hidden_size: those of the state, and of the output in each direction.
        num_layers: layers in the stack.
        bias: whether there are two, ``bias_ih`` and ``bias_hh``.
        batch_first: the input is (N, L, input_size), not (L, N, input_size).
        dropout: probability with which outputs are dropped between layers, in training.
        bidirectional: each layer runs in both directions.
        proj_size: must be 0: ValueError.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    gates, states = 4, 2

    _step = staticmethod(_lstm)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        rules.only("LSTM", proj_size=(proj_size, 0, "put a Linear behind the layer"))
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device, dtype,
        )  # fmt: skip


class GRU(_Recurrent):
    """Gated recurrent units (Cho et al., 2014). The arguments are those of :class:`LSTM`."""

    gates = 3

    _step = staticmethod(_gru)


class _Cell(Module):
    """One step, of one layer."""

    gates: int
    states = 1
    _step: Step

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        bound, rows = 1 / math.sqrt(hidden_size), self.gates * hidden_size
        self.weight_ih = uniform(bound, rows, input_size, dtype=dtype)
        self.weight_hh = uniform(bound, rows, hidden_size, dtype=dtype)
        self.register_parameter("bias_ih", uniform(bound, rows, dtype=dtype) if bias else None)
        self.register_parameter("bias_hh", uniform(bound, rows, dtype=dtype) if bias else None)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """The state after the step, (N, hidden_size) or (hidden_size,); of an LSTM a pair.

        Raises:
            ValueError: the shapes do not fit.
        """
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: the input {input.shape} must be (N, {self.input_size}) or "
                f"({self.input_size},)"
            )
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            state: State = tuple([zeros(shape, dtype=input.dtype) for _ in range(self.states)])
        else:
            state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if len(state) != self.states or any(one.shape != shape for one in state):
            raise ValueError(
                f"{type(self).__name__}: the state must be {self.states} tensor(s) of {shape}"
            )
        given = F.linear(input, self.weight_ih, self.bias_ih)
        state = self._step(given, F.linear(state[0], self.weight_hh, self.bias_hh), state)
        return state[0] if self.states == 1 else state

    def extra_repr(self) -> str:
        """Its sizes."""
        told = f"{self.input_size}, {self.hidden_size}"
        return told if self.bias else f"{told}, bias=False"


class RNNCell(_Cell):
    """One step of an :class:`RNN`. The arguments are those of :class:`LSTMCell`.

    ``nonlinearity``, ``"tanh"`` or ``"relu"``, stands after ``bias``.
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity
        self._step = _elman_of("RNNCell", nonlinearity)


class LSTMCell(_Cell):
    """One step of an :class:`LSTM`; the state is a pair.

    Args:
        input_size: features of the input.
        hidden_size: those of the state.
        bias: whether there are two, ``bias_ih`` and ``bias_hh``.
        device: accepted, and changes nothing: tensors live where helpers compute.
        dtype: element type of the parameters, float32 by default.
    """

    gates, states = 4, 2
    _step = staticmethod(_lstm)


class GRUCell(_Cell):
    """One step of a :class:`GRU`. The arguments are those of :class:`LSTMCell`."""

    gates = 3
    _step = staticmethod(_gru)
