"""Learn the law of torsion angles, of rotations and of plane motions from samples, with densities."""

# %% [markdown]
# # Diffusion on your group
#
# A generative model on a group in three lines: samples in, a model out that draws new elements and tells their density.
# Run this file as it is, `python docs/tutorials/group_diffusion.py`, or with `--steps 4000` for good models.

# %%
from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

from trivgeo.groups import SE, SO, Torus
from trivgeo.sde import GroupDiffusion, heat_kernel, probability_flow, solve, uniform_grid

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--figure", type=Path, default=Path("group_diffusion.png"))
options = parser.parse_args()
generator = torch.Generator().manual_seed(0)

# %% [markdown]
# ## 1. Samples
#
# Elements of `Torus(2)` are two angles in radians, any real numbers. The angles here come in two clusters and in a band
# across the cut at 180 degrees, which a torus does not have.


# %%
def angles(number: int) -> Tensor:
    """Three groups of pairs of angles, ``[number, 2]``."""
    which = torch.randint(3, (number,), generator=generator)
    centre = torch.tensor([[-1.1, -0.8], [-1.3, 2.4], [3.1, 1.0]])[which]
    spread = torch.tensor([[0.15, 0.2], [0.3, 0.2], [0.6, 0.1]])[which]
    return centre + spread * torch.randn(number, 2, generator=generator)


group = Torus(2)
train, test = angles(5000), angles(500)

# %% [markdown]
# ## 2. Three lines
#
# `kind` is how data and noise are joined: "diffusion" (noise and its score), "momentum" (noise on a velocity, which
# moves the element), or "flow" (straight lines from noise to data). `fit` takes at most ten minutes by default, shows a
# bar, and with `folder=` goes on where it was killed.

# %%
models = {}
for kind in ("diffusion", "momentum", "flow"):
    model = GroupDiffusion(group, kind, seed=0, width=64, depth=2)
    model.fit(train, steps=options.steps, batch_size=256, progress=False)
    models[kind] = model

# %% [markdown]
# ## 3. Densities
#
# In nats, with respect to d theta_1 d theta_2 on a torus, to Haar measure of total mass one on other compact groups,
# and on others to the left Haar measure that is Lebesgue's of the algebra at the identity. They are exact up to the
# tolerance of an adaptive solver: the divergence is taken by forward derivatives in every direction. In high dimensions
# pass `divergence=HutchinsonDivergence()`.

# %%
uniform = -2.0 * math.log(2.0 * math.pi)
scores = {kind: float(model.log_prob(test, tolerance=1e-3).mean()) for kind, model in models.items()}
print(f"uniform law: {uniform:.2f} nats")
for kind, value in scores.items():
    print(f"{kind}: {value:.2f} nats")

# %% [markdown]
# ## 4. Samples, and steps of your own
#
# `sample` follows the flow whose law `log_prob` tells. The parts are those of the library: the transport of a fitted
# diffusion makes a score (g, t) for every process and stepper, here the probability flow on a fixed grid.

# %%
drawn = {kind: model.sample(500, generator=generator) for kind, model in models.items()}
diffusion = models["diffusion"]
transport = diffusion.transport
score = transport.score(diffusion.network)
start = group.random_haar(500, generator=generator)
with torch.no_grad():
    flow = probability_flow(group, transport.schedule, score)
    by_hand = solve(flow, start, uniform_grid(40, 1.0, transport.first)).final
near = float((group.wrap(by_hand - torch.tensor([-1.1, -0.8])).norm(dim=-1) < 0.8).float().mean())
print(f"share of the first cluster: {near:.2f} of samples, {1 / 3:.2f} of the data")

# %% [markdown]
# ## 5. Other groups
#
# Nothing above knows that the group is a torus. Rotations of a heat kernel, whose law is known, and plane motions,
# which are not compact and end at a normal law about their mean:

# %%
rotations = heat_kernel(SO(3)).sample(torch.full((2000,), 0.2), generator)
spinning = GroupDiffusion(SO(3), "flow", width=64, depth=2)
spinning.fit(rotations, steps=options.steps, batch_size=256, progress=False)
exact = heat_kernel(SO(3)).log_density(rotations[:200], torch.full((200,), 0.2))
print(
    f"rotations: {float(spinning.log_prob(rotations[:200], tolerance=1e-3).mean()):.2f} nats, "
    f"truly {float(exact.mean()):.2f}"
)
motions = SE(2).random(2000, std=0.5, generator=generator)
moving = GroupDiffusion(SE(2), "momentum", width=64, depth=2)
moving.fit(motions, steps=options.steps // 8, batch_size=128, progress=False)
print(f"motions: {list(moving.sample(3, generator=generator, tolerance=1e-2).shape)}")

# %% [markdown]
# ## 6. Keep it
#
# A file holds weights, laws and settings, and the fingerprint of the group: on another group it is refused.
# `model.save("angles.safetensors")`, `GroupDiffusion.load("angles.safetensors", Torus(2))`.


# %%
def draw(path: Path) -> None:
    """The pairs of angles of the data and of each model."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(12.5, 3.4), layout="constrained", sharex=True, sharey=True)
    for axis, (name, points) in zip(axes, {"data": test, **drawn}.items(), strict=True):
        degrees = group.wrap(points).rad2deg()
        axis.plot(degrees[:, 0], degrees[:, 1], ".", ms=3, alpha=0.5)
        axis.set(title=name, xlabel="first angle", xlim=(-180, 180), ylim=(-180, 180))
    axes[0].set_ylabel("second angle")
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    try:
        draw(options.figure)
    except ImportError:
        print("no figure: matplotlib is not installed")
