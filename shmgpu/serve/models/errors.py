"""What a helper raises and a worker tells its client, other than a model's own errors.

Owns the types, which travel by name: :meth:`shmgpu.errors.RemoteError.matches` knows them again.
Never raises one.
"""

from __future__ import annotations


class Unloaded(Exception):
    """A call arrived for a model that was unloaded while the call was on its way."""


class LoadFailed(Exception):
    """A model's own code raised, or asked the process to end, while the model was loaded."""


class StreamLost(Exception):
    """The stream is not here: the helper that had begun it was replaced."""


class SequenceLost(Exception):
    """A request continues a sequence that is not here."""


class TooManySequences(Exception):
    """A sequence cannot begin: the helper keeps as many as it may."""
