"""What a model declares of itself: the tensors it takes and returns.

Owns the two descriptions that requests are checked against and that clients are shown. They are
plain data: workers hold them for models that only helpers have loaded. Never holds a value of a
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ANY = -1  # a dimension of any extent


def fits(declared: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a tensor of that shape is as declared."""
    return len(shape) == len(declared) and all(
        wanted in (ANY, got) for wanted, got in zip(declared, shape, strict=True)
    )


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One input or output.

    Attributes:
        name: as clients say it.
        datatype: a name of `shmgpu.serve.protocol.datatypes.DATATYPES`.
        shape: its extents, the batch's first where the model batches; -1 is any.
        optional: whether a request may leave this input out.
        labels: of an output's classes, for the classification extension.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    labels: tuple[str, ...] = ()

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of that shape is one of these."""
        return fits(self.shape, shape)

    def show(self) -> dict[str, Any]:
        """Its JSON in the answer to a metadata request."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """One model, whatever its versions.

    Attributes:
        name: as in the model's address.
        versions: those that can be asked for, as text.
        platform: what runs it, for the client's information.
        inputs: in the model's order.
        outputs: in the model's order.
        max_batch_size: rows that one execution takes; 0 where the first dimension is no batch.
    """

    name: str
    versions: tuple[str, ...] = ("1",)
    platform: str = "shmgpu_python"
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    max_batch_size: int = 0

    @property
    def needs_none(self) -> bool:
        """Whether a request may come without inputs: all are optional, and none says the rows."""
        return not self.max_batch_size and all(tensor.optional for tensor in self.inputs)

    def show(self) -> dict[str, Any]:
        """Its JSON in the answer to a metadata request."""
        return {
            "name": self.name,
            "versions": list(self.versions),
            "platform": self.platform,
            "inputs": [tensor.show() for tensor in self.inputs],
            "outputs": [tensor.show() for tensor in self.outputs],
        }
