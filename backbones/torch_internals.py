"""All uses of PyTorch besides its public API, with the reason for each.

Tested with torch 2.15.0. `tests/house/test_packages.py` compares PyTorch with the names in
`tests/helpers/private_names.py`.

An exporter writes `scan` once, but every step of a loop in Python: for three layers of LARNN and 128 steps,
`torch.export` takes minutes. `FakeTensorMode` runs a model of any size only on shapes. `tree_map`
and similar functions traverse nested inputs and outputs of models.
`AnyBatchNorm` is the base class of all batch norms, of one to three dimensions or lazy. None of these has a
public counterpart. A limit of compiled variants of one function can only be set in `torch._dynamo.config`.
"""

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan as scan
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeCopyMode as FakeCopyMode
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperatorException
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only

AnyBatchNorm = _BatchNorm
FAKE_TENSOR_LOG = FakeTensorMode.__module__  # Name of the logger.


def cpu_computes_bfloat16() -> bool:
    """Return whether the CPU has instructions for bfloat16 (AVX-512 BF16). Without them it is slow."""
    return torch.cpu._is_avx512_bf16_supported()


def version(tensor: Tensor) -> int:
    """Return how often a tensor has been changed in place."""
    return tensor._version


def allow_variants(count: int) -> None:
    """Allow `torch.compile` so many variants of one function. Beyond them it would run uncompiled."""
    import torch._dynamo.config  # an import of seconds

    torch._dynamo.config.recompile_limit = count
