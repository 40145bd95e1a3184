"""The published sampler on images as written, algorithm 1 of Kim et al. 2026 line by line."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["CLIP", "HIGH", "LOW", "SCALE", "PublishedLoop"]

SCALE = (0.084, 0.084, 0.084, 0.084, 0.421, 0.421)
LOW, HIGH, CLIP = 0.1, 1.0, 100.0


class PublishedLoop:
    """The search on the affine group with the published settings, elements as 3 x 3 matrices.

    The noise of every score is simulated anew from time 0, energies of Monte Carlo samples are used for their score
    alone, and all hypotheses run to the end.

    Args:
        classifier: images to logits; the energy is minus their logsumexp.
        generator: source of noise, on the device of the images.
        num_hypotheses: K.
        num_mc: N of a score.
        steps: M.

    Attributes:
        evaluations: of the energy, so far.
    """

    def __init__(
        self,
        classifier: Callable[[Tensor], Tensor],
        generator: torch.Generator,
        num_hypotheses: int = 64,
        num_mc: int = 2,
        steps: int = 50,
    ) -> None:
        self.classifier, self.generator = classifier, generator
        self.num_hypotheses, self.num_mc, self.steps = num_hypotheses, num_mc, steps
        self.evaluations = 0
        basis = torch.zeros(6, 3, 3)
        for i, (row, column) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2))):
            basis[i, row, column] = SCALE[i]
        self.basis = basis.to(generator.device)

    def exp(self, v: Tensor) -> Tensor:
        """The exponential of algebra coordinates ``[*batch, 6]``."""
        return torch.linalg.matrix_exp(torch.einsum("...i,ijk->...jk", v, self.basis))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(*shape, 6, generator=self.generator, device=self.basis.device)

    def gamma(self, t: float) -> float:
        """The diffusion coefficient."""
        return LOW * (HIGH / LOW) ** t

    def noise(self, steps: int, *shape: int) -> tuple[Tensor, Tensor]:
        """w_t after so many steps, and log lambda(w_t) = -log det of its linear part."""
        w = torch.eye(3, device=self.basis.device).expand(*shape, 3, 3)
        for i in range(1, steps + 1):
            w = w @ self.exp(self.gamma(i / self.steps) * self.steps**-0.5 * self.normal(*shape))
        return w, -torch.linalg.det(w[..., :2, :2]).log()

    def energy(self, g: Tensor, images: Tensor) -> Tensor:
        """Energies of elements ``[b, n, 3, 3]`` for images ``[b, 1, h, w]``."""
        b, n = g.shape[:2]
        self.evaluations += b * n
        grid = functional.affine_grid(g[..., :2, :].reshape(-1, 2, 3), [b * n, 1, *images.shape[-2:]], False)
        given = images.unsqueeze(1).expand(b, n, *images.shape[1:]).reshape(-1, *images.shape[1:])
        warped = functional.grid_sample(given, grid, align_corners=False)
        frame = torch.relu(grid.abs() - 1).square().sum(-1).mean((-2, -1))
        return (frame - torch.logsumexp(self.classifier(warped), -1)).reshape(b, n)

    def invert(self, images: Tensor) -> Tensor:
        """The elements of lowest energy, ``[b, 3, 3]``."""
        b, k, n = len(images), self.num_hypotheses, self.num_mc
        g, _ = self.noise(self.steps, b, k)
        for m in range(self.steps, 0, -1):
            w, log_modular = self.noise(m, b, k, n)
            v = torch.zeros(b, k, 6, device=self.basis.device, requires_grad=True)
            moved = (g @ self.exp(v)).unsqueeze(2) @ torch.linalg.inv(w)
            energy = self.energy(moved.flatten(1, 2), images).reshape(b, k, n)
            weights = torch.softmax(-energy - log_modular, -1).detach()
            (gradient,) = torch.autograd.grad((weights * energy).sum(), v)
            norm = gradient.norm(dim=-1, keepdim=True)
            score = -gradient * (CLIP / norm.clamp(min=CLIP))
            gamma = self.gamma(m / self.steps)
            g = g @ self.exp(gamma**2 * score / self.steps + gamma * self.steps**-0.5 * self.normal(b, k))
        with torch.no_grad():
            best = self.energy(g, images).argmin(1)
        return g[torch.arange(b, device=best.device), best]
