"""Backward passes through long solves that keep few states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trivgeo._torch import pytree

__all__ = ["checkpointed"]

Segment = Callable[[Any, int, int], Any]


def checkpointed(run: Segment, generator: torch.Generator | None) -> Segment:
    """Return ``run`` with gradient checkpointing: the backward pass runs it again from its start, with the same noise.

    ``run`` may call ``torch.func`` inside, as trivialized gradients do. `torch.utils.checkpoint.checkpoint` may not,
    since torch 2.13 refuses its saved-tensor hooks there. Leaf tensors other than the state that ``run`` depends on are
    found in its graph, and get their gradients too. Differentiable once.

    Args:
        run: a function of (state, first, last) to a state, a tree of tensors.
        generator: random numbers that ``run`` uses; its state is restored for the second run.
    """

    def segment(state: Any, first: int, last: int) -> Any:
        if not torch.is_grad_enabled():
            return run(state, first, last)
        inputs, structure = pytree.tree_flatten(state)
        before = _noise_state(inputs[0], generator)

        def body(tensors: list[Tensor]) -> Any:
            return run(pytree.tree_unflatten(tensors, structure), first, last)

        def again(tensors: list[Tensor]) -> list[Tensor]:
            now = _noise_state(inputs[0], generator)
            _set_noise_state(inputs[0], generator, before)
            try:
                return pytree.tree_leaves(body(tensors))
            finally:
                _set_noise_state(inputs[0], generator, now)

        # an accumulator may grow, so that the structure after is another one
        outputs, after = pytree.tree_flatten(body([x.detach() for x in inputs]))
        leaves = _graph_leaves(outputs)
        results = _Rerun.apply(again, [x.detach() for x in outputs], len(inputs), *inputs, *leaves)
        return pytree.tree_unflatten(list(results), after)

    return segment


class _Rerun(torch.autograd.Function):
    """The identity in the forward pass; the backward pass runs the segment again (gradient checkpointing)."""

    @staticmethod
    def forward(ctx: Any, again: Callable[..., Any], outputs: list[Tensor], number: int, *inputs: Tensor) -> Any:
        ctx.again, ctx.leaves = again, inputs[number:]
        ctx.save_for_backward(*inputs[:number])
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        state = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.saved_tensors]
        with torch.enable_grad():
            outputs = ctx.again(state)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        inputs = [*state, *ctx.leaves]
        # what lies between leaves and the run is shared by the segments, so it is kept
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs],
                [x for x in inputs if x.requires_grad],
                [g for _, g in pairs],
                retain_graph=True,
                allow_unused=True,
            )
        )
        return None, None, None, *(next(found) if x.requires_grad else None for x in inputs)


def _graph_leaves(outputs: list[Tensor]) -> list[Tensor]:
    """The leaf tensors that outputs depend on and that require gradients."""
    pending: list[Any] = [x.grad_fn for x in outputs if x.grad_fn is not None]
    seen, leaves = set(pending), []
    while pending:
        node = pending.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves.append(node.variable)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return leaves


def _noise_state(like: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None]:
    if generator is not None:
        return generator.get_state(), None
    return torch.get_rng_state(), torch.cuda.get_rng_state(like.device) if like.is_cuda else None


def _set_noise_state(like: Tensor, generator: torch.Generator | None, state: tuple[Tensor, Tensor | None]) -> None:
    own, device = state
    if generator is not None:
        generator.set_state(own)
        return
    torch.set_rng_state(own)
    if device is not None:
        torch.cuda.set_rng_state(device, like.device)
