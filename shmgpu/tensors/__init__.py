"""Tensors in a child: what a program does with them is recorded here, and computed by helpers.

Owns the recorder, gradients, and which helper holds what. Never runs a kernel.
"""

from shmgpu.former import moved_from

__getattr__ = moved_from(__name__)
