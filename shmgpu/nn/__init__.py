"""Layers and losses over tensors, in PyTorch's spelling.

A module finds its parameters by their names; its ``state_dict`` is that of PyTorch's module of the
same layers. Never computes: a layer records operations, like any code that uses tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmgpu.nn import functional, init, utils
from shmgpu.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from shmgpu.nn.module import Module, Parameter
from shmgpu.nn.state import state_arrays, state_tensors
from shmgpu.optim import SGD, Adam, AdamW
from shmgpu.tensors.tensor import FUNCTIONS

if TYPE_CHECKING:
    from shmgpu.nn.simple import Identity
    from shmgpu.nn.typed_layers import *  # noqa: F403
    from shmgpu.nn.typed_names import *  # noqa: F403
else:
    from shmgpu.nn.attention import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
    from shmgpu.nn.convolution import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
    from shmgpu.nn.layers import Bilinear, Embedding, Linear
    from shmgpu.nn.losses import (
        BCELoss,
        BCEWithLogitsLoss,
        CosineEmbeddingLoss,
        CrossEntropyLoss,
        GaussianNLLLoss,
        HingeEmbeddingLoss,
        HuberLoss,
        KLDivLoss,
        L1Loss,
        MarginRankingLoss,
        MSELoss,
        NLLLoss,
        PoissonNLLLoss,
        SmoothL1Loss,
        SoftMarginLoss,
        TripletMarginLoss,
    )
    from shmgpu.nn.normalisation import (
        BatchNorm1d,
        BatchNorm2d,
        GroupNorm,
        InstanceNorm1d,
        InstanceNorm2d,
        LayerNorm,
        RMSNorm,
    )
    from shmgpu.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
    from shmgpu.nn.simple import (
        CELU,
        ELU,
        GELU,
        GLU,
        SELU,
        AdaptiveAvgPool1d,
        AdaptiveAvgPool2d,
        AdaptiveMaxPool1d,
        AdaptiveMaxPool2d,
        AvgPool1d,
        AvgPool2d,
        CosineSimilarity,
        Dropout,
        Dropout1d,
        Dropout2d,
        Flatten,
        Hardshrink,
        Hardsigmoid,
        Hardswish,
        Hardtanh,
        Identity,
        LeakyReLU,
        LogSigmoid,
        LogSoftmax,
        MaxPool1d,
        MaxPool2d,
        Mish,
        PairwiseDistance,
        PixelShuffle,
        PixelUnshuffle,
        PReLU,
        ReLU,
        ReLU6,
        Sigmoid,
        SiLU,
        Softmax,
        Softmin,
        Softplus,
        Softshrink,
        Softsign,
        Tanh,
        Tanhshrink,
        Unflatten,
        Upsample,
    )

    mse_loss = FUNCTIONS["mse_loss"]
    relu = FUNCTIONS["relu"]
    sigmoid = FUNCTIONS["sigmoid"]
    tanh = FUNCTIONS["tanh"]

_ALSO = {"cross_entropy_loss": "cross_entropy"}  # GT's names of what PyTorch calls otherwise


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Operations are functions of this room, too: nn.softmax is shmgpu.softmax."""
        found = FUNCTIONS.get(_ALSO.get(name, name))
        if found is None:
            raise AttributeError(f"module 'shmgpu.nn' has no attribute {name!r}")
        return found


__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "SGD",
    "Adam",
    "AdamW",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Bilinear",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GaussianNLLLoss",
    "GroupNorm",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "KLDivLoss",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "MaxPool1d",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "PairwiseDistance",
    "Parameter",
    "ParameterList",
    "PixelShuffle",
    "PixelUnshuffle",
    "PoissonNLLLoss",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TripletMarginLoss",
    "Unflatten",
    "Upsample",
    "functional",
    "init",
    "mse_loss",
    "relu",
    "sigmoid",
    "state_arrays",
    "state_tensors",
    "tanh",
    "utils",
]


def __dir__() -> list[str]:
    return __all__
