"""Modules that an earlier version pickled: their attributes, as today's classes have them.

Owns the differences between a layer's attributes then and now. Never looks at a tensor's elements.
"""

from __future__ import annotations

from typing import Any

Attributes = dict[str, Any]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _of_conv2d(attributes: Attributes) -> Attributes:
    channels_in, channels_out, kernel = attributes.pop("sizes")
    options = attributes.pop("options")
    padding = options["padding"]
    return {
        "in_channels": channels_in,
        "out_channels": channels_out,
        "kernel_size": kernel,
        "groups": options["groups"],
        "stride": _pair(options["stride"]),
        "padding": padding if isinstance(padding, str) else _pair(padding),
        "dilation": _pair(options["dilation"]),
    }


def _of_embedding(attributes: Attributes) -> Attributes:
    rows, length = attributes["_parameters"]["weight"].shape
    return {"num_embeddings": rows, "embedding_dim": length, "padding_idx": None}


def _of_layer_norm(attributes: Attributes) -> Attributes:
    return {"elementwise_affine": attributes["_parameters"].get("weight") is not None}


# By class: an attribute that it has today, and what makes the missing ones of those there were.
CHANGED = {
    "Conv2d": ("stride", _of_conv2d),
    "Embedding": ("padding_idx", _of_embedding),
    "LayerNorm": ("elementwise_affine", _of_layer_norm),
}


def completed(owner: type, attributes: Attributes) -> Attributes:
    """The attributes with those that the class did not have when the module was pickled."""
    layer = next(one for one in owner.__mro__ if one.__module__.startswith("shmgpu.nn."))
    attributes = dict(attributes)
    if hasattr(layer, "operation"):
        attributes.update(attributes.pop("settings", {}))
    for name, value in getattr(layer, "defaults", ()):
        attributes.setdefault(name, value)
    for name in getattr(layer, "buffers_of", ()):
        attributes["_buffers"] = {name: None, **attributes.get("_buffers", {})}
    today, make = CHANGED.get(layer.__name__, ("", None))
    if make is not None and today not in attributes:
        attributes.update(make(attributes))
    return attributes
