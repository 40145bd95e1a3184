"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner, for small networks trained to high accuracy.

Not taken from a package: the committed checkpoints were trained by it, and another implementation gives other weights.
"""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from trivgeo.errors import ConfigurationError


class SOAP(Optimizer):
    r"""Shampoo with Adam in the preconditioner's eigenbasis.

    For a matrix W with gradient G, running averages L of G G^T and R of G^T G are kept with approximate eigenvectors
    Q_L, Q_R. Adam runs on the rotated gradient G' = Q_L^T G Q_R; its update is rotated back. The eigenvectors are
    refreshed by one step of orthogonal iteration every `precondition_frequency` steps. Parameters that are not matrices
    take plain Adam steps. The first step only measures the first eigenbasis and moves no matrix.

    Nikhil Vyas et al., "SOAP: Improving and stabilizing Shampoo using Adam", 2024; on physics-informed losses, whose
    terms pull in conflicting directions, it is far ahead of Adam (Sifan Wang et al., "Gradient alignment in
    physics-informed neural networks: a second-order optimization perspective", 2025).

    Args:
        params: parameters to optimise, or parameter groups; every entry of the state is a tensor or an int.
        learning_rate: step size.
        betas: decay of the averages of the gradient and of its square.
        preconditioner_beta: decay of L and R.
        eps: added to the root of the second moment.
        precondition_frequency: steps between refreshes of the eigenvectors.

    Raises:
        ConfigurationError: a decay is outside [0, 1), or another setting is not positive.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        learning_rate: float = 3e-3,
        *,
        betas: tuple[float, float] = (0.95, 0.95),
        preconditioner_beta: float = 0.95,
        eps: float = 1e-8,
        precondition_frequency: int = 10,
    ) -> None:
        for name, beta in (
            ("betas[0]", betas[0]),
            ("betas[1]", betas[1]),
            ("preconditioner_beta", preconditioner_beta),
        ):
            if not 0.0 <= beta < 1.0:
                raise ConfigurationError(f"{name}: expected a number in [0, 1), got {beta}")
        if not learning_rate > 0.0 or not eps > 0.0:
            raise ConfigurationError(f"learning_rate, eps: expected positive numbers, got {learning_rate} and {eps}")
        if precondition_frequency < 1:
            raise ConfigurationError(f"precondition_frequency: expected at least 1, got {precondition_frequency}")
        defaults = {
            "lr": learning_rate,
            "betas": betas,
            "preconditioner_beta": preconditioner_beta,
            "eps": eps,
            "precondition_frequency": precondition_frequency,
        }
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; `closure`, if given, recomputes the loss and its gradients first and gives the loss back."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, parameter.grad, self.state[parameter], group)
        return loss

    @staticmethod
    def _step_parameter(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        is_matrix = gradient.ndim == 2
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(gradient)
            state["square"] = torch.zeros_like(gradient)
            if is_matrix:
                state["left"] = gradient @ gradient.mT
                state["right"] = gradient.mT @ gradient
                state["left_basis"] = torch.linalg.eigh(state["left"]).eigenvectors.flip(-1).contiguous()
                state["right_basis"] = torch.linalg.eigh(state["right"]).eigenvectors.flip(-1).contiguous()
                return
        state["step"] += 1
        step: int = state["step"]
        beta_mean, beta_square = group["betas"]
        mean, square = state["mean"], state["square"]
        mean.lerp_(gradient, 1.0 - beta_mean)
        rotated_gradient, rotated_mean = gradient, mean
        if is_matrix:
            left, right = state["left_basis"], state["right_basis"]
            rotated_gradient, rotated_mean = left.mT @ gradient @ right, left.mT @ mean @ right
        square.lerp_(rotated_gradient.square(), 1.0 - beta_square)
        denominator = (square / (1.0 - beta_square**step)).sqrt_().add_(group["eps"])
        update = rotated_mean / denominator
        if is_matrix:
            update = left @ update @ right.mT
        parameter.sub_(update, alpha=group["lr"] / (1.0 - beta_mean**step))
        if is_matrix:
            state["left"].lerp_(gradient @ gradient.mT, 1.0 - group["preconditioner_beta"])
            state["right"].lerp_(gradient.mT @ gradient, 1.0 - group["preconditioner_beta"])
            if step % group["precondition_frequency"] == 0:
                left_order, state["left_basis"] = _refresh_basis(state["left"], left)
                right_order, state["right_basis"] = _refresh_basis(state["right"], right)
                state["square"] = square[left_order][:, right_order]


def _refresh_basis(matrix: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Sort the columns of `basis` by falling Rayleigh quotient and take one step of orthogonal iteration.

    Returns:
        The permutation of the columns, and the new basis.
    """
    image = matrix @ basis
    order = (basis * image).sum(dim=0).argsort(descending=True)
    return order, torch.linalg.qr(image[:, order]).Q
