"""Simply connected nilpotent groups in exponential coordinates."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import final

import torch
from scipy import special
from torch import Tensor

from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups.action import PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.group import LieGroup
from trivgeo.groups.harmonic import HarmonicAnalysis, HeatKernel, NormalHeatKernel
from trivgeo.groups.linalg import product
from trivgeo.groups.linalg.components import dot, from_entries, last_entries

__all__ = ["Heisenberg", "Nilpotent", "NilpotentGroup", "Translation"]


@checked
class NilpotentGroup(LieGroup):
    r"""A simply connected nilpotent group; an element is its own logarithm, ``[*batch, dim]``.

    Then :math:`g^{-1} = -g`, the product is the terminating Baker-Campbell-Hausdorff series, every automorphism is
    linear in the coordinates, and :math:`\mathrm{Ad}_g = e^{\mathrm{ad}_g}` is a polynomial.

    Args:
        natural_algebra: a nilpotent algebra.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: the algebra is not nilpotent.
    """

    def __init__(self, natural_algebra: LieAlgebra, scale: Scale = None) -> None:
        super().__init__(natural_algebra, (natural_algebra.dim,), scale)
        step = natural_algebra.nilpotency_step()
        if step is None:
            raise ConfigurationError(f"expected a nilpotent algebra, got {natural_algebra!r}")
        self.step = step

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return torch.zeros(self.dim, dtype=dtype, device=device)

    @abstractmethod
    def _compose(self, g: Tensor, h: Tensor) -> Tensor: ...

    def _inverse(self, g: Tensor) -> Tensor:
        return -g

    def _exp(self, v: Tensor) -> Tensor:
        return v

    def _tangent(self, v: Tensor) -> Tensor:
        return v

    def _log(self, g: Tensor) -> Tensor:
        return g

    def _adjoint(self, g: Tensor) -> Tensor:
        return self._ad_series(g, [float(k) for k in range(1, self.step)])

    def _left_jacobian(self, v: Tensor) -> Tensor:
        return self._ad_series(v, [float(k + 1) for k in range(1, self.step)])

    def _ad_series(self, v: Tensor, divisors: Sequence[float]) -> Tensor:
        """``I + ad / d_1 + ad^2 / (d_1 d_2) + ...``, which terminates."""
        ad = self._natural_algebra.ad(v)
        term = torch.eye(self.dim, dtype=v.dtype, device=v.device).expand(ad.shape)
        total = term
        for divisor in divisors:
            term = product(ad, term) / divisor
            total = total + term
        return total

    def _log_modular(self, g: Tensor) -> Tensor:
        return g.new_zeros(self.batch_shape(g))


@checked
@final
class Translation(HarmonicAnalysis, NilpotentGroup):
    """The vector group R^n, acting on points of R^n by translation.

    Args:
        n: the dimension.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        check_count("n", n)
        names = [f"T{i + 1}" for i in range(n)]
        super().__init__(LieAlgebra(torch.zeros(n, n, n, dtype=torch.float64), names), scale)

    def __repr__(self) -> str:
        return f"Translation({self.dim})"

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g + h

    def _heat_kernel(self) -> HeatKernel:
        return NormalHeatKernel(self)

    def action(self) -> PointAction:
        return _TranslationAction(self, (self.dim,))


class _TranslationAction(PointAction):
    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return x + g

    def homogeneous(self, g: Tensor) -> Tensor:
        g = self.group.check_elements(g)
        n = g.shape[-1]
        shift = torch.nn.functional.pad(g.unsqueeze(-1), (n, 0, 0, 1))
        return torch.eye(n + 1, dtype=g.dtype, device=g.device) + shift

    def from_homogeneous(self, matrix: Tensor) -> Tensor:
        return matrix[..., :-1, -1]


@checked
@final
class Heisenberg(NilpotentGroup):
    r"""The Heisenberg group H(n) in exponential coordinates (q, p, z), with :math:`[q_i, p_j] = \kappa \delta_{ij} z`.

    Args:
        n: the number of pairs; the dimension is 2 n + 1.
        central: the constant :math:`\kappa`.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 1, or the constant is zero.
    """

    def __init__(self, n: int = 1, central: float = 1.0, scale: Scale = None) -> None:
        check_count("n", n)
        if central == 0:
            raise ConfigurationError("central: expected a number other than zero, got 0")
        dim = 2 * n + 1
        c = torch.zeros(dim, dim, dim, dtype=torch.float64)
        for i in range(n):
            c[i, n + i, dim - 1] = central
            c[n + i, i, dim - 1] = -central
        names = [f"Q{i + 1}" for i in range(n)] + [f"P{i + 1}" for i in range(n)] + ["Z"]
        super().__init__(LieAlgebra(c, names), scale)
        self.n = n
        self.central = central

    def __repr__(self) -> str:
        return f"Heisenberg({self.n}, central={self.central:g})"

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        n, x, y = self.n, last_entries(g), last_entries(h)
        form = dot(x[:n], y[n:-1]) - dot(x[n:-1], y[:n])
        *total, centre = (a + b for a, b in zip(x, y, strict=True))
        return from_entries([*total, centre + (0.5 * self.central) * form])


@checked
@final
class Nilpotent(NilpotentGroup):
    r"""The simply connected group of any nilpotent algebra, in exponential coordinates.

    The product is the Baker-Campbell-Hausdorff series, written out to nilpotency step 4 and by the recursion of
    Varadarajan (1974, lemma 2.15.3) beyond.

    Args:
        algebra: a nilpotent algebra.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: the algebra is not nilpotent.
    """

    def __init__(self, algebra: LieAlgebra, scale: Scale = None) -> None:
        super().__init__(algebra, scale)
        self._bernoulli = [float(b) / math.factorial(k) for k, b in enumerate(special.bernoulli(max(2, self.step)))]

    def __repr__(self) -> str:
        return f"Nilpotent(dim={self.dim}, step={self.step})"

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        bracket = self._natural_algebra.bracket
        if self.step == 1:
            return g + h
        gh = bracket(g, h)
        total = g + h + 0.5 * gh
        if self.step == 2:
            return total
        if self.step > 4:
            return _varadarajan(bracket, g, h, self.step, self._bernoulli)
        ggh = bracket(g, gh)
        total = total + (ggh - bracket(h, gh)) / 12.0
        return total if self.step == 3 else total - bracket(h, ggh) / 24.0


def _varadarajan(
    bracket: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, step: int, bernoulli: Sequence[float]
) -> Tensor:
    """The terms c_1 + ... + c_step of log(exp x exp y).

    ``bernoulli[k]`` is B_k / k!.

    (m + 1) c_{m+1} = [x - y, c_m] / 2 + sum_p B_2p / (2p)! sum_{k_1 + ... + k_2p = m} [c_k1, [..., [c_k2p, x + y]]].
    The inner sum is the entry (2p, m) of a table built one bracket at a time.
    """
    total, difference = x + y, x - y
    terms = [total]
    for m in range(1, step):
        following = 0.5 * bracket(difference, terms[m - 1])
        # table[q][s]: sum over k_1 + ... + k_q = s of the nested brackets with x + y
        table = {(0, 0): total}
        for q in range(1, m + 1):
            for s in range(q, m + 1):
                parts = [bracket(terms[k - 1], table[q - 1, s - k]) for k in range(1, s + 1) if (q - 1, s - k) in table]
                if parts:
                    table[q, s] = sum(parts[1:], start=parts[0])
        for p in range(1, m // 2 + 1):
            following = following + bernoulli[2 * p] * table[2 * p, m]
        terms.append(following / (m + 1))
    return sum(terms[1:], start=terms[0])
