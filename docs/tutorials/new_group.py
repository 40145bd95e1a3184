"""Build the symmetry group of an equation, and undo an unknown transformation with it."""

# %% [markdown]
# # A group from an equation
#
# trivgeo contains the symmetry groups of a few equations, such as the heat equation. This page builds the group of
# another equation, the potential Burgers equation
#
#     u_t = u_xx + u_x^2,
#
# and uses the group to undo an unknown transformation. Run this page as a script:
# `python docs/tutorials/new_group.py`.

# %%
from __future__ import annotations

import argparse
from pathlib import Path

import sympy as sp
import torch
from torch import Tensor

from trivgeo.groups import from_generators
from trivgeo.inversion import Inverter, ReverseDiffusionSearch
from trivgeo.inversion.energies import LeastSquares
from trivgeo.inversion.stages import LevenbergMarquardt
from trivgeo.sde import GeometricSchedule
from trivgeo.symmetry import find_symmetries, verify

# %% [markdown]
# ## 1. From the equation to its symmetries
#
# With `degree=2`, `find_symmetries` finds the vector fields whose coefficients are polynomials of degree two,
# exactly. The last line of its output says what else is known. The equation also has symmetries that are not
# polynomial, `exp(-u) phi(x, t) ∂_u`. Here phi is any solution of the heat equation, since `exp(u)` solves the heat
# equation. `ansatz=[exp(-u)]` would find the symmetries with polynomial phi. `verify` checks a given field.

# %%
x, t = sp.symbols("x t")
u = sp.Function("u")(x, t)
equation = sp.Eq(u.diff(t), u.diff(x, 2) + u.diff(x) ** 2)

symmetries = find_symmetries(equation, degree=2)
print(symmetries)
hidden = (0, 0, sp.exp(-sp.Symbol("u") - t) * sp.sin(x))
print(f"residual of exp(-u - t) sin(x) ∂_u: {verify(equation, hidden)}")
print(f"brackets:\n{symmetries.algebra}")

# %% [markdown]
# ## 2. From the symmetries to a group
#
# `group()` builds the group: the product, the exponential, the logarithm, and the action on points (x, t, u).
# `action.flows` says how the action computes each coordinate, here by closed forms. `scale` says how far one unit of
# noise goes along each generator.

# %%
SCALE = [0.3, 0.3, 0.15, 0.05, 0.3, 0.5]
group = symmetries.group(scale=SCALE)
action = group.action()
print(f"{group}\nunimodular: {group.algebra.is_unimodular}\nflows: {dict(action.flows)}")

# %% [markdown]
# `from_generators` builds the same group from vector fields written by hand, as torch functions of a point:

# %%
by_hand = from_generators(
    {
        "space": lambda p: torch.stack([torch.ones_like(p[0]), 0 * p[0], 0 * p[0]]),
        "scaling": lambda p: torch.stack([p[0], 2 * p[1], 0 * p[0]]),
        "boost": lambda p: torch.stack([2 * p[1], 0 * p[0], -p[0]]),
        "projective": lambda p: torch.stack([4 * p[1] * p[0], 4 * p[1] ** 2, -2 * p[1] - p[0] ** 2]),
        "time": lambda p: torch.stack([0 * p[0], torch.ones_like(p[0]), 0 * p[0]]),
        "shift": lambda p: torch.stack([0 * p[0], 0 * p[0], torch.ones_like(p[0])]),
    },
    variables=3,
    scale=SCALE,
)
difference = by_hand.algebra.structure_constants - group.algebra.structure_constants
print(f"structure constants agree to {float(difference.abs().max()):.1e}")

# %% [markdown]
# ## 3. Data and energy
#
# The clean data are solutions `u = log(1 + a exp(k x + k^2 t))` on one grid of points (x, t), minus their mean. Each
# solution is moved by an unknown element of the group. The energy compares the moments of (x, t) with the moments of
# the grid, and the mean of u with zero.


# %%
def clean_jets(count: int, generator: torch.Generator) -> Tensor:
    """Points (x, t, u) of different solutions on one grid, ``[count, 24, 3]``."""
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 6), torch.linspace(0, 0.6, 4)).double()
    a, k = (0.5 + torch.rand(count, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    values = torch.log1p(a * torch.exp(k * grid[:, 0] + k**2 * grid[:, 1]))
    values = values - values.mean(-1, keepdim=True)
    return torch.cat([grid.expand(count, -1, -1), values.unsqueeze(-1)], -1)


def moments(jets: Tensor) -> Tensor:
    """Means of x, t, u, then second and third moments of (x, t) about the mean: ``[*batch, 8]``."""
    a, b = (jets[..., :2] - jets[..., :2].mean(-2, keepdim=True)).unbind(-1)
    products = torch.stack([a * a, a * b, b * b, a * a * b, b * b * b], -1)
    return torch.cat([jets.mean(-2), products.mean(-2)], -1)


generator = torch.Generator().manual_seed(0)
clean = clean_jets(3, generator)
target = moments(clean)[0]


energy = LeastSquares(lambda jets: moments(jets) - target, std=0.07)
unknown = group.random(len(clean), std=0.8, generator=generator, dtype=torch.float64)
moved = action(unknown, clean)

# %% [markdown]
# ## 4. Inversion
#
# `ReverseDiffusionSearch` searches for the transformation by reversing a diffusion on the group. It leaves a little
# noise. The energy is a sum of squares, so a few steps of `LevenbergMarquardt` remove this noise.


# %%
def error(jets: Tensor) -> float:
    """Root mean square distance to the clean points."""
    return float((jets - clean).square().mean().sqrt())


inverter = ReverseDiffusionSearch(action, energy, GeometricSchedule(0.1, 1.0), steps=20, num_mc=2, num_hypotheses=12)
polish = Inverter(action, energy, [LevenbergMarquardt(10)])
result = inverter(moved, generator=generator)
restored = action(group.inverse(result.best()), moved)
polished = action(group.inverse(polish(moved, initial=result.elements).best()), moved)
errors = {"transformed": error(moved), "searched": error(restored), "polished": error(polished)}
for name, value in errors.items():
    print(f"error of {name} jets: {value:.2g}")


# %% [markdown]
# ## 5. A figure


# %%
def draw(path: Path) -> None:
    """Points (x, t) of the clean, transformed and restored data."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(clean), figsize=(4 * len(clean), 3.2), layout="constrained")
    for axis, *clouds in zip(axes, clean, moved, restored, strict=True):
        for cloud, marker, label in zip(clouds, "o+x", ("clean", "transformed", "restored"), strict=True):
            axis.scatter(cloud[:, 0], cloud[:, 1], marker=marker, label=label)
        axis.set(xlabel="x", ylabel="t")
    axes[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path, default=Path("new_group.png"))
    figure_path = parser.parse_args().figure
    assert errors["polished"] < 1e-3 < errors["transformed"]
    try:
        draw(figure_path)
    except ImportError:
        print("no figure: matplotlib is not installed")
