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
    """Mean squared error."""

    function = "mse_loss"


class L1Loss(_Loss):
    """Mean absolute error."""

    function = "l1_loss"


class SmoothL1Loss(_Loss):
    """Mean absolute error, quadratic below ``beta`` (Girshick, 2015)."""

    function = "smooth_l1_loss"
    defaults = (_REDUCTION, ("beta", 1.0))


class HuberLoss(_Loss):
    """Half the squared error, linear beyond ``delta`` (Huber, 1964)."""

    function = "huber_loss"
    defaults = (_REDUCTION, ("delta", 1.0))


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of log-probabilities and probabilities.

    ``reduction="batchmean"`` is as defined; with ``log_target`` the target holds logarithms.
    """

    function = "kl_div"
    defaults = (_REDUCTION, ("log_target", False))


class CrossEntropyLoss(_Loss):
    """Cross entropy of scores (N, classes, ...) with the right classes, or a probability of each.

    ``weight``, (classes,), weighs the classes; targets ``ignore_index`` are skipped.
    """

    function = "cross_entropy"
    buffers_of = ("weight",)
    defaults = (("ignore_index", -100), _REDUCTION, ("label_smoothing", 0.0))


class NLLLoss(_Loss):
    """Negative log-likelihood: log-probabilities and the right classes; see CrossEntropyLoss."""

    function = "nll_loss"
    buffers_of = ("weight",)
    defaults = (("ignore_index", -100), _REDUCTION)


class BCELoss(_Loss):
    """Binary cross entropy of probabilities; ``weight`` is broadcast to the input's shape."""

    function = "binary_cross_entropy"
    buffers_of = ("weight",)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of scores, to which a sigmoid is applied.

    ``weight`` is broadcast, as is ``pos_weight``, which multiplies the loss of targets that are 1.
    """

    function = "binary_cross_entropy_with_logits"
    buffers_of = ("weight", "pos_weight")


class PoissonNLLLoss(_Loss):
    """Negative log-likelihood of Poisson counts: (log-)means, and the counts."""

    function = "poisson_nll_loss"
    defaults = (("log_input", True), ("full", False), ("eps", 1e-8), _REDUCTION)


class GaussianNLLLoss(_Loss):
    """Negative log-likelihood of normal distributions: means, targets, variances."""

    function = "gaussian_nll_loss"
    defaults = (("full", False), ("eps", 1e-6), _REDUCTION)


class CosineEmbeddingLoss(_Loss):
    """Loss of pairs of vectors that are alike (target 1) or not (-1), by their cosine."""

    function = "cosine_embedding_loss"
    defaults = (_MARGIN, _REDUCTION)


class MarginRankingLoss(_Loss):
    """Ranking loss: the first (target 1) or the second (-1) prediction should be larger."""

    function = "margin_ranking_loss"
    defaults = (_MARGIN, _REDUCTION)


class HingeEmbeddingLoss(_Loss):
    """Hinge loss of distances of pairs that are alike (target 1) or not (-1)."""

    function = "hinge_embedding_loss"
    defaults = (("margin", 1.0), _REDUCTION)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * input)), with targets 1 and -1."""

    function = "soft_margin_loss"


class TripletMarginLoss(_Loss):
    """Loss of anchors, positives and negatives: negatives should be farther by ``margin``."""

    function = "triplet_margin_loss"
    defaults = (("margin", 1.0), ("p", 2.0), ("eps", 1e-6), ("swap", False), _REDUCTION)
