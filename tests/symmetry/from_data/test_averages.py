"""Samples that are averages over neighbours have the symmetries of what was averaged."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks.symmetries_from_data import LENGTH, POINTS, slope, solved, waves
from trivgeo.symmetry import symmetries_from_data
from trivgeo.symmetry.from_data.averages import Average, variance_of

FINER = 4
X = torch.arange(POINTS, dtype=torch.float64) * LENGTH / POINTS
TIMES = torch.linspace(0.0, 1.0, 25, dtype=torch.float64)


def averaged(u: Tensor, weights: Tensor, axis: int) -> Tensor:
    """Means over neighbours along a periodic axis, or those of an open one that have all neighbours."""
    half = len(weights) // 2
    shifted = torch.stack([w * u.roll(half - i, axis) for i, w in enumerate(weights / weights.sum())]).sum(0)
    return shifted if axis == u.ndim - 1 else shifted.narrow(axis, half, u.shape[axis] - 2 * half)


@pytest.fixture(scope="module")
def diffusion() -> Tensor:
    """Solutions ``[b, s, n]`` of u_t = (u^2)_xx / 5, of dimension 4, on points that are four times as fine."""
    start = waves(8, 3, 0.12, 1, FINER * POINTS, mean=1.0)
    cut = torch.arange(FINER * POINTS // 2 + 1) < FINER * POINTS // 4

    def rate(t: float, u: Tensor) -> Tensor:
        square = torch.fft.irfft(torch.fft.rfft(u * u) * cut, FINER * POINTS)
        return slope(square, 2) / 5

    return solved(rate, start, TIMES, 5e-4)


CELL = torch.tensor([0.5, 1.0, 1.0, 1.0, 0.5], dtype=torch.float64)  # trapezoids over a cell of the coarse points
THREE = torch.ones(3, dtype=torch.float64)
BELL = torch.exp(-torch.arange(-5.0, 6.0, dtype=torch.float64).square() / 2)


@pytest.mark.parametrize(
    ("weights", "axis", "is_fine", "name", "std"),
    [
        (THREE, 2, False, "x", (2 / 3) ** 0.5),
        pytest.param(BELL, 2, False, "x", 1.0, marks=pytest.mark.slow),
        (CELL, 2, True, "x", (1 / 12 + 1 / 96) ** 0.5),  # with the variance of trapezoids
        pytest.param(BELL, 1, False, "t", 1.0, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_an_average_is_seen_and_undone(
    diffusion: Tensor, weights: Tensor, axis: int, is_fine: bool, name: str, std: float
) -> None:
    u = (
        averaged(diffusion, weights, axis)[..., ::FINER]
        if is_fine
        else averaged(diffusion[..., ::FINER], weights, axis)
    )
    lost = (len(TIMES) - u.shape[1]) // 2
    found = symmetries_from_data(u, (X, TIMES[lost : len(TIMES) - lost]))
    (fitted,) = found.equations
    if weights is BELL and axis == 2 and not found.verdict.trusted:  # a part of the solutions tells the width
        assert "like those that samples have which are averages over x" in " ".join(found.verdict.reasons)
        return
    assert (found.dimension, list(fitted.coefficients)) == (4, ["diff(u^2, x, 2)"])
    assert found.verdict.trusted
    if name in fitted.averaged:
        assert fitted.averaged == {name: pytest.approx(std, rel=0.08)}
        assert any(f"averages over {name}" in assumption for assumption in found.verdict.assumptions)
    else:  # an average of so few times changes no term
        assert name == "t"


def test_values_of_a_solution_are_no_averages(diffusion: Tensor) -> None:
    found = symmetries_from_data(diffusion[..., ::FINER], (X, TIMES))
    assert (found.dimension, found.verdict.trusted, found.equations[0].averaged) == (4, True, {})


def test_a_term_like_that_of_averages_stays_a_term() -> None:
    """Exact solutions have the term u_x u_xx, which averages of Burgers' equation have too."""

    def rate(t: float, u: Tensor) -> Tensor:
        return -u * slope(u) + 0.2 * slope(u, 2) - 0.05 * slope(u) * slope(u, 2)

    u = solved(rate, waves(12, 2, 0.1, 1), TIMES, 2.5e-3)
    (fitted,) = symmetries_from_data(u, (X, TIMES)).equations
    assert fitted.coefficients["diff(u, x, 1)*diff(u, x, 2)"] == pytest.approx(-0.05, rel=1e-2)
    assert fitted.averaged == {}


def test_noise_leaves_open_whether_samples_are_averages() -> None:
    """The larger equation is stated, and doubted: its last term is like that of averages."""
    draw = torch.Generator().manual_seed(2)
    u = averaged(solved(lambda t, u: 0.2 * slope(u, 2) - u * slope(u), waves(24, 4, 0.3, 1), TIMES, 1e-2), THREE, 2)
    found = symmetries_from_data(u + 0.005 * u.std() * torch.randn(u.shape, generator=draw, dtype=u.dtype), (X, TIMES))
    assert "diff(u, x, 1)*diff(u, x, 2)" in found.equations[0].coefficients
    assert not found.verdict.trusted
    assert any("averages over x" in reason for reason in found.verdict.reasons)


def test_the_terms_of_averages() -> None:
    """The mean of the product over neighbours of u and v is that of the means, and the variance times u_x v_x."""
    square = {((0, (1,)), (0, (0,))): -1.0}  # -u u_x gains -s^2 u_x u_xx
    assert variance_of(square, {((0, (1,)), (0, (2,))): -0.3}, [0]) == pytest.approx(0.3)
    assert variance_of(square, {((0, (1,)), (0, (2,))): 0.3}, [0]) == 0
    assert variance_of(square, {((0, (1,)), (0, (1,))): -0.3}, [0]) == 0
    cube = {((0, (0, 0)),) * 3: 2.0}  # 2 u^3 gains 6 s^2 u |grad u|^2
    slopes = {((0, (0, 0)), (0, along), (0, along)): 1.2 for along in ((0, 1), (1, 0))}
    assert variance_of(cube, slopes, [0, 1]) == pytest.approx(0.2)
    assert variance_of(cube, slopes, [0]) == 0


@pytest.mark.parametrize("weights", ["points", "bell"])
def test_waves_are_restored(weights: str) -> None:
    """An average multiplies a wave by a known factor: undone, the wave is as before."""
    k = 2 * math.pi * 4 / 64  # per step
    wave = torch.cos(k * torch.arange(64, dtype=torch.float64))
    width = 5
    std = ((width**2 - 1) / 12) ** 0.5
    factor = math.exp(-((std * k) ** 2) / 2) if weights == "bell" else math.sin(width * k / 2) / math.sin(k / 2) / width
    average = Average((1,), std, weights, 4)
    undone = average.undone(factor * wave.expand(1, 1, 2, -1), [False, True])
    torch.testing.assert_close(undone, wave.expand(1, 1, 2, -1), rtol=0, atol=2e-3)
    inner = average.undone(factor * wave.expand(1, 1, 2, -1), [False, False])
    torch.testing.assert_close(inner, undone[..., 4:-4])
