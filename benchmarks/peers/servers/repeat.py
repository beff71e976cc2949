"""A model of texts as ``shmgpu serve`` loads it: each comes back."""

from shmgpu.serve import Tensor, model


@model(inputs=[Tensor("text", "BYTES", (-1,))], outputs=[Tensor("same", "BYTES", (-1,))])
def repeat(helper, text):  # type: ignore[no-untyped-def]
    """Return every text as it came."""
    return text
