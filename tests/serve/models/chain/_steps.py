"""What ensembles do, in workers."""

from __future__ import annotations

import asyncio

import numpy as np


async def twice(call, x):
    first = await call("double", x=x)
    return (await call("double", x=first["y"]))["y"]


async def in_place(call, x):
    """Whether a model found its input where another had left it."""
    y = (await call("double", x=x))["y"]
    seen = (await call("address", x=y))["address"]
    return np.array([seen[0] == y.ctypes.data, len(y) == len(x)])


async def together(call, x):
    found = await asyncio.gather(*(call("double", x=x) for _ in range(4)))
    return np.sum([one["y"] for one in found], axis=0, dtype=np.float32)


async def texts(call, text, seed):
    given = b"none" if seed is None else b"%d" % seed[0]
    upper = (await call("upper", text=text))["upper"]
    named = str(call.parameters.get("name", "")).encode()
    return np.array([upper[0] + b" " + given + b" " + named], dtype=object)


async def telling(call, x):
    found = await call("telling_model", x=x)
    call.response.parameters["seen"] = found.parameters["least"]
    call.response.parameters["by"] = "ensemble"
    return found["y"]


async def wrong(call, kind):
    match int(kind[0]):
        case 0:
            raise ValueError("this is not wanted")
        case 1:
            raise KeyError("a secret")
        case 2:
            await call("fails", x=np.ones(1, np.float32))
        case 3:
            await call("nobody", x=np.ones(1, np.float32))
        case 4:
            await call("double", x=np.ones(1, np.float64))
        case 5:
            await call("double", z=np.ones(1, np.float32))
        case 6:
            return "text"
        case 7:
            await call("wrong", kind=kind)
        case 8:
            await asyncio.sleep(3600)
    return np.zeros(1, np.float32)
