"""Fuzzes a Python target: ``python tests/fuzz/run_atheris.py NAME [libFuzzer's options]``."""

from __future__ import annotations

import importlib
import sys

import atheris

name = sys.argv.pop(1)
with atheris.instrument_imports(include=["shmgpu"]):
    target = importlib.import_module(f"fuzz_{name}")
target.set_up()
atheris.Setup(sys.argv, target.one_input)
atheris.Fuzz()
