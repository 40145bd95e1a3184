"""The configurations as published: the numbers of the paper, and their search against a loop written plainly."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.published import action_of, published_search, settings
from tasks.config_inheritance import read
from tests.helpers import assert_relative, seeded
from trivgeo._random import common, normal, permutation
from trivgeo.groups import Affine
from trivgeo.sde import NoiseKernel, NoiseStreams

AFFINE = [0.084] * 4 + [0.421] * 2
PROJECTIVE = [0.15, 0.35, 0.5, 0.35, 0.15, 0.5, 0.15, 0.15]
HEAT, BURGERS = [0.02, 0.02, 0.02, 1.0, 1.0, 1.0], [0.1, 0.1, 0.1, 1.0, 1.0]
# schedule, steps, noise samples, chains, temperature, bound of the score, scale of the basis
TABLE = {
    "affnist/tied_published": ((0.1, 1.0), 50, 4, 32, 0.1, 100.0, AFFINE),
    "affnist/tied_published_classifier": ((0.1, 1.0), 50, 2, 64, 1.0, 100.0, AFFINE),
    "homnist/tied_published": ((0.05, 0.5), 50, 4, 32, 0.05, 100.0, PROJECTIVE),
    "homnist/tied_published_classifier": ((0.01, 0.5), 50, 2, 64, 1.0, 250.0, PROJECTIVE),
    "heat/tied_published": ((0.01, 0.5), 50, 10, 64, 0.001, 500.0, HEAT),
    "heat/tied_published_augmented": ((0.01, 0.5), 50, 10, 64, 0.001, 500.0, HEAT),
    "burgers/tied_published": ((0.01, 0.5), 50, 10, 64, 0.01, 500.0, BURGERS),
}


@pytest.mark.parametrize("name", TABLE)
def test_published_numbers(name: str) -> None:
    (low, high), steps, num_mc, chains, temperature, bound, scale = TABLE[name]
    model = read(name)["model"]["init_args"]
    found = settings(name)
    schedule = found.pop("schedule")
    assert (schedule.minimum, schedule.maximum) == (low, high)
    assert found == {
        "steps": steps,
        "num_mc": num_mc,
        "num_hypotheses": chains,
        "temperature": temperature,
        "max_score_norm": bound,
        "published": True,  # no best seen, no pruning, ...
    }
    assert model.get("finish") is None  # ... no descent, ...
    assert model.get("calibrate") is None  # ... and no calibrated basis
    if "action" not in model:
        assert model["scale"] == scale
        return
    assert model["action"]["init_args"]["group"]["init_args"]["scale"] == scale
    assert model["action"]["init_args"]["guarded"] is False
    assert model.get("frame_weight", 1.0) == 1.0


def test_published_numbers_of_rotations() -> None:
    sampler = read("so10/tied_published")["model"]["init_args"]["sampler"]["init_args"]
    schedule = sampler.pop("schedule")["init_args"]
    assert schedule == {"minimum": 0.01, "maximum": 10.0}
    assert (sampler["steps"], sampler["num_mc"]) == (100, 100)


def plain_search(
    energy: Callable[[Tensor, Tensor], Tensor], images: Tensor, given: dict, generator: torch.Generator
) -> Tensor:
    """Algorithm 1 of Kim et al. (2026) on 3 x 3 matrices, with the library's draws in its order; ends of all chains."""
    schedule, steps, count, chains = (given[name] for name in ("schedule", "steps", "num_mc", "num_hypotheses"))
    batch, kernel = len(images), NoiseKernel(Affine(2, scale=AFFINE), schedule, steps)
    basis = torch.zeros(6, 3, 3, dtype=torch.float64)
    for i, (row, column) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2))):
        basis[i, row, column] = AFFINE[i]
    exp = lambda v: torch.linalg.matrix_exp(torch.einsum("...i,ijk->...jk", v, basis))  # noqa: E731

    def square(w: Tensor) -> Tensor:
        last = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand(*w.shape[:-2], 1, 3)
        return torch.cat([w, last], -2)

    g = square(kernel.sample(batch, chains, t=1.0, generator=generator, dtype=torch.float64)[0])
    shared = common(generator)  # the noise of all scores is the same for every image
    times = [m / steps for m in range(1, steps + 1)]
    paths = kernel.sample_paths(1, chains, count, times=times, generator=shared, dtype=torch.float64)
    for m in range(steps, 0, -1):
        w = square(paths.elements[m - 1]).flatten(0, 2)[permutation((1, chains, count), g, shared)]
        log_modular = -torch.linalg.det(w[..., :2, :2]).log()
        v = torch.zeros(batch, chains, 6, dtype=torch.float64, requires_grad=True)
        moved = (g @ exp(v)).unsqueeze(2) @ torch.linalg.inv(w)
        logits = -energy(moved, images) / given["temperature"] - log_modular
        (score,) = torch.autograd.grad(logits.logsumexp(-1).sum(), v)
        norm = score.norm(dim=-1, keepdim=True)
        score = score * (given["max_score_norm"] / norm.clamp(min=given["max_score_norm"]))
        variance = schedule.variance((m - 1) / steps, m / steps)
        g = g @ exp(variance * score + math.sqrt(variance) * normal((batch, chains, 6), g, generator))
    return g


@pytest.mark.parametrize("bound", [100.0, 0.5])
def test_the_preset_is_the_published_loop(bound: float) -> None:
    """On equal draws the configuration and the loop end in the same elements, with and without shortened scores."""
    config = "affnist/tied_published_classifier"
    images = torch.rand(2, 1, 10, 10, generator=seeded(0), dtype=torch.float64)
    pattern = torch.rand(1, 10, 10, generator=seeded(1), dtype=torch.float64)
    network = lambda x: 3.0 * (x - pattern).square().sum((-3, -2, -1))  # noqa: E731
    rows = torch.arange(len(images))
    small = {"steps": 6, "num_hypotheses": 3, "max_score_norm": bound}
    action = action_of(config)
    found = published_search(config, action, network, **small)(images, generator=NoiseStreams(rows, 2)).elements

    def energy(g: Tensor, x: Tensor) -> Tensor:
        """The pixels of the restored image, (g^-1 x)(p) = x(g p)."""
        grid = torch.nn.functional.affine_grid(
            g[..., :2, :].reshape(-1, 2, 3), [g[..., 0, 0].numel(), 1, 10, 10], False
        )
        given = x[:, None, None].expand(*g.shape[:3], 1, 10, 10).reshape(-1, 1, 10, 10)
        warped = torch.nn.functional.grid_sample(given, grid, align_corners=False)
        return network(warped).reshape(g.shape[:3])

    expected = plain_search(energy, images, {**settings(config), **small}, NoiseStreams(rows, 2))
    assert_relative(found, expected[..., :2, :], 1e-9)
