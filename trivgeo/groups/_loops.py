"""How inductor makes one loop over the batch of a graph that `WriteOut` has written out.

Left alone it finds that loop pair by pair, in half of the time of a compilation, and has masks of doubles go through
32 bits and back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._inductor.codegen import cpp
from torch._inductor.codegen.cpp_utils import _get_dtype_from_loopbodies, _get_loop_body, unify_mask_base_type
from torch._inductor.custom_graph_pass import CustomSchedulerPass, get_hash_for_files
from torch._inductor.scheduler import FusedSchedulerNode, NopKernelSchedulerNode, SchedulerNode
from torch._inductor.virtualized import V

__all__ = ["OneLoop", "vectors_of_doubles"]

_MANY = 5000  # operators of a loop that takes long to compile: half as long, if each takes but one register


class OneLoop(CustomSchedulerPass):
    """The pass: the option ``_pre_fusion_custom_pass`` of `torch.compile`."""

    def __call__(self, nodes: list[Any]) -> list[Any]:
        """One node of all elementwise functions of a batch on a processor that follow each other."""
        result: list[Any] = []
        run: list[Any] = []
        batch = None
        for node in nodes:
            if not isinstance(node, NopKernelSchedulerNode):  # which names memory, and computes nothing
                own = _batch_of(node)
                if own is None or own != batch:
                    result += _as_one(run)
                    run, batch = [], own
            run.append(node)
        return result + _as_one(run)

    def uuid(self) -> Any:
        """The text of this file, see `WriteOut`."""
        return get_hash_for_files((str(Path(__file__)),))


def _batch_of(node: Any) -> Any:
    """What elementwise functions of one batch on a processor have in common."""
    elementwise = isinstance(node, SchedulerNode) and not node.is_reduction()
    return node.group if elementwise and str(node.get_device()) == "cpu" else None


def _as_one(nodes: list[Any]) -> list[Any]:
    loop = [n for n in nodes if not isinstance(n, NopKernelSchedulerNode)]
    made = {name for n in nodes for name in n.get_buffer_names()}
    written = {dep for n in loop for dep in n.read_writes.writes}
    if len(loop) < 2 or any(dep.name in made and dep not in written for n in loop for dep in n.read_writes.reads):
        return nodes  # what is read is another entry of the batch
    fused = FusedSchedulerNode(loop[0].scheduler, loop)
    fused.scheduler.name_to_fused_node.update(dict.fromkeys((n.get_name() for n in loop), fused))
    return [fused, *(n for n in nodes if isinstance(n, NopKernelSchedulerNode))]


class _Tiling(cpp.TilingSelect):
    def select_tiling(self, fn_list: Any, var_sizes_list: Any) -> Any:
        factors, indices, stats = super().select_tiling(fn_list, var_sizes_list)
        bodies = _get_loop_body(fn_list)
        number = sum(len(body.root_block.graph.nodes) for body in bodies)
        if number > _MANY and torch.float32 not in _get_dtype_from_loopbodies(bodies):
            factors = [f // 2 for f in factors]
        return factors, indices, stats


def _with_equal_masks(a: Any, b: Any) -> Any:
    return unify_mask_base_type(V.kernel.compute, (a, b), torch.int64) if a.dtype == torch.bool else (a, b)


@contextlib.contextmanager
def vectors_of_doubles() -> Iterator[None]:
    """Code for graphs in double precision: masks as wide as numbers, and large loops by one register a value.

    Inductor takes as many numbers at a time as a register has of single precision.
    """
    with (
        mock.patch.object(cpp, "TilingSelect", _Tiling),
        mock.patch.object(cpp, "may_unify_binary_op_mask_type", _with_equal_masks),
    ):
        yield
