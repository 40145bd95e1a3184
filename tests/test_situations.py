"""The medical test of verdicts: judges see what is wrong, truths are true, and cheap situations run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import verdicts
from benchmarks.situations import clouds, pictures, posteriors
from benchmarks.situations.record import Outcome, Situation, registration_outcome
from trivgeo.actions import ImageWarp
from trivgeo.groups import SE, SO, Similarity, Translation

F64 = torch.float64


def situation(door: str, name: str) -> Situation:
    """The situation of a name."""
    (found,) = [s for s in verdicts.situations() if s.door == door and s.name == name]
    return found


@pytest.mark.parametrize(
    ("door", "name"),
    [("sampler", "SO(2), one well of width 0.2"), ("numbers", "MatrixFisher about all axes, concentrations up to 10")],
)
def test_ordinary_situations_run(door: str, name: str) -> None:
    row = verdicts.measured(situation(door, name), 3)
    assert (row["error"], row["kind"], row["answers"], row["trusted"], row["wrong"]) == (None, "ordinary", 3, 3, 0)


def test_situations_are_named_once_and_numerous() -> None:
    found = verdicts.situations()
    assert len({(s.door, s.name) for s in found}) == len(found) >= 150
    assert sum(bool(s.bet) for s in found) >= 50


def record(std: float, *modes: float, trusted: bool = True) -> SimpleNamespace:
    """A registration that says zero, or several shifts."""
    group, places = Translation(2), torch.tensor([[m, 0.0] for m in modes or (0.0,)], dtype=F64)
    return SimpleNamespace(
        group=group,
        trusted=trusted,
        element=places[0],
        covariance=std**2 * torch.eye(2, dtype=F64),
        modes=SimpleNamespace(elements=places[None]),
    )


class TestRegistrationOutcome:
    def test_regions_cover_as_often_as_they_say(self) -> None:
        true = 0.3 * torch.randn(600, 2, generator=posteriors.seeded(0), dtype=F64)
        found = [registration_outcome(record(0.3), t, 0.0) for t in true]
        assert np.mean([o.in50 for o in found]) == pytest.approx(0.5, abs=0.07)
        assert np.mean([o.in90 for o in found]) == pytest.approx(0.9, abs=0.05)
        assert np.mean([o.wrong for o in found]) < 0.01

    def test_a_truth_outside_is_wrong_unless_a_mode_is_there(self) -> None:
        true = torch.tensor([1.0, 0.0], dtype=F64)
        assert registration_outcome(record(0.1), true, 0.0).wrong
        assert not registration_outcome(record(0.1, 0.0, 1.1), true, 0.0).wrong
        assert registration_outcome(record(0.1, 0.0, 2.0), true, 0.0).wrong
        assert registration_outcome(record(10.0), None, 0.0).wrong

    def test_poses_of_symmetric_things_must_all_be_stated(self) -> None:
        true = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=F64)
        assert registration_outcome(record(0.1), true, 0.0).wrong
        assert not registration_outcome(record(0.1, 0.0, 1.0), true, 0.0).wrong

    @pytest.mark.parametrize("variance", [torch.inf, 1e6])
    def test_nothing_is_said_of_free_directions(self, variance: float) -> None:
        flat = record(0.1)
        flat.covariance[0, 0] = variance
        assert not registration_outcome(flat, torch.tensor([9.0, 0.1], dtype=F64), 0.0).wrong
        assert registration_outcome(flat, torch.tensor([9.0, 0.9], dtype=F64), 0.0).wrong

    def test_degrees_of_freedom_widen_regions(self) -> None:
        few, true = record(0.1), torch.tensor([0.5, 0.0], dtype=F64)
        assert registration_outcome(few, true, 0.0).wrong
        few.degrees_of_freedom = 2.0
        assert not registration_outcome(few, true, 0.0).wrong


class TestTruths:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: posteriors.curved(width=0.6),
            lambda: posteriors.heavy_tailed(2.0),
            lambda: posteriors.girdle(5.0),
            lambda: posteriors.ring(3.0, 0.1),
            lambda: posteriors.rippled(posteriors.wells(SE(2), [[0.1] * 3], [0.5]), 3.0, 40.0),
            lambda: posteriors.stepped(posteriors.wells(SE(2), [[0.2] * 3], [0.3]), 2.0),
            lambda: posteriors.chain(posteriors.SCALED, *[posteriors.normal(0.1, 0.3)] * 4),
            lambda: posteriors.wells(SO(3), [[0.0] * 3, [1.0, 0.0, 0.0]], [0.2, 0.3], [0.7, 0.3], freedom=None),
            lambda: posteriors.wells(SE(2), [[0.0] * 3], [0.2], freedom=8.0),
        ],
    )
    def test_draws_are_of_the_density(self, make: object) -> None:
        """The mean of q / p over draws of p is one for every density q within p: here of narrow wells."""
        target = make()  # type: ignore[operator]
        p = target.draws(50_000, posteriors.seeded(0))
        for centre in p[:3]:
            narrow = posteriors.wells(target.group, centre[None], [0.25])
            ratio = (narrow.log_density(p) - target.log_density(p)).exp()
            error = float(ratio.std()) / len(p) ** 0.5
            if error < 0.1:
                assert float(ratio.mean()) == pytest.approx(1.0, abs=5 * error)

    def test_volumes_are_those_of_the_exponential(self) -> None:
        """The mean of a density over Haar measure is one over the volume."""
        for group, name in ((SO(2), "SO(2)"), (SO(3), "SO(3)")):
            well = posteriors.wells(group, [[0.0] * group.dim], [0.3])
            uniform = group.random_haar(50_000, generator=posteriors.seeded(0), dtype=F64)
            mean = float(well.log_density(uniform).exp().mean())
            assert mean * posteriors.VOLUMES[name] == pytest.approx(1.0, abs=0.05)


def test_pictures_move_as_the_library_says() -> None:
    group, rng = Similarity(2), np.random.default_rng(0)
    canvas = pictures.drawing(lambda x, y: np.exp(-((x - 0.2) ** 2 + 2 * (y + 0.1) ** 2) / 0.1))(rng, 64)
    m = pictures.near(rng, group)
    moving, fixed = (torch.tensor(pictures.look(canvas, matrix, 64)) for matrix in (np.eye(3), m))
    warped = ImageWarp(group, "bicubic")(pictures.element(group, m)[None], moving[None])[0]
    assert float((warped - fixed).abs().max()) < 0.01 < float((moving - fixed).abs().max())


def test_poses_do_not_change_solids() -> None:
    points = clouds.solid("O", (1.0, 0.5, 0.2))(np.random.default_rng(0))
    for pose in clouds.turns("O"):
        moved = clouds.apply(pose, points)
        assert np.abs(moved[:, None] - points).sum(-1).min(1).max() < 1e-9
    star = pictures.polygon(5)(np.random.default_rng(0), 32)
    turned = pictures.look(star, pictures.shifted(0.0, 0.0, 2 * np.pi / 5)(None, SE(2)), 32)
    assert np.abs(turned - pictures.look(star, np.eye(3), 32)).max() < 0.02


def test_clouds_move_as_the_library_says() -> None:
    group, rng = Similarity(3), np.random.default_rng(0)
    points, m = rng.normal(size=(5, 3)), clouds.moved(rng, group, 3, 1.0)
    moved = group.action()(pictures.element(group, m), torch.tensor(points))
    np.testing.assert_allclose(moved.numpy(), clouds.apply(m, points), atol=1e-12)


def test_totals_count_what_is_trusted() -> None:
    outcomes = [Outcome.at(True, 0.4), Outcome.at(True, 0.9995), Outcome(False, True), Outcome(True, False)]
    head = {"door": "a", "kind": "hard", "name": "b", "bet": ""}
    found = verdicts.totals([{**head, **verdicts.shares(outcomes)}])["hard"]
    assert (found["share trusted"], found["share trusted and wrong"]) == (0.75, 0.25)
    assert (found["coverage 50 %"], found["coverage 90 %"]) == (0.5, 0.5)


def test_a_refusal_is_no_answer() -> None:
    refusing = Situation("a", "hard", "b", lambda seeds: SO(2).check_elements(torch.zeros(3, 3)))
    row = verdicts.measured(refusing, 2)
    assert (row["answers"], row["trusted"], row["error"]) == (2, 0, None)
    broken = Situation("a", "hard", "b", lambda seeds: [1 / 0])  # type: ignore[list-item]
    assert "ZeroDivisionError" in verdicts.measured(broken, 2)["error"]
