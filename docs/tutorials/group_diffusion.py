"""Fit generative models to torsion angles, rotations and plane motions, and evaluate their densities."""

# %% [markdown]
# # Diffusion on your group
#
# `GroupDiffusion` fits a generative model to samples on a group. The model draws new elements and evaluates their
# density. Run this page as a script: `python docs/tutorials/group_diffusion.py`. Short training gives rough models;
# `--steps 4000` gives good ones.

# %%
from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

from trivgeo.generative import GroupDiffusion
from trivgeo.generative.spaces import SpaceDiffusion, Sphere
from trivgeo.groups import SE, SO, Torus
from trivgeo.sde import heat_kernel, probability_flow, solve, uniform_grid

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--figure", type=Path, default=Path("group_diffusion.png"))
options, _ = parser.parse_known_args()  # a notebook has arguments of its own
generator = torch.Generator().manual_seed(0)

# %% [markdown]
# ## 1. Samples
#
# An element of `Torus(2)` is a pair of angles in radians; angles that differ by full turns are the same. The samples
# form two clusters and a band. The band crosses 180 degrees, where a model on the plane would see a cut.


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
# ## 2. Fit a model
#
# `kind` is the probability path between data and noise. "diffusion" adds noise and learns the score. "momentum" adds
# noise to a velocity, which moves the element. "flow" learns the velocity along paths g exp(t v) from noise to data.
# `fit` takes at most ten minutes by default, and shows a progress bar. With `folder=` a training that was killed
# continues where it stopped.

# %%
models = {}
for kind in ("diffusion", "momentum", "flow"):
    model = GroupDiffusion(group, kind, seed=0, width=64, depth=2)
    model.fit(train, steps=options.steps, batch_size=256, progress=False)
    models[kind] = model
print("converged:", models["flow"].history.verdict)

# %% [markdown]
# ## 3. Densities
#
# `log_prob` returns log-densities in nats. The measure is left Haar measure: of total mass one on compact groups, so
# that the uniform distribution has density one, and on other groups the one that equals Lebesgue measure of the Lie
# algebra at the identity. `log_prob(g, measure="volume")` converts: on a torus to d theta_1 d theta_2.
#
# For kinds "diffusion" and "flow" an adaptive solver follows the flow from an element to noise, and integrates the
# divergence exactly. In high dimensions pass `divergence=HutchinsonDivergence()`, a random estimate that is cheaper.
#
# Kind "momentum" has a joint density of elements and momenta. Its `log_prob` is an estimate from random momenta. The
# expectation of the estimate is a lower bound of the log-density. More momenta, `num_draws=8`, raise the bound and
# reduce the variance.

# %%
uniform = 0.0
scores = {kind: float(model.log_prob(test, tolerance=1e-3).mean()) for kind, model in models.items()}
print(f"uniform distribution: {uniform:.2f} nats")
for kind, value in scores.items():
    print(f"{kind}: {value:.2f} nats")

# %% [markdown]
# ## 4. Draw samples
#
# `sample` runs the stochastic process. With `tolerance=` it follows the deterministic flow, whose density is
# `log_prob`. You can also solve the equation yourself. `fitted.path.score(network)` is a score (g, t), which every
# process and stepper of `trivgeo.sde` takes. Here the probability flow is solved on a fixed grid.

# %%
drawn = {kind: model.sample(500, generator=generator) for kind, model in models.items()}
diffusion = models["diffusion"]
path = diffusion.fitted.path
score = path.score(diffusion.network)
start = group.random_haar(500, generator=generator)
with torch.no_grad():
    flow = probability_flow(group, path.schedule, score)
    by_hand = solve(flow, start, uniform_grid(40, 1.0, path.start_time)).final
near = float((group.wrap(by_hand - torch.tensor([-1.1, -0.8])).norm(dim=-1) < 0.8).float().mean())
print(f"share of the first cluster: {near:.2f} of samples, {1 / 3:.2f} of the data")

# %% [markdown]
# ## 5. Other groups
#
# The same code works on other groups. The first example has rotations in three clusters, with a known density. One
# cluster lies at half turns, where rotation vectors jump. The second example has plane motions. This group is not
# compact, so the noise ends at a normal distribution about the mean, not at a uniform one.


# %%
kernel = heat_kernel(SO(3))
centres = SO(3).exp(torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 1.0], [3.1, 0.0, 0.0]]))
spread = torch.tensor(0.06)  # the variance of each cluster


def rotations(number: int) -> Tensor:
    """Samples ``[number, 3, 3]`` of the heat kernel about a random centre."""
    which = torch.randint(3, (number,), generator=generator)
    return SO(3).compose(centres[which], kernel.sample(spread.expand(number), generator))


def true_density(r: Tensor) -> Tensor:
    """The true log-density ``[n]``, of the mean of three heat kernels."""
    away = SO(3).compose(SO(3).inverse(centres), r.unsqueeze(1))
    return kernel.log_density(away, spread.expand(len(r), 3)).logsumexp(-1) - math.log(3.0)


turned = rotations(300)
spinning = GroupDiffusion(SO(3), "flow", width=64, depth=2)
spinning.fit(rotations(5000), steps=2 * options.steps, batch_size=256, learning_rate=5e-3, progress=False)
learned, truth = spinning.log_prob(turned, tolerance=1e-3), true_density(turned)
gap = float((truth - learned).mean())
spun = spinning.sample(500, generator=generator, tolerance=1e-3)
print(f"rotations: {float(learned.mean()):.2f} nats, truly {float(truth.mean()):.2f}")
motions = SE(2).random(2000, std=0.5, generator=generator)
moving = GroupDiffusion(SE(2), "momentum", width=64, depth=2)
moving.fit(motions, steps=options.steps // 8, batch_size=128, progress=False)
print(f"motions: {list(moving.sample(3, generator=generator, tolerance=1e-2).shape)}")

# %% [markdown]
# ## 6. Spheres
#
# A sphere is a quotient of the rotation group. `SpaceDiffusion` is a model on this group whose network knows the point
# alone, so its density is exactly that of the point, with respect to the uniform distribution of mass one on the
# sphere.

# %%
directions = torch.tensor([1.0, 1.0, 0.0]) + 0.3 * torch.randn(2000, 3, generator=generator)
bearings = torch.nn.functional.normalize(directions)
sphere = SpaceDiffusion(Sphere(2), width=64, depth=2).fit(bearings, steps=options.steps, batch_size=256, progress=False)
sampled = sphere.sample(500, generator=generator, tolerance=1e-2)
print("log-density of the data:", round(float(sphere.log_prob(bearings[:200], tolerance=1e-2).mean()), 2))
print("mean point:", *(f"{x:.2f}" for x in sampled.mean(0)), "truly", *(f"{x:.2f}" for x in bearings.mean(0)))

# %% [markdown]
# ## 7. Save and load
#
# `model.save("angles.safetensors")` writes weights, base distribution, settings and the fingerprint of the group.
# `GroupDiffusion.load("angles.safetensors", Torus(2))` reads the file, and refuses another group.


# %%
def draw(path: Path) -> None:
    """Pairs of angles of the data and of each model; where rotations take the axes, and their densities."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(12.5, 6.4), layout="constrained")
    for place, (name, points) in enumerate({"data": test, **drawn}.items(), start=1):
        axis = figure.add_subplot(2, 4, place)
        degrees = group.wrap(points).rad2deg()
        axis.plot(degrees[:, 0], degrees[:, 1], ".", ms=3, alpha=0.5)
        axis.set(title=name, xlabel="first angle", xlim=(-180, 180), ylim=(-180, 180))
        if place == 1:
            axis.set_ylabel("second angle")
    shown = {"rotations, data": rotations(500), "rotations, flow": spun}
    for place, (name, r) in enumerate(shown.items(), start=5):
        axis = figure.add_subplot(2, 4, place, projection="mollweide")
        for column, letter in enumerate("xyz"):
            x, y, z = r[..., column].unbind(-1)
            axis.plot(torch.atan2(y, x), z.clamp(-1.0, 1.0).asin(), ".", ms=2, alpha=0.5, label=f"{letter} axis")
        axis.set(title=name, xticklabels=[], yticklabels=[])
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, fontsize=8, markerscale=3)
    axis = figure.add_subplot(2, 4, 7)
    axis.plot(truth, learned, ".", ms=3, alpha=0.5)
    axis.axline((0.0, 0.0), slope=1.0, color="0.6", lw=1)
    axis.set(title="log-density of rotations", xlabel="true", ylabel="learned")
    axis = figure.add_subplot(2, 4, 8, projection="mollweide")
    for label, x in {"data": bearings[:500], "flow": sampled}.items():
        axis.plot(torch.atan2(x[:, 1], x[:, 0]), x[:, 2].clamp(-1.0, 1.0).asin(), ".", ms=2, alpha=0.5, label=label)
    axis.set(title="points of a sphere", xticklabels=[], yticklabels=[])
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, fontsize=8, markerscale=3)
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    try:
        draw(options.figure)
    except ImportError:
        print("no figure: matplotlib is not installed")
