"""Test-time equivariance: what goes into the network, what comes out, and mismatches that are refused."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import assert_relative, randn, random_elements, seeded
from tests.inversion.problems import DOMAIN, clean_problems, heat_group, operator_action
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import SE, SO, Action, BurgersSymmetry, HeatSymmetry, LieGroup, Translation
from trivgeo.inversion import InversionResult, Inverter, ReverseDiffusionSearch, TestTimeEquivariant
from trivgeo.inversion.stages import Descend, InDoublePrecision, Newton, Select


class Known(Inverter):
    """An inverter that returns a given result."""

    def __init__(self, action: Action, elements: Tensor, energies: Tensor) -> None:
        super().__init__(action, None, [])
        failures = torch.zeros(energies.shape, dtype=torch.long)
        self.result = InversionResult(action, elements, energies, failures, 0, 0)

    def forward(
        self, x_tilde: Any, *, generator: torch.Generator | None = None, initial: Tensor | None = None
    ) -> InversionResult:
        return self.result


ENERGIES = torch.tensor([[3.0, 1.0, 2.0], [0.5, math.inf, 0.7]], dtype=torch.float64)


def translations() -> tuple[Known, Tensor, Tensor]:
    elements, x = randn(2, 3, 2), randn(2, 4, 2, seed=1)
    return Known(Translation(2).action(), elements, ENERGIES), elements, x


def square(x: Tensor) -> Tensor:
    return x**2


class TestPrediction:
    def test_best(self) -> None:
        inverter, elements, x = translations()
        best = torch.stack([elements[0, 1], elements[1, 0]]).unsqueeze(1)
        invariant = TestTimeEquivariant(square, inverter)
        assert_relative(invariant(x), (x - best) ** 2, 1e-13)
        equivariant = TestTimeEquivariant(square, inverter, Translation(2).action())
        assert_relative(equivariant(x), (x - best) ** 2 + best, 1e-13)

    def test_mean(self) -> None:
        """Over the hypotheses of finite energy."""
        inverter, elements, x = translations()
        each = (x.unsqueeze(1) - elements.unsqueeze(2)) ** 2 + elements.unsqueeze(2)
        expected = torch.stack([each[0].mean(0), each[1, [0, 2]].mean(0)])
        model = TestTimeEquivariant(square, inverter, Translation(2).action(), ensemble="mean")
        assert_relative(model(x), expected, 1e-13)

    def test_nothing_found_is_not_a_number(self) -> None:
        """A datum without any defined hypothesis has no prediction: never a silent zero."""
        action = operator_action()
        torn = torch.tensor([0.0, -1.0, 1.0, -0.25, 0.0, 0.0, 0.0], dtype=torch.float64)
        elements = action.group.inverse(torn).expand(1, 2, -1)
        inverter = Known(action, elements, torch.full((1, 2), math.inf, dtype=torch.float64))
        for ensemble in ("best", "mean"):
            model = TestTimeEquivariant(lambda x: x.query[..., 0], inverter, ensemble=ensemble)
            assert torch.isnan(model(clean_problems(1))).all(), ensemble

    @pytest.mark.parametrize("ensemble", ["best", "mean"])
    def test_nothing_found_for_one_of_several(self, ensemble: Literal["best", "mean"]) -> None:
        """Also where the network makes a number of everything; the others are as they were."""
        inverter, elements, x = translations()
        energies = torch.tensor([[3.0, 1.0, 2.0], [math.inf, math.nan, math.inf]], dtype=torch.float64)
        without = Known(inverter.action, elements, energies)
        seen: list[Tensor] = []

        def network(y: Tensor) -> Tensor:
            seen.append(y)
            return y.nan_to_num().square().sum((1, 2))

        prediction = TestTimeEquivariant(network, without, ensemble=ensemble)(x)
        assert prediction.isnan().tolist() == [False, True]
        assert_relative(prediction[0], TestTimeEquivariant(network, inverter, ensemble=ensemble)(x)[0], 1e-13)
        assert ensemble == "mean" or torch.equal(seen[0][1], x[1])  # of the datum as given
        result = without.result
        assert result.has_usable.tolist() == [True, False]
        assert result.best().isnan().flatten(1).all(1).tolist() == [False, True]
        assert result.restore(x).isnan().flatten(1).all(1).tolist() == [False, True]

    def test_labels_cannot_say_that_nothing_was_found(self) -> None:
        inverter, elements, x = translations()
        model = TestTimeEquivariant(lambda y: y.sum((1, 2)) > 0, inverter)
        assert model(x).dtype == torch.bool
        nothing = Known(inverter.action, elements, torch.full_like(ENERGIES, math.inf))
        with pytest.raises(DomainError, match="hypothesis for each datum, got none for 2 of 2"):
            model.predict(x, nothing.result)

    def test_labels_have_no_mean(self) -> None:
        """Between class 0 and class 7 there is none; complex numbers have one."""
        inverter, _, x = translations()
        networks: list[Callable[[Tensor], Tensor]] = [
            lambda y: 7 * (y.sum((1, 2)) > 0).long(),
            lambda y: y.sum((1, 2)) > 0,
        ]
        for network in networks:
            model = TestTimeEquivariant(network, inverter, ensemble="mean")
            with pytest.raises(
                ConfigurationError, match=r"'mean' expects floating-point or complex.*'best' takes labels"
            ):
                model(x)
            assert TestTimeEquivariant(network, inverter)(x).dtype == network(x).dtype
        both = TestTimeEquivariant(lambda y: torch.view_as_complex(y**2), inverter, ensemble="mean")
        assert_relative(torch.view_as_real(both(x)), TestTimeEquivariant(square, inverter, ensemble="mean")(x), 1e-13)

    def test_exactly_equivariant_with_the_true_transformation(self) -> None:
        """f(g.x) = g.f(x) when the inverter returns g times the inverse of what it returns for x."""
        group = heat_group()
        action, jets = operator_action(group), group.action()
        x = clean_problems(3)
        network = lambda y: torch.cat([y.query, y.query.sin().sum(-1, keepdim=True)], -1)  # noqa: E731
        g = random_elements(group, 3, std=0.1)
        canonical = random_elements(group, 3, std=0.1, seed=1)
        energies = torch.zeros(3, 1, dtype=torch.float64)
        plain = TestTimeEquivariant(network, Known(action, canonical.unsqueeze(1), energies), jets)
        moved = TestTimeEquivariant(network, Known(action, group.compose(g, canonical).unsqueeze(1), energies), jets)
        assert_relative(moved(action(g, x)), jets(g, plain(x)), 1e-9)

    def test_is_a_module(self) -> None:
        inverter, _, x = translations()
        network = nn.Linear(2, 1).double()
        model = TestTimeEquivariant(network, inverter)
        assert len(list(model.parameters())) == 2
        model(x).sum().backward()
        assert network.weight.grad is not None

    def test_with_tied(self) -> None:
        inverter = ReverseDiffusionSearch(operator_action(), DOMAIN, steps=3, num_mc=1, num_hypotheses=2)
        model = TestTimeEquivariant(lambda x: x.query[..., 0], inverter, ensemble="mean")
        assert model(clean_problems(2), generator=torch.Generator().manual_seed(0)).shape == (2, 49)

    def test_results_can_be_used_again(self) -> None:
        inverter, _, x = translations()
        model = TestTimeEquivariant(square, inverter)
        assert torch.equal(model.predict(x, inverter(x)), model(x))
        other = replace(inverter.result, energies=-ENERGIES.nan_to_num(posinf=-9.0))
        assert not torch.equal(model.predict(x, other), model(x))

    def test_arrays_and_lists(self) -> None:
        """Each with one clear meaning; lists are in the default dtype."""
        elements, x = randn(2, 1, 2), randn(2, 4, 2, seed=1)
        known = Known(Translation(2).action(), elements, torch.zeros(2, 1, dtype=torch.float64))
        model = TestTimeEquivariant(square, known, Translation(2).action())
        assert torch.equal(model(x.numpy()), model(x))
        assert_relative(model(x.tolist()), model(x), 1e-6)
        assert torch.equal(known.result.restore(x.numpy()), known.result.restore(x))


class TestBadInput:
    @pytest.mark.parametrize("group", [HeatSymmetry(0.2), BurgersSymmetry(), Translation(2)], ids=repr)
    def test_output_action_of_another_group(self, group: LieGroup) -> None:
        inverter = ReverseDiffusionSearch(operator_action(), DOMAIN)
        with pytest.raises(ConfigurationError, match="output_action"):
            TestTimeEquivariant(lambda x: x, inverter, group.action())

    def test_output_action_of_an_equal_group(self) -> None:
        """Another instance of the same group is the same group, every time."""
        inverter = ReverseDiffusionSearch(operator_action(), DOMAIN)
        for _ in range(60):
            action = heat_group().action()
            assert TestTimeEquivariant(lambda x: x, inverter, action).output_action is action

    def test_types(self) -> None:
        inverter, _, _ = translations()
        with pytest.raises(ConfigurationError, match="inverter"):
            TestTimeEquivariant(square, lambda x: x)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="ensemble"):
            TestTimeEquivariant(square, inverter, ensemble="median")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="network"):
            TestTimeEquivariant(3.0, inverter)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="output_action"):
            TestTimeEquivariant(square, inverter, Translation(2))  # type: ignore[arg-type]


class TestEquivarianceError:
    """Of point clouds under SE(2), and of what is wrong by a known amount."""

    TEMPLATE = randn(14, 2, seed=3)

    def energy(self, y: Tensor) -> Tensor:
        return (y - self.TEMPLATE.to(y)).square().mean((-2, -1))

    def clouds(self, dtype: torch.dtype) -> Tensor:
        return (SE(2).action()(random_elements(SE(2), 2, std=1.0), self.TEMPLATE) + 0.05 * randn(2, 14, 2)).to(dtype)

    def model(self, network: Any, output: Action | None, *finish: Any, **options: Any) -> TestTimeEquivariant:
        search = ReverseDiffusionSearch(SE(2).action(), self.energy, steps=20, num_hypotheses=8, temperature=0.01)
        return TestTimeEquivariant(network, search.then(Select(1), *finish), output, **options)

    @pytest.mark.parametrize(
        "dtype",
        [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow(reason="single precision stays"))],
        ids=str,
    )
    def test_at_rounding_with_a_finish(self, dtype: torch.dtype) -> None:
        """Any network: here one that turns small changes into large ones; without a finish it shows."""

        def network(y: Tensor) -> Tensor:
            return torch.cat([(5 * y).sin().flatten(1), y.square().sum(-1)], -1)

        def points(y: Tensor) -> Tensor:
            return y + (3 * y).sin()

        x = self.clouds(dtype)
        rough = self.model(network, None).equivariance_error(x, 50, generator=seeded(0))
        assert rough.median > 1e-2
        for output, function in ((None, network), (SE(2).action(), points)):
            error = self.model(function, output, InDoublePrecision(Descend(20), Newton(6))).equivariance_error(
                x, 50, generator=seeded(0)
            )
            assert error.errors.shape == (50, 2)
            assert error.median <= 1e-5
            assert error.worst <= 1e-3
            assert error.worst == float(error.errors.max())
            assert dtype == torch.float32 or error.worst < 1e-6

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_from_a_frame(self, dtype: torch.dtype) -> None:
        """Centre, and the direction to the first point: a descent from it needs no search."""

        def frame(x: Tensor) -> Tensor:
            middle = x.mean(-2)
            first, known = x[:, 0] - middle, (self.TEMPLATE[0] - self.TEMPLATE.mean(0)).to(x)
            angle = torch.atan2(first[:, 1], first[:, 0]) - torch.atan2(known[1], known[0])
            turn = SO(2).exp(angle.unsqueeze(-1))
            return SE(2).join(turn, middle - (turn @ self.TEMPLATE.mean(0).to(x)))

        inverter = Inverter(SE(2).action(), self.energy, [InDoublePrecision(Newton(8))])
        model = TestTimeEquivariant(lambda y: (5 * y).sin().flatten(1), inverter, initial=frame)
        error = model.equivariance_error(self.clouds(dtype), generator=seeded(1))
        assert error.worst < (1e-9 if dtype == torch.float64 else 1e-3)
        assert error.median < 1e-5
        lost = self.clouds(dtype)
        kabsch = SE(2).inverse(inverter(lost, initial=frame(lost)[:, None]).best())  # least squares in closed form
        centred, target = lost.double() - lost.double().mean(-2, keepdim=True), self.TEMPLATE - self.TEMPLATE.mean(0)
        u, _, vt = torch.linalg.svd(centred.mT @ target)
        sign = torch.det(u @ vt)
        rotation = (u @ torch.diag_embed(torch.stack([torch.ones_like(sign), sign], -1)) @ vt).mT
        assert_relative(kabsch[:, :2, :2].double(), rotation, 1e-5 if dtype == torch.float32 else 1e-8)

    def test_a_known_error(self) -> None:
        """A prediction that is not moved along: |h.y - y| / |h.y| by hand."""
        group = Translation(2)
        inverter = Inverter(group.action(), lambda y: y.mean(-2).square().sum(-1), [Newton(2)])
        model = TestTimeEquivariant(lambda y: 0 * y + 1, inverter, group.action())
        x = randn(3, 4, 2)
        assert model.equivariance_error(x, 5, generator=seeded(0)).worst < 1e-12
        elements = randn(5, 2, seed=4)
        nothing_done = Inverter(group.action(), lambda y: y.sum((1, 2)), [])
        fixed = TestTimeEquivariant(lambda y: 0 * y + 1, nothing_done, group.action())
        error = fixed.equivariance_error(x, 5, transformations=lambda number, generator: elements)
        expected = (elements.norm(dim=-1) * 2) / (1 + elements).expand(4, 5, 2).movedim(0, 1).flatten(1).norm(dim=-1)
        assert_relative(error.errors, expected[:, None].expand(5, 3), 1e-12)
        assert error.median == pytest.approx(float(expected.median()))
        with pytest.raises(ConfigurationError, match="floating-point"):
            TestTimeEquivariant(lambda y: y.sum((1, 2)) > 0, inverter).equivariance_error(x, 2)
        with pytest.raises(ConfigurationError, match="num_elements"):
            model.equivariance_error(x, 0)
        with pytest.raises(ConfigurationError, match="initial"):
            TestTimeEquivariant(square, inverter, initial=3)  # type: ignore[arg-type]

    def test_networks_are_copied(self) -> None:
        """An energy with weights in single precision: it is used in double, and stays as it was."""
        network = nn.Sequential(nn.Flatten(), nn.Linear(8, 3), nn.Tanh())
        x = randn(2, 4, 2, dtype=torch.float32)
        energy = nn.Sequential(network, Squares())
        result = Inverter(Translation(2).action(), energy, [InDoublePrecision(Newton(3))])(x)
        assert result.elements.dtype == torch.float32
        assert next(network.parameters()).dtype == torch.float32
        assert bool((result.best_energy() <= energy(x)).all())

    def test_a_datum_that_shows_nothing_is_evaluated_once(self) -> None:
        """The energy of an empty image, the unit of what a warp loses, also serves stages in double precision."""
        seen: list[tuple[int, int]] = []

        def energy(y: Tensor) -> Tensor:
            seen.append((int((y == 0.0).flatten(1).all(1).sum()), len(y)))
            return (y - 0.5).square().sum((1, 2, 3))

        x = torch.rand(2, 1, 6, 6, generator=seeded(0)) + 0.1
        result = Inverter(ImageWarp(Translation(2)), energy, [InDoublePrecision(Descend(2))])(x)
        assert sum(empty for empty, _ in seen) == 2
        assert result.energy_evaluations + result.gradient_evaluations == sum(number for _, number in seen) / 2


class Squares(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y.square().sum(-1)
