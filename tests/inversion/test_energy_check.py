"""What `check_energy` measures against closed forms, energies that are refused, modes, and `TIED` with clean data."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, randn, seeded
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SO, Translation, from_generators
from trivgeo.inversion import TIED, InversionResult, Inverter, calibrated_scale, check_energy, energy_check
from trivgeo.inversion.energies import FunctionEnergy, PriorEnergy, WrappedEnergy
from trivgeo.inversion.energy_check import ALIKE, TOO_HIGH
from trivgeo.inversion.stages import Descend, Select

ACTION = Translation(2).action()
CLEAN = torch.zeros(8, 1, 2).double()


def transformations(number: int, generator: torch.Generator) -> Tensor:
    """Normal, ten times as wide in the first direction."""
    return torch.randn(number, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.1])


def square(y: Tensor) -> Tensor:
    return y.square().sum((-2, -1))


class TestCheck:
    def test_a_round_well(self) -> None:
        """E = |g / s|^2 for g = s z with z normal: the median rise is 2 log 2, and that of a step r is 2 r^2."""
        energy = lambda y: (y / torch.tensor([1.0, 0.1])).square().sum((-2, -1))  # noqa: E731
        check = check_energy(ACTION, energy, CLEAN, transformations)
        profile = energy_check.measure_energy(ACTION, energy, CLEAN, transformations, num_samples=512)
        assert profile is not None
        assert check.profile.share_below == 0.0
        assert check.profile.share_flat == check.profile.share_undefined == check.profile.spread == 0.0
        assert check.trusted
        assert abs(profile.depth - 2 * math.log(2)) < 0.2
        assert profile.roundness > 0.9
        assert abs(profile.width - math.sqrt(profile.depth / 4)) < 0.2
        assert_relative(profile.rises[:, 1], 2 * profile.radii**2, 0.1, floor=1e-3)
        assert_relative(profile.scale.diagonal(), torch.tensor([1.0, 0.1]).double(), 0.1)
        assert "yes" in str(check)
        assert not re.search(r"  (bad|long|narrow)\b", str(check))
        assert check.next_step.startswith("use TIED(")
        assert "0.0%" in str(check)

    def test_a_narrow_direction(self) -> None:
        """Where the well is far from round, the basis suggested makes it so."""
        check = check_energy(
            ACTION, lambda y: (y * torch.tensor([1.0, 1000.0])).square().sum((-2, -1)), CLEAN, transformations
        )
        assert abs(check.profile.roundness - 0.01) < 0.002
        ratio = check.profile.scale.diagonal()
        assert abs(float(ratio[0] / ratio[1]) - 1000.0) < 100.0

    def test_a_hill(self) -> None:
        check = check_energy(ACTION, lambda y: -square(y), CLEAN, transformations)
        assert check.profile.share_below == 1.0
        assert not check.trusted
        share = f"{check.search.share_found:.0%} of 32 clean data"
        assert check.verdict.reasons == (f"the search found the transformations of {share}",)
        assert "NO" in str(check)

    def test_what_is_flat_or_undefined(self) -> None:
        flat = check_energy(ACTION, lambda y: torch.relu(y[..., 0, 0]), CLEAN, transformations)
        assert abs(flat.profile.share_flat - 0.5) < 0.1
        undefined = check_energy(ACTION, lambda y: (y[..., 0, 0] + 1e-3).sqrt(), CLEAN, transformations)
        assert abs(undefined.profile.share_undefined - 0.5) < 0.1

    def test_the_same_on_a_busy_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The time that an energy takes changes its own line of the report alone."""
        measured = energy_check.measure_energy
        slow = lambda *given, **settings: replace(measured(*given, **settings), seconds=1e3)  # noqa: E731
        asked = {"network": lambda y: y[:, 0]}
        first = check_energy(ACTION, lambda y: square(y).sqrt(), CLEAN, transformations, **asked)
        monkeypatch.setattr(energy_check, "measure_energy", slow)
        again = check_energy(ACTION, lambda y: square(y).sqrt(), CLEAN, transformations, **asked)
        assert again.profile.seconds == 1e3
        assert first.search.network == again.search.network
        assert torch.equal(first.search.energies, again.search.energies)
        assert torch.equal(first.search.rows, again.search.rows)
        assert repr(first) == repr(again)

    @pytest.mark.parametrize("seconds", [1.0, 4.0, 30.0])
    def test_takes_the_time_that_it_is_given(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """An energy takes a millisecond for a datum, and all that it does by itself 13 s."""
        now = [100.0]
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])

        def energy(y: Tensor) -> Tensor:
            now[0] += 1e-3 * len(y)
            return square(y)

        check = check_energy(ACTION, energy, CLEAN, transformations, seconds=seconds)
        assert min(0.4 * seconds, 5.0) < now[0] - 100.0 < 1.2 * seconds
        assert 8 <= check.search.num_data <= 32
        assert check.trusted
        if seconds == 30.0:  # there is time for all
            unbounded = check_energy(ACTION, square, CLEAN, transformations).search
            assert torch.allclose(check.search.energies, unbounded.energies, rtol=1e-6)
        with pytest.raises(ConfigurationError, match="seconds: expected time for a trial on 8 data"):
            check_energy(ACTION, energy, CLEAN, transformations, seconds=0.02)

    def test_says_which_data_it_tried(self) -> None:
        """Those of infinite energy, of many the ones that were not drawn, and those moved out of the domain are not."""
        energy = lambda y: torch.where(y[:, 0, 0].abs() < 50.0, square(y), torch.inf)  # noqa: E731
        clean = torch.arange(100.0).double().reshape(100, 1, 1).repeat(1, 1, 2) * 2.0  # the first 25 are finite
        search = check_energy(ACTION, energy, clean, transformations).search
        drawn = set(search.rows.tolist())
        assert drawn <= set(range(25))
        assert f"36 of 100 not drawn, {64 - len(drawn)} without a finite energy" == search.left_out
        assert search.found.shape == search.rows.shape == (32,)
        assert check_energy(ACTION, square, CLEAN, transformations).search.left_out == "none"
        assert "clean data not tried" in str(check_energy(ACTION, square, CLEAN, transformations))

    @pytest.mark.parametrize(
        ("energy", "row", "said", "advice"),
        [
            (lambda y: -square(y), "below the clean datum", "bad", "lowest on clean data"),
            (lambda y: torch.sin(9 * y).sum((-2, -1)), "below the clean datum", "bad", "lowest on clean data"),
            (lambda y: -torch.exp(-1e4 * square(y)), "gradients that are zero", "bad", "with a gradient"),
            (lambda y: -torch.exp(-1e4 * square(y)), "its width", "narrow", "with a gradient"),
            (lambda y: square(y * torch.tensor([1.0, 0.1])), "its roundness", "long", "raise evaluations"),
        ],
    )
    def test_the_table_says_good_or_bad_and_what_to_do(self, energy: Any, row: str, said: str, advice: str) -> None:
        check = check_energy(ACTION, energy, CLEAN, transformations)
        (line,) = (line for line in str(check).splitlines() if row in line)
        assert re.search(rf"  {said}\b", line)
        assert advice in check.next_step
        assert check.next_step in str(check)

    def test_too_few_to_tell(self) -> None:
        """Where nearly all transformations lead out of the domain the answers are unknown, and nothing is trusted."""
        group = from_generators({"X": ["1/x"]}, variables="x")  # the square grows by 2 a, and is to stay positive
        action = group.action()
        clean = torch.tensor([[0.9], [1.0]]).double().repeat(16, 1).unsqueeze(-1)
        laws = lambda n, g: group.exp(0.2 * torch.randn(n, 1, generator=g).double() - 0.65)  # noqa: E731
        energy = lambda y: (y[:, 0, 0] - 1.0).square()  # noqa: E731
        classes = lambda y: torch.cat([y[:, 0], -y[:, 0]], -1)  # noqa: E731
        check = check_energy(action, energy, clean, laws, network=classes)
        assert check.search.num_data < 8
        assert check.finds_transformations is None
        assert check.network_right is None
        assert not check.trusted
        assert "unknown" in str(check)
        assert "moved to where they are undefined" in check.verdict.reasons[0]

    def test_data_of_infinite_energy_count_for_nothing(self) -> None:
        energy = lambda y: torch.where(y[:, 0, 0].abs() < 50.0, square(y), torch.inf)  # noqa: E731
        far = torch.full((24, 1, 2), 100.0).double()
        measured = [
            energy_check.measure_energy(ACTION, energy, x, transformations, num_samples=256)
            for x in (CLEAN, torch.cat([far, CLEAN]))
        ]
        alone, check = (profile for profile in measured if profile is not None)
        assert abs(check.width - alone.width) < 0.2
        assert repr(check.schedule) == repr(alone.schedule)
        assert check.share_undefined == 0.0

    def test_networks_in_training_mode_are_evaluated(self) -> None:
        """Dropout is no part of an energy, here or where it is calibrated."""

        class Dropped(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.part = torch.nn.Dropout(0.5)

            def forward(self, y: Tensor) -> Tensor:
                return self.part(y.square()).sum((-2, -1))

        network = Dropped()
        check = check_energy(ACTION, network, CLEAN, transformations)
        assert network.part.training
        assert_relative(check.profile.rises, check_energy(ACTION, square, CLEAN, transformations).profile.rises, 1e-12)
        scales = [calibrated_scale(ACTION, energy, CLEAN, generator=seeded(0)) for energy in (network, square)]
        assert_relative(scales[0], scales[1], 1e-12)

    def test_two_questions(self) -> None:
        """An energy that sees one direction of two; a class depends on that one alone, a position on both."""
        wide = lambda n, g: torch.randn(n, 2, generator=g, dtype=torch.float64)  # noqa: E731
        half = lambda y: y[:, 0, 0].square()  # noqa: E731
        x = torch.tensor([[-0.4, 0.0], [0.4, 0.0]]).double().unsqueeze(1).repeat(16, 1, 1)
        energy = lambda y: (y[:, 0, 0].abs() - 0.4).square()  # noqa: E731
        pair = lambda y: torch.stack([-y[:, 0, 0], y[:, 0, 0]], -1)  # noqa: E731
        labels = torch.tensor([0, 1]).repeat(16)
        blind = check_energy(ACTION, lambda y: half(y - 0.4), x[1::2], wide, network=pair, labels=labels[1::2])
        assert not blind.finds_transformations
        assert blind.search.error > 0.25
        assert blind.network_right
        assert blind.search.network is not None
        assert blind.search.network.restored == blind.search.network.clean == 0.0
        assert 0.1 < blind.search.network.moved < 0.6  # P(z < -.4) = .34
        assert repr(blind).count("NO: ") == 1
        # of two wells .8 apart the wrong one is as good
        torn = check_energy(ACTION, energy, x, wide, network=pair, labels=labels)
        assert not torn.network_right
        place = lambda outputs, goal: (outputs - goal).square().sum(-1)  # noqa: E731
        asked = {"network": lambda y: y[:, 0], "labels": x[1::2, 0], "loss": place}
        lost = check_energy(ACTION, lambda y: half(y - 0.4), x[1::2], wide, **asked)
        assert not lost.network_right
        right = check_energy(ACTION, lambda y: square(y - x[1]), x[1::2], wide, **asked)
        assert right.finds_transformations
        assert right.network_right
        assert right.search.network is not None
        assert right.search.network.restored < 0.01

    @pytest.mark.parametrize("well", [1.0, 0.02])
    def test_says_what_the_search_does(self, well: float) -> None:
        """A wide well, and a narrow one that is seldom met in a flat energy: shares found elsewhere agree."""
        energy = lambda y: -10.0 * (-0.5 * square(y) / well**2).exp()  # noqa: E731
        wide = lambda n, g: torch.randn(n, 2, generator=g, dtype=torch.float64)  # noqa: E731
        check = check_energy(ACTION, energy, CLEAN.repeat(4, 1, 1), wide)
        g = wide(32, seeded(7))
        search = TIED(ACTION, energy, wide, CLEAN)
        found = search(ACTION(g, CLEAN.repeat(4, 1, 1)), generator=seeded(1)).best()
        share = float(((found - g).norm(dim=-1) < 0.25 * 2**0.5).double().mean())
        assert abs(share - check.search.share_found) < 0.25
        assert check.finds_transformations == (well == 1.0)

    def test_a_search_of_more_evaluations(self) -> None:
        """A narrow well that 300 evaluations often miss: TIED is tried with its own, where they are more."""
        energy = lambda y: -10.0 * (-0.5 * square(y) / 0.05**2).exp()  # noqa: E731
        wide = lambda n, g: torch.randn(n, 2, generator=g, dtype=torch.float64)  # noqa: E731
        tried = {n: TIED(ACTION, energy, wide, CLEAN, evaluations=n) for n in (100, 300, 3000)}
        said = {n: search.known.verdict for n, search in tried.items() if search.known is not None}
        assert [said[n].trusted for n in tried] == [False, False, True]
        g = wide(64, seeded(7))
        x = CLEAN.repeat(8, 1, 1)
        off = {n: (tried[n](ACTION(g, x), generator=seeded(1)).best() - g).norm(dim=-1) for n in (300, 3000)}
        assert [float((off[n] < 0.3).double().mean()) > 0.75 for n in off] == [False, True]

    def test_images(self) -> None:
        """Corners are off by the shift that is left, in pixels; the same generator draws the same."""
        x = torch.zeros(4, 1, 12, 16).double()
        x[:, :, 4:8, 6:10] = 1.0
        action = ImageWarp(Translation(2))
        shifts = lambda n, g: 0.25 * torch.randn(n, 2, generator=g, dtype=torch.float64)  # noqa: E731
        energy = lambda y: (y - x[:1]).square().sum((1, 2, 3))  # noqa: E731
        check = check_energy(action, energy, x, shifts, generator=seeded(3))
        assert check.finds_transformations
        assert check.search.pixels is not None
        # one spread in both directions is a quarter of 8 and of 6 pixels, (2^2 + 1.5^2)^(1/2) together
        assert abs(check.search.pixels / check.search.error - 2.5) < 1.0
        again = check_energy(action, energy, x, shifts, generator=seeded(3))
        assert torch.equal(again.profile.rises, check.profile.rises)
        other = check_energy(action, energy, x, shifts, generator=seeded(4))
        assert not torch.equal(other.profile.rises, check.profile.rises)

    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ({"labels": torch.zeros(8)}, ConfigurationError),
            ({"network": lambda y: y, "labels": torch.zeros(3)}, ShapeError),
            ({"network": lambda y: y}, ConfigurationError),
            ({"network": lambda y: y[:, 0], "loss": lambda y, t: y.sum(-1)}, ConfigurationError),
            ({"network": lambda y: y, "labels": CLEAN, "loss": lambda y, t: y.sum()}, ShapeError),
        ],
    )
    def test_tasks_that_are_none(self, settings: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            check_energy(ACTION, square, CLEAN, transformations, **settings)

    def test_draws(self) -> None:
        axes = check_energy(ACTION, square, CLEAN, transformations).plot()
        assert "0%" in axes.get_title()

    def test_refused(self) -> None:
        with pytest.raises(DomainError, match="finite energies"):
            check_energy(ACTION, lambda y: square(y) + math.inf, CLEAN, transformations)


def without_grad(y: Tensor) -> Tensor:
    with torch.no_grad():
        return square(y)


@pytest.mark.parametrize(
    "energy",
    [lambda y: square(y.detach()), without_grad, lambda y: square(y).long(), lambda y: square(y) > 1.0],
    ids=["detached", "no_grad", "integer", "bool"],
)
def test_energies_without_gradient_are_refused(energy: object) -> None:
    """They would be followed along zeros, and noise would come out; a search that needs none says so."""
    x = randn(2, 3, 2)
    with pytest.raises(ConfigurationError, match="gradient"):
        Inverter(ACTION, energy, [Descend(2)])(x, generator=seeded(0))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="gradient"):
        check_energy(ACTION, energy, CLEAN, transformations)  # type: ignore[arg-type]
    assert "has no gradient" in TIED(ACTION, energy)(x, generator=seeded(0)).report  # type: ignore[arg-type]


def test_search_for_data() -> None:
    """Finds the lowest of the energy and the prior together: a quadratic's, in closed form, whatever the time."""
    g = torch.stack([transformations(1, seeded(i))[0] for i in range(6)])
    x = ACTION(g, torch.zeros(6, 1, 2).double())
    inverter = TIED(ACTION, lambda y: 100 * square(y), transformations, CLEAN, evaluations=300)
    result = inverter(x, generator=seeded(0))
    assert isinstance(inverter.energy, PriorEnergy)
    assert float((result.best() - g).abs().max()) < 0.1
    assert result.elements.shape[:1] == (6,)
    assert result.trusted.all()
    assert ALIKE in result.verdicts[0].assumptions
    off = ACTION(torch.tensor([[3.0, 0.3]]).double(), torch.tensor([[[3.0, 3.0], [-3.0, -3.0]]]).double())
    assert inverter.then(Select(1))(off, generator=seeded(0)).reasons == (TOO_HIGH,)
    with pytest.raises(ConfigurationError, match="seconds"):
        TIED(ACTION, square, transformations, CLEAN, seconds=0.0)


def test_search_that_the_check_refuses() -> None:
    """It says so at every result, also after further stages."""
    wrong = TIED(ACTION, lambda y: -square(y).sqrt(), transformations, CLEAN, evaluations=50)
    for inverter in (wrong, wrong.then(Descend(1)), wrong.replace(progress=False)):
        result = inverter(CLEAN[:3], generator=seeded(0))
        assert "3 data" in repr(result)
        assert "0 trusted" in repr(result)
        assert all("clean data" in text for text in result.reasons)


class TestResult:
    def result(self, angles: Tensor, energies: Tensor | None = None) -> InversionResult:
        group = SO(2)
        elements = group.exp(angles.unsqueeze(-1))
        shape = angles.shape
        energies = torch.zeros(shape).double() if energies is None else energies
        return InversionResult(group.action(), elements, energies, torch.zeros(shape, dtype=torch.long), 0, 0)

    def test_modes(self) -> None:
        """Two clusters of three and one, one of which lies across the cut; what cannot be undone belongs to none."""
        angles = torch.tensor([[3.1, 1.0, -3.1, 3.0, 2.0], [0.1, 0.2, 0.3, 0.0, 0.4]]).double()
        energies = torch.zeros(2, 5).double()
        energies[0, 4] = math.inf
        modes = self.result(angles, energies).modes(0.3)
        assert modes.num_modes.tolist() == [2, 1]
        assert modes.weights.tolist() == [[0.75, 0.25], [1.0, 0.0]]
        assert modes.labels.tolist() == [[0, 1, 0, 0, -1], [0, 0, 0, 0, 0]]
        assert modes.labels[0, 0] == modes.labels[0, 2]
        found = SO(2).log(modes.elements)[..., 0]
        assert abs(float(found[0, 0]) - (3.1 + 3.0 + 2 * math.pi - 3.1) / 3) < 1e-7
        assert_relative(found[:, 0][1:], torch.tensor([0.2]).double(), 1e-7)
        assert bool(torch.isnan(found[1, 1]))
        with pytest.raises(ConfigurationError, match="radius"):
            self.result(angles).modes(0.0)

    def test_restore(self) -> None:
        angles = torch.tensor([[0.5, 0.7], [1.0, -1.0]]).double()
        result = self.result(angles, torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double())
        clean = randn(2, 4, 2)
        x = SO(2).action()(SO(2).exp(torch.tensor([[0.7], [1.0]]).double()), clean)
        assert_relative(result.restore(x), clean, 1e-12)
        with pytest.raises(ShapeError, match="2 data"):
            result.restore(x[:1])

    def test_said_in_a_line(self) -> None:
        result = self.result(torch.zeros(3, 4).double())
        assert "3 data" in repr(result)
        assert "SO(2)" in repr(result)
        inverter = TIED(ACTION, square).then(Descend(3))
        assert repr(inverter).endswith("square, [AdaptiveSearch, Descend])")


def test_prior() -> None:
    """Half the squared length of the logarithm in a basis, added to an energy that may have a term of its own."""
    energy = PriorEnergy(PriorEnergy(square, torch.eye(2).double(), 2.0), torch.diag(torch.tensor([2.0, 1.0])), 3.0)
    g = randn(5, 2)
    expected = g.square().sum(-1) + 1.5 * (g / torch.tensor([2.0, 1.0])).square().sum(-1)
    assert_relative(energy.transformation_energy(ACTION, g, CLEAN), expected, 1e-12)
    assert torch.equal(energy(CLEAN), square(CLEAN))


class Reduced(FunctionEnergy):
    """Says that it reads the first point alone, before and after a transformation is chosen."""

    def prepare(self, action: Any, x: Tensor) -> Tensor:
        return x[:, :1]

    def select(self, action: Any, g: Tensor, x: Tensor) -> Tensor:
        return x + 1.0


class Constantly(WrappedEnergy):
    def added_energy(self, action: Any, g: Tensor, x: Any) -> Tensor:
        return torch.ones(g.shape[:-1])


def test_wrapped_energies_ask_the_inner_one() -> None:
    """What is added is weighted; the inner energy says what it reads, and adds its own term."""
    x, g = randn(3, 4, 2), randn(3, 2)
    energy = Constantly(Constantly(Reduced(square), 2.0), 0.5)
    assert torch.equal(energy(x), square(x))
    assert torch.equal(energy.prepare(ACTION, x), x[:, :1])
    assert torch.equal(energy.select(ACTION, g, x), x + 1.0)
    assert torch.equal(energy.transformation_energy(ACTION, g, x), torch.full((3,), 2.5))
    with pytest.raises(ConfigurationError, match="weight"):
        Constantly(square, -1.0)
