"""The names of shmgpu that are loaded when they are first named. For type checkers only.

Made by tests/stubs.py: change that, and run it.
"""

import builtins
from shmgpu import amp as amp
from shmgpu import array_api as array_api
from shmgpu import autograd as autograd
from shmgpu import cuda as cuda
from shmgpu import debug as debug
from shmgpu import distributed as distributed
from shmgpu import linalg as linalg
from shmgpu import nn as nn
from shmgpu import optim as optim
from shmgpu import serve as serve
from shmgpu.tensors.tensor import Data as Data
from shmgpu.tensors.tensor import Tensor as Tensor
from shmgpu.tensors.tensor import from_numpy as from_numpy
from shmgpu.tensors.tensor import full as full
from shmgpu.tensors.tensor import grad as grad
from shmgpu.tensors.tensor import manual_seed as manual_seed
from shmgpu.tensors.tensor import ones as ones
from shmgpu.tensors.tensor import rand as rand
from shmgpu.tensors.tensor import randn as randn
from shmgpu.tensors.tensor import set_verbosity as set_verbosity
from shmgpu.tensors.tensor import tensor as tensor
from shmgpu.tensors.tensor import zeros as zeros
from shmgpu.array_api.types import finfo as finfo
from shmgpu.array_api.types import iinfo as iinfo
from shmgpu.tensors.factories import arange as arange
from shmgpu.tensors.factories import empty as empty
from shmgpu.tensors.factories import empty_like as empty_like
from shmgpu.tensors.factories import eye as eye
from shmgpu.tensors.factories import full_like as full_like
from shmgpu.tensors.factories import get_default_dtype as get_default_dtype
from shmgpu.tensors.factories import linspace as linspace
from shmgpu.tensors.factories import logspace as logspace
from shmgpu.tensors.factories import ones_like as ones_like
from shmgpu.tensors.factories import rand_like as rand_like
from shmgpu.tensors.factories import randn_like as randn_like
from shmgpu.tensors.factories import zeros_like as zeros_like
from shmgpu.tensors.whole import allclose as allclose
from shmgpu.tensors.whole import as_tensor as as_tensor
from shmgpu.tensors.whole import bernoulli as bernoulli
from shmgpu.tensors.whole import bincount as bincount
from shmgpu.tensors.whole import clone as clone
from shmgpu.tensors.whole import detach as detach
from shmgpu.tensors.whole import equal as equal
from shmgpu.tensors.whole import is_floating_point as is_floating_point
from shmgpu.tensors.whole import is_tensor as is_tensor
from shmgpu.tensors.whole import masked_select as masked_select
from shmgpu.tensors.whole import meshgrid as meshgrid
from shmgpu.tensors.whole import multinomial as multinomial
from shmgpu.tensors.whole import nonzero as nonzero
from shmgpu.tensors.whole import normal as normal
from shmgpu.tensors.whole import numel as numel
from shmgpu.tensors.whole import randint as randint
from shmgpu.tensors.whole import randperm as randperm
from shmgpu.tensors.whole import t as t
from shmgpu.tensors.whole import tril_indices as tril_indices
from shmgpu.tensors.whole import triu_indices as triu_indices
from shmgpu.tensors.whole import unique as unique
from shmgpu.tensors.devices import device as device
from shmgpu.tensors.generators import Generator as Generator
from shmgpu.tensors.generators import get_rng_state as get_rng_state
from shmgpu.tensors.generators import initial_seed as initial_seed
from shmgpu.tensors.generators import seed as seed
from shmgpu.tensors.generators import set_rng_state as set_rng_state
from shmgpu.tensors.grad_mode import enable_grad as enable_grad
from shmgpu.tensors.grad_mode import inference_mode as inference_mode
from shmgpu.tensors.grad_mode import is_grad_enabled as is_grad_enabled
from shmgpu.tensors.grad_mode import no_grad as no_grad
from shmgpu.tensors.grad_mode import set_grad_enabled as set_grad_enabled
from shmgpu.amp import autocast as autocast
from shmgpu.optim import SGD as SGD
from shmgpu.optim import Adam as Adam
from shmgpu.optim import AdamW as AdamW
from shmgpu.saving import load as load
from shmgpu.saving import save as save
from shmgpu.tensors.recomputing import checkpoint as checkpoint
from shmgpu.tensors.recomputing import compile as compile
from shmgpu.tensors.placement import gpu_workers as gpu_workers
from shmgpu.tensors.placement import set_backend as set_backend
from shmgpu.tensors.typed_operations import (
    add as add,
    sub as sub,
    mul as mul,
    div as div,
    pow as pow,
    maximum as maximum,
    minimum as minimum,
    remainder as remainder,
    floor_divide as floor_divide,
    eq as eq,
    ne as ne,
    lt as lt,
    le as le,
    gt as gt,
    ge as ge,
    logical_not as logical_not,
    logical_and as logical_and,
    logical_or as logical_or,
    bitwise_and as bitwise_and,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_right_shift as bitwise_right_shift,
    bitwise_not as bitwise_not,
    neg as neg,
    abs as abs,
    sign as sign,
    floor as floor,
    ceil as ceil,
    round as round,
    exp as exp,
    log as log,
    sqrt as sqrt,
    rsqrt as rsqrt,
    sin as sin,
    cos as cos,
    tanh as tanh,
    sigmoid as sigmoid,
    erf as erf,
    relu as relu,
    where as where,
    clamp as clamp,
    log1p as log1p,
    square as square,
    reciprocal as reciprocal,
    isnan as isnan,
    isfinite as isfinite,
    isinf as isinf,
    expm1 as expm1,
    asin as asin,
    acos as acos,
    atan as atan,
    asinh as asinh,
    acosh as acosh,
    atanh as atanh,
    atan2 as atan2,
    hypot as hypot,
    copysign as copysign,
    signbit as signbit,
    fmod as fmod,
    log2 as log2,
    log10 as log10,
    tan as tan,
    sinh as sinh,
    cosh as cosh,
    logaddexp as logaddexp,
    nextafter as nextafter,
    arcsin as arcsin,
    arccos as arccos,
    arctan as arctan,
    arcsinh as arcsinh,
    arccosh as arccosh,
    arctanh as arctanh,
    arctan2 as arctan2,
    permute as permute,
    transpose as transpose,
    unsqueeze as unsqueeze,
    squeeze as squeeze,
    flatten as flatten,
    cat as cat,
    stack as stack,
    narrow as narrow,
    split as split,
    chunk as chunk,
    flip as flip,
    movedim as movedim,
    unbind as unbind,
    to as to,
    sum as sum,
    mean as mean,
    var as var,
    std as std,
    amax as amax,
    amin as amin,
    logsumexp as logsumexp,
    all as all,
    any as any,
    prod as prod,
    matmul as matmul,
    linear as linear,
    dot as dot,
    softmax as softmax,
    log_softmax as log_softmax,
    gelu as gelu,
    silu as silu,
    leaky_relu as leaky_relu,
    softplus as softplus,
    dropout as dropout,
    layer_norm as layer_norm,
    conv2d as conv2d,
    max_pool2d as max_pool2d,
    avg_pool2d as avg_pool2d,
    scaled_dot_product_attention as scaled_dot_product_attention,
    mse_loss as mse_loss,
    l1_loss as l1_loss,
    nll_loss as nll_loss,
    cross_entropy as cross_entropy,
    binary_cross_entropy as binary_cross_entropy,
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
    gather as gather,
    scatter_add as scatter_add,
    index_select as index_select,
    take as take,
    embedding as embedding,
    masked_fill as masked_fill,
    tril as tril,
    triu as triu,
    pad as pad,
    roll as roll,
    one_hot as one_hot,
    argmax as argmax,
    argmin as argmin,
    max as max,
    min as min,
    argsort as argsort,
    sort as sort,
    topk as topk,
    cumsum as cumsum,
    cumprod as cumprod,
    searchsorted as searchsorted,
    bucketize as bucketize,
    mm as mm,
    bmm as bmm,
    mv as mv,
    outer as outer,
    addmm as addmm,
    addmv as addmv,
    baddbmm as baddbmm,
    tensordot as tensordot,
    einsum as einsum,
    ravel as ravel,
    unflatten as unflatten,
    select as select,
    swapaxes as swapaxes,
    broadcast_to as broadcast_to,
    tile as tile,
    repeat_interleave as repeat_interleave,
    concat as concat,
    vstack as vstack,
    hstack as hstack,
    diagonal as diagonal,
    diag as diag,
    take_along_dim as take_along_dim,
    index_add as index_add,
    index_copy as index_copy,
    index_fill as index_fill,
    scatter as scatter,
    diff as diff,
    reshape as reshape,
    absolute as absolute,
    clip as clip,
    trunc as trunc,
    logical_xor as logical_xor,
    lerp as lerp,
    addcmul as addcmul,
    addcdiv as addcdiv,
    nan_to_num as nan_to_num,
    isclose as isclose,
    count_nonzero as count_nonzero,
    norm as norm,
    cosine_similarity as cosine_similarity,
    cdist as cdist,
    var_mean as var_mean,
    std_mean as std_mean,
    aminmax as aminmax,
    median as median,
    quantile as quantile,
    trace as trace,
    split_with_sizes as split_with_sizes,
    tensor_split as tensor_split,
    hsplit as hsplit,
    vsplit as vsplit,
    flipud as flipud,
    fliplr as fliplr,
    rot90 as rot90,
    diag_embed as diag_embed,
    select_scatter as select_scatter,
    slice_scatter as slice_scatter,
    clamp_min as clamp_min,
    clamp_max as clamp_max,
    exp2 as exp2,
    fix as fix,
    sgn as sgn,
    frac as frac,
    deg2rad as deg2rad,
    rad2deg as rad2deg,
    logit as logit,
    sinc as sinc,
    xlogy as xlogy,
    fmax as fmax,
    fmin as fmin,
    float_power as float_power,
    isposinf as isposinf,
    isneginf as isneginf,
    nansum as nansum,
    nanmean as nanmean,
    dist as dist,
    kthvalue as kthvalue,
    inner as inner,
    vdot as vdot,
    kron as kron,
    cross as cross,
    matrix_power as matrix_power,
    isin as isin,
    inverse as inverse,
    det as det,
    concatenate as concatenate,
    divide as divide,
    ger as ger,
    greater as greater,
    greater_equal as greater_equal,
    less as less,
    less_equal as less_equal,
    moveaxis as moveaxis,
    multiply as multiply,
    negative as negative,
    not_equal as not_equal,
    subtract as subtract,
    swapdims as swapdims,
    true_divide as true_divide,
    bool as bool,
    uint8 as uint8,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    float16 as float16,
    bfloat16 as bfloat16,
    float32 as float32,
    float64 as float64,
    half as half,
    float as float,
    double as double,
    short as short,
    int as int,
    long as long,
)
e: builtins.float
inf: builtins.float
nan: builtins.float
pi: builtins.float
newaxis: None
Size: type[builtins.tuple[builtins.int, ...]]
