"""Discrete symmetries of equations as in textbooks, of functions and operators by how they were made."""

import math
from typing import Any

import pytest
import sympy as sp
import torch
from torch import Tensor

from tests.helpers import seeded
from trivgeo.actions import Field
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.symmetry.discrete import (
    discrete_symmetries,
    discrete_symmetries_of_function,
    discrete_symmetries_of_operator,
)

F64 = torch.float64


def plane_fields(count: int, unknowns: int, points: tuple[int, int] = (8, 8)) -> Field:
    values = torch.randn(count, unknowns, *points, generator=torch.manual_seed(0), dtype=F64)
    return Field.on_box(values, [(0.0, 1.0), (0.0, 1.0)])


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("u_t + u*u_x + u_xxx = 0", {"x -> -x, t -> -t"}),
        ("u_t + u*u_x = nu*u_xx", {"x -> -x, u -> -u"}),
        ("u_t + u^2*u_x + u_xxx = 0", {"u -> -u", "x -> -x, t -> -t", "x -> -x, t -> -t, u -> -u"}),
        ("u_t = u_xx + u*(1 - u)", {"x -> -x"}),
        ("y'' = x*y^2", {"x -> -x, y -> -y"}),
        ("u_t = u_xx + u_x + u^2", set()),
        (["u_t = v_x", "v_t = u_x"], None),
    ],
)
def test_of_equations(equation: str | list[str], expected: set[str] | None) -> None:
    found = {symmetry.text for symmetry in discrete_symmetries(equation)}
    if expected is None:  # waves: x -> -x with u -> -u or v -> -v, t alike, both signs, and the exchange of u and v
        expected = {"u -> v, v -> u", "u -> -v, v -> -u", "u -> -u, v -> -v"}
        expected |= {f"{z} -> -{z}, {w} -> -{w}" for z in "xt" for w in "uv"}
        expected |= {f"{z} -> -{z}, {w}" for z in "xt" for w in ("u -> v, v -> -u", "u -> -v, v -> u")}
        both = "x -> -x, t -> -t"
        expected |= {both, f"{both}, u -> -u, v -> -v", f"{both}, u -> v, v -> u", f"{both}, u -> -v, v -> -u"}
    assert found == expected


def test_axes_are_exchanged() -> None:
    """The symmetries of a square, for a scalar of either sign; a box of other coefficients has fewer."""
    assert len(discrete_symmetries("u_t = u_xx + u_yy")) == 15
    assert len(discrete_symmetries("u_t = u_xx + 2*u_yy")) == 7
    (symmetry,) = (s for s in discrete_symmetries("u_t = u_xx + u_yy + u^2") if s.text == "x -> -y, y -> x")
    assert symmetry.images == (-sp.Symbol("y"), sp.Symbol("x"), sp.Symbol("t"), sp.Symbol("u"))
    assert symmetry.breaking == 0


def test_the_time_is_no_axis_of_space() -> None:
    """Equations that are not solved for derivatives in time: a square, and the time reversed with the velocities."""
    euler = ["u_t + u*u_x + v*u_y + p_x = 0", "v_t + u*v_x + v*v_y + p_y = 0", "u_x + v_y = 0"]
    found = [symmetry.text for symmetry in discrete_symmetries(euler)]
    assert len(found) == 15  # the eight of the square, with and without the time reversed, less the identity
    assert {"x -> y, y -> x, u -> v, v -> u", "t -> -t, u -> -u, v -> -v"} <= set(found)
    assert not any(exchange in text for text in found for exchange in ("t -> x", "t -> y", "t -> -x", "t -> -y"))


def test_of_a_function() -> None:
    """Of z_1^2 z_2 the sign of z_1; a small odd part breaks it by its size."""
    points = torch.randn(400, 2, generator=torch.manual_seed(0), dtype=F64)

    def function(z: Tensor, odd: float = 0.0) -> Tensor:
        return z[:, 0].square() * z[:, 1] + odd * z[:, 0]

    (found,) = discrete_symmetries_of_function(function, points)
    assert (found.text, found.breaking) == ("x1 -> -x1", 0.0)
    (broken,) = discrete_symmetries_of_function(lambda z: function(z, 0.01), points)
    expected = 0.02 * points[:, 0].norm() / (math.sqrt(2.0) * (v := function(points, 0.01)).sub(v.mean()).norm())
    assert broken.breaking == pytest.approx(float(expected))
    with pytest.raises(ConfigurationError, match="not constant"):
        discrete_symmetries_of_function(lambda z: z[:, 0] * 0, points)
    with pytest.raises(ShapeError, match="points"):
        discrete_symmetries_of_function(function, points[0])


def test_of_an_operator() -> None:
    """A divergence of (v, -u) commutes with what a curl does: the signs of u and v go with those of y and x."""

    def network(values: Tensor, off: float = 0.0) -> Tensor:
        u, v = values.unbind(1)
        curl = (v.roll(-1, 1) - v.roll(1, 1)) - (u.roll(-1, 2) - u.roll(1, 2))
        turned = torch.stack([u * curl.square(), v * curl.square()], 1)
        return turned + off * values.square().roll(1, 2)

    found = discrete_symmetries_of_operator(network, plane_fields(3, 2))
    # with vectors that are turned or reflected, and their opposites
    assert len(found) == 15
    assert {"x -> -x, u -> -u", "y -> -y, v -> -v", "x -> y, y -> -x, u -> v, v -> -u", "u -> -u, v -> -v"} <= {
        s.text for s in found
    }
    assert max(s.breaking for s in found) < 1e-12
    sizes = [
        discrete_symmetries_of_operator(lambda u, off=off: network(u, off), plane_fields(3, 2), tolerance=0.1)[-1]
        for off in (1e-2, 2e-2)
    ]
    assert sizes[1].breaking / sizes[0].breaking == pytest.approx(2.0, rel=0.1)
    # axes of other numbers of points are not exchanged
    assert len(discrete_symmetries_of_operator(network, plane_fields(3, 2, (8, 6)))) == 7
    with pytest.raises(ShapeError, match="network"):
        discrete_symmetries_of_operator(lambda values: values[:, :1], plane_fields(3, 2))
    with pytest.raises(ConfigurationError, match="finite"):
        discrete_symmetries_of_operator(lambda values: values / 0, plane_fields(3, 2))


def test_too_many_candidates() -> None:
    with pytest.raises(ConfigurationError, match="at most 1000 exchanges"):
        discrete_symmetries_of_function(lambda z: z.sum(1), torch.rand(10, 5))


def test_mistaken_calls() -> None:
    with pytest.raises(ConfigurationError, match="network: expected a function of values"):
        discrete_symmetries_of_operator(3, plane_fields(2, 1))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="function: expected a function of points"):
        discrete_symmetries_of_function(3, torch.rand(10, 2))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="tolerance"):
        discrete_symmetries_of_operator(lambda values: values, plane_fields(2, 1), tolerance=0.0)


def test_without_a_time_all_variables_are_exchanged() -> None:
    texts = {symmetry.text for symmetry in discrete_symmetries("u_xx + u_yy = 0")}
    assert {"x -> y, y -> x", "x -> y, y -> -x", "x -> -x", "u -> -u"} <= texts
    assert "x -> y, y -> x" in {symmetry.text for symmetry in discrete_symmetries("u_xy = sin(u)")}


@pytest.mark.parametrize(
    ("equation", "message"),
    [("u_t^2 = u_x^2 + u", "each branch"), ("u_t = sqrt(u_x^2)*u_y", "equation of each sign")],
)
def test_branches_that_are_not_seen(equation: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        discrete_symmetries(equation)


def test_a_large_mean_hides_nothing() -> None:
    """A shift by a quarter of the box commutes with no reflection in space, whatever the mean of the fields."""
    x = torch.arange(32, dtype=F64) / 32
    phases = torch.rand(6, 3, generator=seeded(0), dtype=F64)
    waves = torch.stack([torch.sin(2 * math.pi * (k * x + phases[:, k - 1 : k])) for k in (1, 2, 3)]).sum(0)
    for mean in (0.0, 293.0):
        fields = Field.on_box((waves + mean).unsqueeze(1), [(0.0, 1.0)])
        found = discrete_symmetries_of_operator(lambda u: u.roll(8, -1), fields)
        assert [symmetry.text for symmetry in found] == ["u -> -u"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z.long()[:, 0], "int64"),
        (lambda z: z.numpy(), "ndarray"),
        (lambda z: z[:, 0] / 0.0, "finite"),
        (lambda z: z[:, 0] * 0.0 + 1 / 3, "not constant"),
    ],
)
def test_values_are_checked(function: Any, message: str) -> None:
    points = torch.randn(200, 3, generator=seeded(0))
    with pytest.raises(ConfigurationError, match=message):
        discrete_symmetries_of_function(function, points)
    with pytest.raises(ShapeError, match=r"\[200, \.\.\.\], got \[\]"):
        discrete_symmetries_of_function(lambda z: z.sum(), points)
    with pytest.raises(ShapeError, match="one point"):
        discrete_symmetries_of_function(lambda z: z[:, 0], points[:0])
