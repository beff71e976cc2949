"""The configuration beside a model's file: what the file itself does not say.

Owns its keys, and how they and what was found in the file become one declaration. Never opens the
model's file. ``model.pt`` has ``model.json`` or ``model.toml``; in a repository
``NAME/config.json`` or ``NAME/config.toml`` applies to all versions that have none of their own::

    {"inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, 64]}],
     "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10], "labels": "digits.txt"}],
     "max_batch_size": 32, "max_delay_ms": 0, "warmup": [1, 32], "parameters": {"author": "me"}}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shmgpu.errors import ConfigError
from shmgpu.serve.models.declaration import Model, Tensor
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.metadata import fits

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS = 32  # that run as one, unless the configuration says; of models that take any number

_KEYS: dict[str, Any] = {
    "inputs": list,
    "outputs": list,
    "max_batch_size": int,
    "max_delay_ms": (int, float),
    "warmup": list,
    "parameters": dict,
    "cuda_graphs": bool,
}
_TENSOR_KEYS = ("name", "datatype", "shape", "labels")


@dataclass(frozen=True)
class Config:
    """What stands beside a model's file; nothing where no such file is.

    Attributes:
        path: of the configuration; that of the model where there is none.
        values: its keys.
        name: of the model, as clients call it.
    """

    path: Path
    values: dict[str, Any]
    name: str

    def tensors(self, key: str, found: Sequence[Tensor | str], *, by_name: bool) -> list[Tensor]:
        """Inputs or outputs: as found in the file, where the configuration does not say.

        Args:
            key: ``inputs`` or ``outputs``.
            found: what the file says, in order; of some only the name. Empty: it says nothing.
            by_name: whether the file calls its tensors by these names, so that the configuration
                cannot call them otherwise.

        Raises:
            ConfigError: neither says what is needed, or they disagree.
        """
        said = self.values.get(key, [])
        if by_name:
            said = self._in_order(key, said, [_name(one) for one in found])
        elif said and found and len(said) != len(found):
            raise ConfigError(
                f"{self.path} lists {len(said)} {key}, and the model has {len(found)}: "
                f"{', '.join(_name(one) for one in found)}"
            )
        count = max(len(said), len(found))
        return [
            self._tensor(
                key, said[index] if said else {}, found[index] if found else f"{key[:-1]}_{index}"
            )
            for index in range(count)
        ]

    def says_all(self, key: str) -> bool:
        """Whether nothing has to be found out: each tensor has its datatype and shape here."""
        said = self.values.get(key, [])
        return bool(said) and all(
            isinstance(one, dict) and {"datatype", "shape"} <= one.keys() for one in said
        )

    def _in_order(self, key: str, said: list[Any], names: list[str]) -> list[dict[str, Any]]:
        by_name = {one.get("name"): one for one in said if isinstance(one, dict)}
        for name in by_name:
            if name not in names:
                raise ConfigError(
                    f"{self.path}: the model has no {key[:-1]} {name!r}, but {', '.join(names)}"
                )
        return [by_name.get(name, {}) for name in names]

    def _tensor(self, key: str, said: Any, found: Tensor | str) -> Tensor:
        if not isinstance(said, dict) or set(said) - set(_TENSOR_KEYS):
            raise ConfigError(
                f"{self.path}: one of {key} is {said!r}, and must have no keys but "
                f"{', '.join(_TENSOR_KEYS)}"
            )
        known = found if isinstance(found, Tensor) else None
        name = said.get("name") or _name(found)
        shape = said.get("shape", known.shape if known else None)
        if shape is None:
            raise ConfigError(
                f"{self.path} does not say the shape of the {key[:-1]} {name!r}: write it beside "
                f"the model, as in {self.path.with_suffix('.json').name}: "
                f'{{"{key}": [{{"name": "{name}", "datatype": "FP32", "shape": [-1, 64]}}]}}'
            )
        datatype = said.get("datatype", known.datatype if known else "FP32")
        return Tensor(name, datatype, shape, labels=self._labels(said.get("labels", ())))

    def _labels(self, labels: Any) -> tuple[str, ...]:
        """A list of them, or the name of a file with one a line."""
        if not isinstance(labels, str):
            if not isinstance(labels, (list, tuple)) or not all(map(_is_text, labels)):
                raise ConfigError(
                    f"{self.path}: labels are {labels!r}, and must be a list of text, or a file "
                    "with one a line"
                )
            return tuple(labels)
        file = self.path.parent / labels
        try:
            return tuple(file.read_text(encoding="utf-8").splitlines())
        except OSError as error:
            raise ConfigError(f"the labels {file} cannot be read ({error.strerror})") from None

    def make(
        self,
        body: Callable[..., Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        arrays: str,
        platform: str,
        most_rows: int,
    ) -> Model:
        """The model.

        Args:
            body: its function.
            inputs: as :meth:`tensors` gave them.
            outputs: likewise.
            arrays: what the function gets, ``"numpy"`` or ``"torch"``.
            platform: what clients are told that it is.
            most_rows: that the file can take as one; 0: its first axis is no batch.
        """
        size = self.values.get("max_batch_size", min(most_rows, ROWS))
        if size > most_rows:
            raise ConfigError(
                f"{self.path}: max_batch_size={size}, and the model takes "
                + (f"{most_rows} rows at most" if most_rows else "one size of its first axis only")
            )
        return Model(
            body,
            name=self.name,
            inputs=inputs,
            outputs=outputs,
            max_batch_size=size,
            max_delay_ms=self.values.get("max_delay_ms", 0.0),
            arrays=arrays,
            warmup=self._warmup(inputs, size),
            platform=platform,
            parameters={
                str(key): str(value) for key, value in self.values.get("parameters", {}).items()
            },
            cuda_graphs=self.values.get("cuda_graphs", False),
        )

    def _warmup(self, inputs: Sequence[Tensor], size: int) -> list[tuple[Any, ...]] | None:
        """Samples: a number is that many rows of zeros, a dictionary has values by input."""
        if "warmup" not in self.values:
            return None
        return [self._sample(one, inputs, size) for one in self.values["warmup"]]

    def _sample(self, one: Any, inputs: Sequence[Tensor], size: int) -> tuple[Any, ...]:
        names = [tensor.name for tensor in inputs]
        if isinstance(one, dict) and set(one) == set(names):
            try:
                sample = tuple(
                    np.array(one[tensor.name], datatypes.DATATYPES[tensor.datatype].storage)
                    for tensor in inputs
                )
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self.path}: a warmup sample does not hold arrays ({error})"
                ) from None
            for tensor, array in zip(inputs, sample, strict=True):
                if not fits(tensor.shape, array.shape):
                    raise ConfigError(
                        f"{self.path}: a warmup sample of {tensor.name!r} has the shape "
                        f"{list(array.shape)}, and must have {list(tensor.shape)}"
                    )
            return sample
        if isinstance(one, int) and 1 <= one <= max(size, 1):
            return zeros(inputs, one, 1)
        raise ConfigError(
            f"{self.path}: warmup has {one!r}: use numbers of rows, 1 to {max(size, 1)}, or values "
            f"of all inputs by name ({', '.join(names)})"
        )


def read(model: str) -> Config:
    """The configuration beside a model's file.

    Raises:
        ConfigError: it cannot be read, or has a key that there is not.
    """
    path = Path(model)
    candidates = [path.with_suffix(".json"), path.with_suffix(".toml")]
    name = path.stem
    if path.stem == "model" and path.parent.name.isdecimal():  # NAME/1/model.pt
        name = path.parents[1].name
        candidates += [path.parents[1] / "config.json", path.parents[1] / "config.toml"]
    for candidate in candidates:
        if not candidate.is_file():
            continue
        try:
            text = candidate.read_text(encoding="utf-8")
            values = json.loads(text) if candidate.suffix == ".json" else tomllib.loads(text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the configuration {candidate} cannot be read ({error})") from None
        _check(candidate, values)
        return Config(candidate, values, name)
    return Config(path, {}, name)


def _check(path: Path, values: Any) -> None:
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values: {', '.join(_KEYS)}")
    for key, value in values.items():
        if key not in _KEYS:
            raise ConfigError(f"{path}: there is no key {key!r}: use {', '.join(_KEYS)}")
        wanted = _KEYS[key]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise ConfigError(f"{path}: {key} is {value!r}: see the page of shmgpu.serve")


def datatype_of(dtype: Any, name: str) -> str:
    """The protocol's name for a framework's dtype, of the tensor of that name.

    Raises:
        ConfigError: it has none.
    """
    try:
        return datatypes.of_dtype(dtype).name
    except Exception:
        raise ConfigError(
            f"tensor {name!r} of the model is {dtype}, which the protocol has no datatype for: "
            "convert it inside the model"
        ) from None


def zeros(inputs: Sequence[Tensor], rows: int, other: int) -> tuple[Any, ...]:
    """A sample: axis 0 has ``rows`` where it may, other open axes have ``other``."""
    sample = []
    for one in inputs:
        shape = tuple(
            extent if extent >= 0 else other if axis else rows
            for axis, extent in enumerate(one.shape)
        )
        if one.datatype == "BYTES":
            array = np.full(shape, b"", object)
        else:
            array = np.zeros(shape, datatypes.DATATYPES[one.datatype].storage)
        sample.append(array)
    return tuple(sample)


def _name(one: Tensor | str) -> str:
    return one.name if isinstance(one, Tensor) else one


def _is_text(one: Any) -> bool:
    return isinstance(one, str)
