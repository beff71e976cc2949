"""A lone caller that must not watch for its answer sleeps instead: ``SHMGPU_SPIN``."""

from __future__ import annotations

import resource
import time

import pytest

import shmgpu


@shmgpu.function
def rest(helper, seconds):
    time.sleep(seconds)


def test_with_0_every_call_sleeps_until_its_answer(monkeypatch):
    monkeypatch.setenv("SHMGPU_SPIN", "0")
    with shmgpu.init(devices="cpu", arena="4MiB"):
        for _ in range(20):
            rest(0.0001)  # that answers come so soon is learnt
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(50):
            rest(0.0001)
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
        assert slept >= 40  # an answer may be there when a busy machine lets the caller go on


def test_what_is_neither_0_nor_1_is_refused(monkeypatch):
    monkeypatch.setenv("SHMGPU_SPIN", "sometimes")
    with pytest.raises(shmgpu.ConfigError, match="SHMGPU_SPIN='sometimes' is neither"):
        shmgpu.init(devices="cpu")
