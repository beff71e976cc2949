"""The same code without other processes: for a debugger, a coverage run, a unit test.

    python examples/inline_debugging.py

With `inline=True` a call runs in the calling process, through the same checks and the same codec.
Breakpoints stop, prints appear in order, and the original exception is the cause of the error.
"""

import numpy as np

import shmgpu


def load(helper):
    return {"scale": 3.0}


@shmgpu.function(arrays="numpy")
def scale(helper, x):
    # A breakpoint() here stops in this terminal when the call is inline.
    if x.ndim != 1:
        raise ValueError(f"one axis is expected, not {x.ndim}")
    return x * helper.session["scale"]


def main():
    x = shmgpu.arena.array(np.arange(4, dtype="float32"))
    assert scale(x).tolist() == [0, 3, 6, 9]
    try:
        scale(x.reshape(2, 2))
    except shmgpu.RemoteError as error:
        assert error.type_name == "ValueError"
        return error.__cause__  # the exception itself when inline; over processes only its text


if __name__ == "__main__":
    # The function alone, with a helper of your own making: nothing of shmgpu runs.
    class FakeHelper:
        session = load(None)

    print("local:", scale.local(FakeHelper, np.ones(2, "float32")))

    with shmgpu.init(session=load, inline=True):
        print("inline:", repr(main()))

    with shmgpu.init(session=load):
        print("helper process:", repr(main()))
