"""What reverse diffusion gets beyond a sample from its evaluations: the best seen, pruning, bounded memory."""

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, randn, seeded
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SO, Action, PointAction, Translation
from trivgeo.inversion import InverseProblem, Inverter, ReverseDiffusionSearch
from trivgeo.inversion.bounds import automatic_bound
from trivgeo.inversion.energies import DataEnergy
from trivgeo.inversion.stages import Descend, GaussianSearch, HeavyBall
from trivgeo.sde import GeometricSchedule

SCHEDULE = GeometricSchedule(0.05, 2.0)


class Recorder:
    """An energy of points with many wells, which remembers all that it was asked."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def __call__(self, points: Tensor) -> Tensor:
        energy = points.square().sum((-1, -2)) + 2 * (1 - torch.cos(5 * points)).sum((-1, -2))
        self.values.append(torch._C._functorch.get_unwrapped(energy) if _is_wrapped(energy) else energy)
        return energy

    @property
    def count(self) -> int:
        return sum(v.numel() for v in self.values)


class FirstPoint(DataEnergy):
    """Reads one point of many."""

    def __call__(self, x: Tensor) -> Tensor:
        return x[:, :1].square().sum((-1, -2))

    def prepare(self, action: Action, x: Tensor) -> Tensor:
        return x[:, :1]


def _is_wrapped(x: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def inverter(energy: Recorder, descent: Descend | None = None, **options: object) -> Inverter:
    settings: dict = {"steps": 20, "num_mc": 3, "num_hypotheses": 8, "max_score_norm": 50.0, **options}
    tied = ReverseDiffusionSearch(Translation(2).action(), energy, SCHEDULE, **settings)
    return tied if descent is None else tied.then(descent)


class TestKeepSeen:
    def test_best_is_the_lowest_energy_ever_evaluated(self) -> None:
        energy, x = Recorder(), randn(4, 3, 2)
        result = inverter(energy, keep_best=True)(x, generator=seeded(1))
        every = torch.cat([v.detach().reshape(4, -1) for v in energy.values], 1)
        assert every.shape[1] == 8 * (3 * 20 + 1)
        assert torch.equal(result.best_energy(), every.amin(1))
        assert_relative(
            InverseProblem(Translation(2).action(), Recorder()).given(x).energies(result.elements),
            result.energies,
            1e-12,
        )

    def test_is_never_worse_and_follows_the_same_chains(self) -> None:
        x = randn(4, 3, 2)
        plain = inverter(Recorder())(x, generator=seeded(1))
        seen = inverter(Recorder(), keep_best=True)(x, generator=seeded(1))
        assert bool((seen.energies <= plain.energies).all())
        assert bool((seen.energies < plain.energies).any())
        unchanged = seen.energies == plain.energies
        assert torch.equal(seen.elements[unchanged], plain.elements[unchanged])

    def test_a_temperature_changes_no_energy(self) -> None:
        x = randn(2, 3, 2)
        result = inverter(Recorder(), keep_best=True, temperature=0.2)(x, generator=seeded(1))
        again = InverseProblem(Translation(2).action(), Recorder()).given(x).energies(result.elements)
        assert_relative(again, result.energies, 1e-10)

    def test_undefined_energies_are_never_the_best(self) -> None:
        def energy(points: Tensor) -> Tensor:
            value = points.square().sum((-1, -2))
            return torch.where(points[..., 0, 0] > 0.2, -math.inf, torch.where(value > 9, math.nan, value))

        result = ReverseDiffusionSearch(
            Translation(2).action(), energy, SCHEDULE, steps=10, num_hypotheses=40, keep_best=True
        )(0.5 * randn(3, 2, 2), generator=seeded(0))
        finite = torch.isfinite(result.energies)
        assert bool(finite.any(1).all())
        assert bool((result.energies[finite] >= 0).all())


class TestDescent:
    DESCENT = Descend(40, HeavyBall(0.01, 0.3, None))

    def test_ends_in_the_minimum_of_the_well_of_every_chain(self) -> None:
        x = 0.3 * randn(4, 3, 2)
        plain = inverter(Recorder())(x, generator=seeded(1))
        result = inverter(Recorder(), descent=self.DESCENT)(x, generator=seeded(1))
        assert bool((result.energies < plain.energies).all())
        g = result.elements.clone().requires_grad_()
        energy = InverseProblem(Translation(2).action(), Recorder()).given(x).energies(g)
        assert_relative(energy, result.energies, 1e-12)
        (gradient,) = torch.autograd.grad(energy.sum(), g)
        assert float(gradient.abs().max()) < 1e-5
        assert float((result.elements - plain.elements).norm(dim=-1).max()) < 2 * math.pi / 5  # apart of two wells

    def test_evaluations_are_counted(self) -> None:
        result = inverter(Recorder(), descent=self.DESCENT)(randn(2, 3, 2), generator=seeded(1))
        assert result.gradient_evaluations == 8 * (3 * 20 + 40)
        assert result.energy_evaluations == 8

    def test_no_energy_rises_where_steps_are_too_long(self) -> None:
        x = randn(4, 3, 2)
        plain = inverter(Recorder())(x, generator=seeded(1))
        wild = inverter(Recorder(), descent=Descend(5, HeavyBall(10.0)))(x, generator=seeded(1))
        assert bool((wild.energies <= plain.energies).all())

    def test_refuses_what_is_no_stage(self) -> None:
        with pytest.raises(ConfigurationError, match="expected a Stage"):
            inverter(Recorder()).then(10)  # type: ignore[arg-type]


class TestPruning:
    PRUNING = ((0.5, 4), (0.2, 1))

    def test_counts(self) -> None:
        energy, x = Recorder(), randn(2, 3, 2)
        result = inverter(energy, pruning=self.PRUNING)(x, generator=seeded(1))
        assert result.elements.shape == (2, 1, 2)
        expected = (8 * 10 + 4 * 6 + 1 * 4) * 3
        assert result.gradient_evaluations == expected
        assert result.energy_evaluations == 1
        assert energy.count == 2 * (expected + 1)

    def test_keeps_the_chains_that_met_the_lowest_energies(self) -> None:
        energy, x = Recorder(), randn(3, 3, 2)
        result = inverter(energy, pruning=((0.05, 2),), keep_best=True)(x, generator=seeded(1))
        before = torch.stack([v.detach() for v in energy.values[:19]]).reshape(19, 3, 8, 3).amin((0, 3))
        survivors = before.sort(1).values[:, :2]
        assert bool((result.energies.sort(1).values <= survivors).all())
        assert bool((result.best_energy() <= before.amin(1)).all())

    def test_finds_the_deepest_well_as_often_as_all_chains(self) -> None:
        x = 0.5 * randn(64, 1, 2)
        full = inverter(Recorder(), keep_best=True)(x, generator=seeded(2))
        pruned = inverter(Recorder(), keep_best=True, pruning=self.PRUNING)(x, generator=seeded(2))
        found = [float((r.best_energy() < 0.5).double().mean()) for r in (full, pruned)]
        assert found[0] > 0.75
        assert found[1] > found[0] - 0.1

    def test_steps_are_reported_through(self) -> None:
        seen: list[tuple[int, int]] = []
        tied = inverter(Recorder(), pruning=self.PRUNING).replace(progress=lambda i, n: seen.append((i, n)))
        tied(randn(1, 1, 2), generator=seeded(0))
        assert seen == [(i, 20) for i in range(1, 21)]

    @pytest.mark.parametrize(
        "pruning",
        [((0.2, 4), (0.5, 2)), ((0.5, 8),), ((0.5, 4), (0.2, 4)), ((1.0, 4),), ((0.0, 4),), ((0.5, 4), (0.5, 2))],
    )
    def test_refuses_what_does_not_fall(self, pruning: tuple[tuple[float, int], ...]) -> None:
        with pytest.raises(ConfigurationError, match=r"pruning: expected (falling|numbers below)"):
            inverter(Recorder(), pruning=pruning)

    def test_refuses_other_shapes(self) -> None:
        with pytest.raises(ConfigurationError, match="expected pairs"):
            inverter(Recorder(), pruning=(0.5, 4))


class TestMemory:
    def test_never_more_evaluations_at_once(self) -> None:
        energy, x = Recorder(), randn(5, 3, 2)
        result = inverter(energy).replace(max_evaluations=50)(x, generator=seeded(1))
        assert max(v.numel() for v in energy.values) == 48
        assert result.elements.shape == (5, 8, 2)
        assert energy.count == 5 * (result.gradient_evaluations + result.energy_evaluations)

    @pytest.mark.parametrize("bound", [5, 24, 50, 1000])
    def test_no_bound_changes_a_result(self, bound: int) -> None:
        """Not even one that a single datum does not keep."""
        x = randn(5, 3, 2)
        for method in (inverter(Recorder()), inverter(Recorder(), keep_best=True, pruning=((0.5, 3),), side="given")):
            method = method.then(Descend(3))
            free = method(x, generator=seeded(1))
            energy = Recorder()
            bounded = Inverter(method.action, energy, method.stages, max_evaluations=bound)(x, generator=seeded(1))
            assert max(v.numel() for v in energy.values) <= bound
            assert_relative(bounded.elements, free.elements, 1e-9)
            assert_relative(bounded.energies, free.energies, 1e-9)
            assert bounded.gradient_evaluations == free.gradient_evaluations
            assert energy.count == 5 * (bounded.gradient_evaluations + bounded.energy_evaluations)

    def test_parts_are_inverted_for_their_own_data(self) -> None:
        x = torch.tensor([[[5.0, 5.0]], [[-5.0, 0.0]], [[0.0, 9.0]]], dtype=torch.float64)
        quadratic = ReverseDiffusionSearch(
            Translation(2).action(),
            lambda p: 20 * p.square().sum((-1, -2)),
            GeometricSchedule(0.05, 8.0),
            steps=60,
            num_mc=8,
            max_score_norm=20.0,
            num_hypotheses=8,
        ).replace(max_evaluations=64)
        assert float((quadratic(x, generator=seeded(0)).best() - x[:, 0]).abs().max()) < 0.5

    def test_is_bounded_by_itself(self) -> None:
        """As many large images at once as fit into 8 MiB, and the same result."""
        energies: list[int] = []

        def brightness(images: Tensor) -> Tensor:
            energies.append(len(images))
            return -images[:, :, :200].mean((1, 2, 3))

        x = torch.rand(2, 3, 400, 300, generator=seeded(0))
        search = Inverter(ImageWarp(SO(2)), brightness, [GaussianSearch(8, 2, 1.0), Descend(2)])
        assert search.max_evaluations == "auto"
        result = search(x, generator=seeded(1))
        assert max(energies) == 2**23 // (4 * 3 * 400 * 300) == 5
        energies.clear()
        whole = search.replace(max_evaluations=None)(x, generator=seeded(1))
        assert max(energies) == 16
        assert_relative(result.elements, whole.elements, 1e-4)

    def test_bound_is_of_what_the_energy_reads(self) -> None:
        assert automatic_bound((torch.zeros(7, 2**17), torch.zeros(7, 2**16, dtype=torch.float64))) == 8
        assert automatic_bound(torch.zeros(1, 2**30, device="meta")) == 1
        cloud = Translation(2).action()
        x = randn(2, 2**20, 2)
        for energy, bound in ((Recorder(), 1), (FirstPoint(), 2**23 // 16), (None, 1)):
            assert InverseProblem(cloud, energy).given(x, max_evaluations="auto").max_evaluations == bound
        with pytest.raises(ConfigurationError, match="max_evaluations"):
            inverter(Recorder()).replace(max_evaluations="many")

    def test_refuses_less_than_one(self) -> None:
        with pytest.raises(ConfigurationError, match="max_evaluations: expected an integer of at least 1"):
            inverter(Recorder()).replace(max_evaluations=0)


def test_pruning_on_a_non_unimodular_group() -> None:
    """Points of the line under x -> e^a x + b: the two data of a segment determine the element."""
    group = affine_line(scale=(0.3, 0.5))

    class OnTheLine(PointAction):
        def _transform(self, g: Tensor, x: Tensor) -> Tensor:
            return g[..., :1].exp() * x + g[..., 1:]

    action = OnTheLine(group, (1,))
    clean = torch.tensor([[[-1.0], [1.0]]], dtype=torch.float64)
    g = torch.tensor([[0.4, -0.7]], dtype=torch.float64)
    search = ReverseDiffusionSearch(
        action,
        lambda p: 50 * (p - clean).square().sum((-1, -2)),
        GeometricSchedule(0.1, 2.0),
        steps=40,
        num_mc=4,
        num_hypotheses=16,
        keep_best=True,
        pruning=((0.6, 6), (0.3, 2)),
    )
    assert_relative(search(action(g, clean), generator=seeded(0)).best(), g, 0.1)
