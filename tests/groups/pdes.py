"""Partial differential equations with closed-form solutions, as oracles for point-symmetry groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

Field = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pde:
    """An equation in (x, t, u).

    Attributes:
        name: for messages.
        terms: a field and a point to the terms whose sum vanishes on solutions.
        solutions: fields that solve it, as functions of scalars x and t > 0.
        length: a typical length of x.
        basis_scale: scale of the group's basis that makes unit steps of order one in the equation's own units.
    """

    name: str
    terms: Callable[[Field, Tensor, Tensor], tuple[Tensor, ...]]
    solutions: Mapping[str, Field]
    length: float
    basis_scale: tuple[float, ...]

    def __str__(self) -> str:
        return self.name

    def relative_residual(self, field: Field, x: Tensor, t: Tensor) -> Tensor:
        """|sum of terms| over the sum of their sizes, at points ``[p]``."""
        terms = torch.stack(torch.func.vmap(lambda x, t: self.terms(field, x, t))(x, t))
        return terms.sum(0).abs() / terms.abs().sum(0)


def dx(field: Field) -> Field:
    return grad(field, 0)


def dt(field: Field) -> Field:
    return grad(field, 1)


def heat(nu: float) -> Pde:
    k = nu**-0.5

    def terms(u: Field, x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        return dt(u)(x, t), -nu * dx(dx(u))(x, t)

    solutions = {
        "kernel": lambda x, t: (t + 0.5).rsqrt() * torch.exp(-(x**2) / (4 * nu * (t + 0.5))),
        "sine": lambda x, t: 2.0 * torch.exp(-nu * k**2 * t) * torch.sin(k * x + 0.3),
        "polynomial": lambda x, t: x**2 + 2 * nu * t,
        "travelling": lambda x, t: torch.exp(k * x + nu * k**2 * t),
    }
    return Pde(f"heat({nu:g})", terms, solutions, nu**0.5, (1.0, 1.0, 1.0, nu**0.5, nu**0.5, 1.0))


def burgers(nu: float) -> Pde:
    a = nu**0.5
    k = nu**-0.5

    def terms(u: Field, x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        return dt(u)(x, t), u(x, t) * dx(u)(x, t), -nu * dx(dx(u))(x, t)

    def cole_hopf(x: Tensor, t: Tensor) -> Tensor:
        def phi(x: Tensor, t: Tensor) -> Tensor:
            return 1.0 + torch.exp(k * x + nu * k**2 * t) + 0.5 * torch.exp(-0.7 * k * x + nu * (0.7 * k) ** 2 * t)

        return -2.0 * nu * dx(phi)(x, t) / phi(x, t)

    solutions = {
        "tanh": lambda x, t: 0.6 * a - a * torch.tanh(a * (x - 0.6 * a * t) / (2 * nu)),
        "cole_hopf": cole_hopf,
        "rational": lambda x, t: x / (t + 1.0),
    }
    return Pde(f"burgers({nu:g})", terms, solutions, nu**0.5, (1.0, 1.0, 1.0, nu**0.5, nu**0.5))


def kdv() -> Pde:
    def terms(u: Field, x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        return dt(u)(x, t), u(x, t) * dx(u)(x, t), dx(dx(dx(u)))(x, t)

    def soliton(x: Tensor, t: Tensor) -> Tensor:
        speed = 0.8
        return 3.0 * speed / torch.cosh(0.5 * speed**0.5 * (x - speed * t)) ** 2

    solutions = {"soliton": soliton, "rational": lambda x, t: x / (t + 0.1)}
    return Pde("kdv", terms, solutions, 1.0, (1.0, 1.0, 1.0, 1.0))
