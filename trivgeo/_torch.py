"""Private names of torch that the library uses, and faults of torch that it works around.

No other module touches names of torch that are not public; a test lists them. Each function says what happens where a
version of torch lacks the name.

Faults of torch 2.13, the work-arounds, and the test in ``tests/test_torch_faults.py`` that fails once a fault is gone:

- ``solve``, ``det`` and ``slogdet`` are wrong under ``vmap(vmap(jacfwd))``: closed forms, ``inv_ex`` and
  ``lu_factor_ex`` (`_numerics.log_abs_det`, `groups.linalg`, `LieGroup._exp_with_score`).
  test_determinants_and_solutions_under_a_batch_of_forward_jacobians
- ``matrix_exp`` of one matrix is off by 1e-10 (pytorch#196592): two are evaluated (`_numerics.dense_exp`).
  test_exponential_of_one_matrix
- ``matrix_exp`` of bfloat16 is wrong: it is evaluated in float32 (`_numerics.in_single`).
  test_exponential_in_half_precision
- Forward mode of a float32 tensor without dimensions returns float64: `EagerEvaluator` makes it a batch of one.
  test_derivative_of_a_tensor_without_dimensions
- Forward mode has one level for all threads: calls wait for each other (`_numerics.jvp`).
  test_forward_mode_in_two_threads
- Forward mode refuses entries that share memory: arguments are copied (`_numerics.jvp_columns`).
  test_forward_mode_of_entries_that_share_memory
- ``grid_sample`` has no derivative in forward mode: four pixels are read (`actions.image.sample_images`).
  test_forward_mode_of_interpolated_images
- ``torch.utils.checkpoint`` refuses ``torch.func`` inside: own checkpoints (`sde.solvers.time_loop.checkpointed`).
  test_checkpoints_around_derivatives
- Of torch 2.8: ``rfftn`` on MKL refuses expanded batches (`pde.FourierModes.to_modes`), and ``torch.compile`` does not
  know a union of types in ``isinstance`` (`actions.ImageWarp.__call__`). test_oldest_torch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree  # required: nested containers; kept by torch since 1.8

__all__ = ["break_graph", "dynamo_errors", "in_forward_mode", "is_any_autocast_enabled", "mark_dynamic", "pytree"]


_ANY_AUTOCAST: Callable[[], bool] | None = getattr(torch._C, "_is_any_autocast_enabled", None)


def is_any_autocast_enabled() -> bool:
    """Return whether ``torch.autocast`` is on for some device.

    Without ``torch._C._is_any_autocast_enabled``, whether it is on for the CPU or CUDA.
    """
    if _ANY_AUTOCAST is None:
        return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return _ANY_AUTOCAST()


def mark_dynamic(x: Tensor, dim: int) -> None:
    """Mark one dimension of an argument of `torch.compile` as varying from call to call.

    Without ``torch._dynamo.mark_dynamic``, code is compiled once more when the size changes.
    """
    mark: Any = getattr(getattr(torch, "_dynamo", None), "mark_dynamic", None)
    if mark is not None:
        mark(x, dim)


def in_forward_mode() -> bool:
    """Whether the current code may be differentiated in forward mode.

    Without ``torch.autograd.forward_ad._current_level``, False.
    """
    return getattr(forward_ad, "_current_level", -1) >= 0


def dynamo_errors() -> tuple[type[Exception], ...]:
    """Return the errors that tracing by `torch.compile` and `torch.export` raises.

    Without ``torch._dynamo.exc``, ``RuntimeError`` alone, from which they derive.
    """
    error: Any = getattr(getattr(getattr(torch, "_dynamo", None), "exc", None), "TorchDynamoException", None)
    return (RuntimeError,) if error is None else (RuntimeError, error)


def break_graph(message: str) -> None:
    """End the graph of a function in `torch.compile`, which raises an error with the message under ``fullgraph=True``.

    Without ``torch._dynamo.graph_break``, torch raises errors of its own.
    """
    if torch.compiler.is_compiling() and hasattr(torch._dynamo, "graph_break"):
        torch._dynamo.graph_break(msg=message)
