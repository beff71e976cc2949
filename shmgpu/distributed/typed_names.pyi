"""The names of shmgpu.distributed, which are loaded when first named. For type checkers only.

Made by tests/stubs.py: change that, and run it.
"""

from shmgpu.distributed.placements import Partial as Partial
from shmgpu.distributed.placements import Placement as Placement
from shmgpu.distributed.placements import Replicate as Replicate
from shmgpu.distributed.placements import Shard as Shard
from shmgpu.parallel.device_mesh import DeviceMesh as DeviceMesh
from shmgpu.parallel.device_mesh import init_device_mesh as init_device_mesh
from shmgpu.parallel.tensors import DTensor as DTensor
from shmgpu.parallel.tensors import distribute_tensor as distribute_tensor
from shmgpu.parallel.tensors import from_local as from_local
from shmgpu.parallel.constraints import constrain as constrain
from shmgpu.parallel.constraints import local_map as local_map
from shmgpu.parallel.constraints import parallelize as parallelize
from shmgpu.parallel.watching import CommDebugMode as CommDebugMode
from shmgpu.parallel.watching import all_reduce_algorithm as all_reduce_algorithm
from shmgpu.parallel.watching import explain as explain
from shmgpu.parallel.modules import ColwiseParallel as ColwiseParallel
from shmgpu.parallel.modules import ParallelStyle as ParallelStyle
from shmgpu.parallel.modules import PrepareModuleInput as PrepareModuleInput
from shmgpu.parallel.modules import PrepareModuleOutput as PrepareModuleOutput
from shmgpu.parallel.modules import RowwiseParallel as RowwiseParallel
from shmgpu.parallel.modules import SequenceParallel as SequenceParallel
from shmgpu.parallel.modules import loss_parallel as loss_parallel
from shmgpu.parallel.modules import parallelize_module as parallelize_module
from shmgpu.parallel.fully_sharded import fully_shard as fully_shard
from shmgpu.parallel.mixed_precision import MixedPrecisionPolicy as MixedPrecisionPolicy
