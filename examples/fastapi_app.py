"""A FastAPI application under uvicorn's workers: each joins a broker that runs already.

The broker serves this file's functions; rows of requests that wait, in any worker, run as one::

    pip install fastapi uvicorn
    shmgpu up --helpers 2 examples/fastapi_app.py
    uvicorn --workers 4 --app-dir examples fastapi_app:app
    curl --json '{"rows": [[1, 2, 3, 4]]}' http://127.0.0.1:8000/predict
"""

import contextlib

import numpy as np
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import shmgpu


def load(helper):
    return np.arange(8, dtype="float32").reshape(4, 2)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32), timeout=10)
def predict(helper, rows):
    return rows @ helper.session


class Question(BaseModel):
    rows: list[tuple[float, float, float, float]]


class Answer(BaseModel):
    scores: list[list[float]]
    place: int  # which worker it was, as the broker numbers them


@contextlib.asynccontextmanager
async def joined(app):
    shmgpu.connect(wait=30)
    yield
    shmgpu.disconnect()


app = FastAPI(lifespan=joined)


@app.post("/predict")
async def answer(question: Question) -> Answer:
    if not question.rows:
        raise HTTPException(422, "rows must have one row at least")
    if not shmgpu.is_running():  # the broker that was joined has ended: another may run by now
        shmgpu.connect(wait=30)
    rows = shmgpu.arena.array(question.rows, "float32")
    try:
        scores = await predict.aio(rows)  # the loop goes on meanwhile
    except (shmgpu.CallTimeout, shmgpu.HelperDied) as error:
        raise HTTPException(503, str(error)) from error
    return Answer(scores=scores.tolist(), place=shmgpu.rank())
