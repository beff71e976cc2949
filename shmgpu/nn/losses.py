"""Losses as layers. Those with a ``weight`` keep it as a buffer, as PyTorch's do.

Owns their options. Never computes: each calls the function of the same name.
"""

from __future__ import annotations

from typing import Any

from shmgpu.nn import functional as F
from shmgpu.nn.module import Module


class _Loss(Module):
    """A loss of a prediction and a target, or of more than one prediction.

    The settings are the layer's arguments and its attributes; ``reduction``, which each takes, is
    ``"mean"``, ``"sum"`` or ``"none"``. A loss with a weight takes that first, any other its
    reduction, or what it is best known for.
    """

    function: str
    buffers_of: tuple[str, ...] = ()
    defaults: tuple[tuple[str, Any], ...] = (("reduction", "mean"),)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        names = [*self.buffers_of[:1], *[name for name, _ in self.defaults], *self.buffers_of[1:]]
        if given and isinstance(given[0], str) and names[0] != "reduction":
            named["reduction"], given = given[0], given[1:]
        if len(given) > len(names) or not set(named) <= set(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)}")
        settings = {**dict(self.defaults), **dict(zip(names, given, strict=False)), **named}
        for name in self.buffers_of:
            self.register_buffer(name, settings.pop(name, None))
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, *tensors: Any) -> Any:
        """The loss."""
        names = [*self.buffers_of, *[name for name, _ in self.defaults]]
        settings = {name: getattr(self, name) for name in names}
        return getattr(F, self.function)(*tensors, **settings)


_REDUCTION = ("reduction", "mean")
_MARGIN = ("margin", 0.0)


class MSELoss(_Loss):
    """The squared difference."""

    function = "mse_loss"


class L1Loss(_Loss):
    """The difference without its sign."""

    function = "l1_loss"


class SmoothL1Loss(_Loss):
    """The difference without its sign; within ``beta`` a square (Girshick, 2015)."""

    function = "smooth_l1_loss"
    defaults = (_REDUCTION, ("beta", 1.0))


class HuberLoss(_Loss):
    """Half the square; beyond ``delta`` it rises straight (Huber, 1964)."""

    function = "huber_loss"
    defaults = (_REDUCTION, ("delta", 1.0))


class KLDivLoss(_Loss):
    """The Kullback-Leibler divergence, of log-probabilities and probabilities.

    ``reduction="batchmean"`` is the definition's; with ``log_target`` the target holds logarithms.
    """

    function = "kl_div"
    defaults = (_REDUCTION, ("log_target", False))


class CrossEntropyLoss(_Loss):
    """Of any scores (N, classes, ...), and the right classes, or a probability of each.

    ``weight``, (classes,), says how much each counts; a target ``ignore_index`` does not count.
    """

    function = "cross_entropy"
    buffers_of = ("weight",)
    defaults = (("ignore_index", -100), _REDUCTION, ("label_smoothing", 0.0))


class NLLLoss(_Loss):
    """Of logarithms of probabilities, and the right classes; ``weight`` and more as above."""

    function = "nll_loss"
    buffers_of = ("weight",)
    defaults = (("ignore_index", -100), _REDUCTION)


class BCELoss(_Loss):
    """Of probabilities of two classes; ``weight`` is stretched to the input's shape."""

    function = "binary_cross_entropy"
    buffers_of = ("weight",)


class BCEWithLogitsLoss(_Loss):
    """Of what a sigmoid would make probabilities of.

    ``weight`` and ``pos_weight``, which multiplies the part of targets that are 1, are stretched.
    """

    function = "binary_cross_entropy_with_logits"
    buffers_of = ("weight", "pos_weight")


class PoissonNLLLoss(_Loss):
    """Of (the logarithms of) means, and counts."""

    function = "poisson_nll_loss"
    defaults = (("log_input", True), ("full", False), ("eps", 1e-8), _REDUCTION)


class GaussianNLLLoss(_Loss):
    """Of means, targets and variances of normal distributions."""

    function = "gaussian_nll_loss"
    defaults = (("full", False), ("eps", 1e-6), _REDUCTION)


class CosineEmbeddingLoss(_Loss):
    """Of two rows of vectors, which are alike (1) or not (-1)."""

    function = "cosine_embedding_loss"
    defaults = (_MARGIN, _REDUCTION)


class MarginRankingLoss(_Loss):
    """Of two predictions, of which the first (1) or the second (-1) should be greater."""

    function = "margin_ranking_loss"
    defaults = (_MARGIN, _REDUCTION)


class HingeEmbeddingLoss(_Loss):
    """Of distances of what is alike (1) or not (-1)."""

    function = "hinge_embedding_loss"
    defaults = (("margin", 1.0), _REDUCTION)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * input)), of targets 1 and -1."""

    function = "soft_margin_loss"


class TripletMarginLoss(_Loss):
    """Of anchors, what is alike, and what is not: the latter should be farther by ``margin``."""

    function = "triplet_margin_loss"
    defaults = (("margin", 1.0), ("p", 2.0), ("eps", 1e-6), ("swap", False), _REDUCTION)
