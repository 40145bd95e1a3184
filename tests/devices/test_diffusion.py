"""Noise, equations, densities and generative models on a device: there, and as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.groups.cases import affine_line
from tests.helpers import seeded
from trivgeo import _numerics as _linalg
from trivgeo.generative import GroupDiffusion, distributions, fit_base_distribution
from trivgeo.generative import model as model_module
from trivgeo.groups import SE, SO, SU, DirectProduct, LieGroup, O, Torus, Translation, U
from trivgeo.sde import (
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    TrivializedSDE,
    forward_noising,
    heat_kernel,
    probability_flow,
    probability_flow_sample,
    reverse_diffusion,
    solve,
    uniform_grid,
)
from trivgeo.sde.mcmc import HamiltonianMonteCarlo, ParallelTempering, sample
from trivgeo.sde.noise import noise_with_target
from trivgeo.sde.processes import KineticLangevinSDE, overdamped_langevin
from trivgeo.sde.solvers import GeometricHeun, SplittingOBABO, solve_adaptive

SCHEDULE = GeometricSchedule(0.05, 0.7)
GROUPS = [
    *(Torus(2), SO(3), SE(2), affine_line(), U(2), SO(5)),
    *(pytest.param(group, marks=pytest.mark.slow(reason="U(2) stays")) for group in (SU(2), SU(3))),
]


def energy_on(group: LieGroup) -> Callable[[Tensor], Tensor]:
    def energy(g: Tensor) -> Tensor:
        entries = g.flatten(-len(group.element_shape))
        return entries.square().sum(-1) + entries[..., 0]

    return energy


def assert_same(there: Tensor, here: Tensor, device: torch.device) -> None:
    assert there.device == device
    torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("group", [SO(3), affine_line(), O(2)], ids=repr)
def test_markov_chains(group: LieGroup, device: torch.device) -> None:
    single = HamiltonianMonteCarlo(group, energy_on(group))
    start = group.random(4, std=0.3, generator=seeded(0), dtype=torch.float64)
    for kernel in (single, ParallelTempering(single, torch.tensor([1.0, 0.5]))):
        here, there = (
            sample(kernel, 6, start=start.to(place), warmup=6, generator=seeded(1)) for place in ("cpu", device)
        )
        assert_same(there.elements, here.elements, device)
        assert_same(there.bulk_effective_sample_size, here.bulk_effective_sample_size, device)
        assert there.acceptance == pytest.approx(here.acceptance, abs=1e-6)


@pytest.mark.parametrize("group", GROUPS, ids=repr)
def test_noise_and_equations(group: LieGroup, device: torch.device) -> None:
    """With the generator of the CPU: the same numbers."""

    energy = energy_on(group)

    def found(place: torch.device | str) -> list[Tensor]:
        g = group.random(4, std=0.3, generator=seeded(0), dtype=torch.float64, device=place)
        variance = torch.linspace(0.1, 0.5, 4, dtype=torch.float64, device=place)
        sample = noise_with_target(group, variance, steps=3, generator=seeded(1))
        kernel = NoiseKernel(group, SCHEDULE, 4)
        w, log_modular = kernel.sample(3, t=0.5, generator=seeded(2), dtype=torch.float64, device=place)
        score = EnergyScore(energy, NoiseKernel(group, SCHEDULE, 3), 2)
        langevin = KineticLangevinSDE(group, energy, 1.0)
        results = [
            sample.elements,
            sample.target,
            w,
            log_modular,
            forward_noising(group, SCHEDULE, g, steps=3, generator=seeded(3)),
            reverse_diffusion(group, SCHEDULE, score, steps=3, initial=g, generator=seeded(4)),
            solve(overdamped_langevin(group, energy), g, uniform_grid(3, 0.0, 0.01), generator=seeded(5)).final_or_nan,
            solve(
                TrivializedSDE(group, SCHEDULE),
                g,
                uniform_grid(2, 0.0, 1.0),
                stepper=GeometricHeun(),
                generator=seeded(6),
            ).final_or_nan,
        ]
        results.append(
            solve(
                langevin,
                langevin.start(g, generator=seeded(9)),
                uniform_grid(2, 0.0, 0.02),
                stepper=SplittingOBABO(),
                generator=seeded(7),
            ).final_or_nan.elements
        )
        if (heat := heat_kernel(group)) is not None:
            drawn = heat.sample(variance, seeded(8))
            results += [drawn, heat.log_density(drawn, variance), heat.score(drawn, variance)]
        return results

    for there, here in zip(found(device), found("cpu"), strict=True):
        assert_same(there, here, device)
    assert group.random(2, generator=torch.Generator(device).manual_seed(0), device=device).device == device
    if group.is_compact:
        assert_same(*(group.random_haar(3, generator=seeded(0), device=place) for place in (device, "cpu")), device)


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        (Torus(2), "momentum"),
        (SO(3), "flow"),
        (SE(2), "diffusion"),
        *(
            pytest.param(group, kind, marks=pytest.mark.slow(reason="the others stand for them"))
            for group, kind in (
                (SO(3), "momentum"),
                (Torus(2), "flow"),
                (U(2), "diffusion"),
                (SO(3), "diffusion"),
                (SE(2), "flow"),
                (DirectProduct(SU(2), Translation(1)), "flow"),
            )
        ),
    ],
    ids=str,
)
def test_models(
    group: LieGroup, kind: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples and densities are where the model is, wherever data and generators are; a file is read anywhere."""
    monkeypatch.setattr(model_module, "_NUM_FIT_ROWS", 256)
    monkeypatch.setattr(distributions, "_NUM_MASS_DRAWS", 500)
    data = group.random(60, std=0.4, generator=seeded(0))

    def fitted(place: torch.device | str, data: Tensor) -> GroupDiffusion:
        model = GroupDiffusion(group, kind, width=8, depth=1).to(place)
        return model.fit(data, steps=2, batch_size=16, progress=False)

    how = {"tolerance": 0.5} if kind == "flow" else {"steps": 3}
    model = fitted(device, data)
    g = model.sample(4, generator=seeded(1), **how)
    assert g.device == device
    assert model.sample(2, generator=torch.Generator(device).manual_seed(0), **how).device == device
    assert fitted("cpu", data.to(device)).sample(2, **how).device.type == "cpu"
    model.save(tmp_path / "model.safetensors")
    loaded = GroupDiffusion.load(tmp_path / "model.safetensors", group)
    here = loaded.sample(4, generator=seeded(1), **how)
    assert here.device.type == "cpu"
    torch.testing.assert_close(g.cpu(), here, rtol=0.05, atol=0.05)
    loaded.to(device)
    assert loaded.sample(2, **how).device == device
    assert loaded.log_prob(data[:1], tolerance=0.5).device == device
    assert loaded.distribution(tolerance=0.5).log_prob(data[:1]).device == device


def test_base_distributions(device: torch.device) -> None:
    data = SE(2).random(100, std=0.3, generator=seeded(0), dtype=torch.float64)
    for components in (1, 2):
        here = fit_base_distribution(SE(2), data, num_components=components)
        there = fit_base_distribution(SE(2), data.to(device), num_components=components)
        assert_same(there.log_prob(data[:5].to(device)), here.log_prob(data[:5]), device)
        assert there.sample(3, seeded(0)).device == device


def test_flows(device: torch.device) -> None:
    group = SO(3)

    def found(place: torch.device | str) -> list[Tensor]:
        g = group.random(4, std=0.3, generator=seeded(0), dtype=torch.float64, device=place)
        flow = probability_flow(group, SCHEDULE, lambda g, t: 0.1 * group.log(g))
        adaptive = solve_adaptive(flow, g, 1.0, 0.1, tolerance=1e-3).final
        even = probability_flow_sample(group, SCHEDULE, lambda g, t: 0.1 * group.log(g), g, steps=3)
        return [adaptive, even]

    for there, here in zip(found(device), found("cpu"), strict=True):
        assert_same(there, here, device)


@pytest.mark.parametrize("group", [SO(4), U(2)], ids=repr)
def test_eigenvalues_of_large_batches(group: LieGroup, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuSOLVER refuses more than 2^15 matrices at once: they are taken in parts, whose number is looked at here."""
    v = torch.randn(40, group.dim, generator=seeded(0), dtype=torch.float64)
    y = torch.randn(40, group.dim, generator=seeded(1), dtype=torch.float64)
    here = group.exp_with_score(v, y)
    sizes: list[int] = []
    library = torch.linalg.eigh

    def watched(matrix: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(matrix.shape[:-2].numel())
        return library(matrix)

    monkeypatch.setattr(_linalg, "_MAX_MATRICES", 16)
    monkeypatch.setattr(torch.linalg, "eigh", watched)
    for there, wanted in zip(group.exp_with_score(v.to(device), y.to(device)), here, strict=True):
        assert_same(there, wanted, device)
    assert sizes == [16, 16, 8]
