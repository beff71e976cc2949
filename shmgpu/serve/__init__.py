"""Models served to other programs over HTTP and gRPC: ``shmgpu serve``.

A model file imports this: ``Model``, ``Tensor``, ``ensemble`` and the decorator ``model`` declare
what is served; ``PreparedInputs`` is for a model's ``prepare``, ``QueuePolicy`` says how requests
of a priority wait. Owns the launch of a server and its workers. Never loads the server or torch for
a file that only declares. How a request travels, and which file owns what: README.md beside this
file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmgpu.common.wording import with_extra

if TYPE_CHECKING:
    from shmgpu.serve.models.declaration import Model, Tensor, ensemble, model
    from shmgpu.serve.models.preprocessing import PreparedInputs
    from shmgpu.serve.models.queue_policy import QueuePolicy

__all__ = ["Model", "PreparedInputs", "QueuePolicy", "Tensor", "ensemble", "model"]


def __dir__() -> list[str]:
    """None where a package is missing: whoever looks at each name would meet its ImportError."""
    try:
        from shmgpu.serve.models import declaration  # noqa: F401
    except ModuleNotFoundError:
        return []
    return __all__


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """From models/, which needs packages that the command line does without."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from shmgpu.serve.models import declaration, preprocessing
        except ModuleNotFoundError as error:
            raise ImportError(
                f"shmgpu.serve needs a package that is missing ({error.name}): "
                f"{with_extra('serve')}"
            ) from error

        return getattr(preprocessing if name == "PreparedInputs" else declaration, name)
