"""What a model's function sees of a request besides its inputs: ``helper.request``.

Owns how calls carry it beside a model's number, and what the function finds. Requests that run as
one batch have equal parameters, because the number and what stands beside it are part of what a
batch agrees in. Never knows HTTP or gRPC.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Scalar = bool | int | float | str
Whose = int | tuple[int, str]  # a model's number; with a request's parameters as JSON, if any

_NONE: Mapping[str, Scalar] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RequestContext:
    """``helper.request`` of a model's function, while it runs.

    Attributes:
        parameters: those of the request, by name, but for the protocol's own (``priority``,
            ``timeout``, the sequence's, and names that begin with ``triton_``); not to be written
            to. Empty at warm-up and in ``load``.
    """

    parameters: Mapping[str, Scalar] = field(default_factory=lambda: _NONE)


NO_REQUEST = RequestContext()


def whose(number: int, parameters: str) -> Whose:
    """What a call carries first."""
    return (number, parameters) if parameters else number


def renumbered(first: Whose, number: int) -> Whose:
    """The same for a model that has taken another's place."""
    return number if isinstance(first, int) else (number, first[1])


def split(first: Whose) -> tuple[int, RequestContext]:
    """The model's number, and what its function sees of the request."""
    if isinstance(first, int):
        return first, NO_REQUEST
    return first[0], context_of(first[1])


@functools.lru_cache(256)
def context_of(parameters: str) -> RequestContext:
    """Of a request with these parameters, as JSON; empty: it has none."""
    if not parameters:
        return NO_REQUEST
    return RequestContext(MappingProxyType(json.loads(parameters)))
