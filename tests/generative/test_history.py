"""Trainings that can be seen: losses, held-out likelihoods, an early end, and whether they have converged."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.distributions import HeatKernelDistribution
from trivgeo.generative.history import TrainingHistory
from trivgeo.generative.paths import Bridge
from trivgeo.groups import SE, SO, DirectProduct, Torus, Translation

SMALL = {"width": 32, "depth": 1}
FIT = {"batch_size": 128, "learning_rate": 5e-3, "progress": False}


def angles(count: int, seed: int = 0, std: float = 0.3) -> Tensor:
    return Torus(1).wrap(1.0 + std * torch.randn(count, 1, generator=seeded(seed)))


def of_losses(loss: Tensor, held_out_log_prob: tuple[float, ...] = (), best: int = 0) -> TrainingHistory:
    number = torch.arange(len(held_out_log_prob))
    return TrainingHistory(loss, number, 1.0 / (1.0 + number), torch.tensor(held_out_log_prob), best, 2)


class TestVerdict:
    """Of losses whose limit is known: a power of the step and noise."""

    def losses(self, steps: int, rate: float, seed: int = 0) -> Tensor:
        k = torch.arange(1, steps + 1)
        return 0.3 + k.pow(-rate) + 0.05 * torch.randn(steps, generator=seeded(seed))

    def test_converged(self) -> None:
        for seed in range(5):
            verdict = of_losses(self.losses(2000, 1.0, seed)).verdict
            assert verdict.trusted, verdict
            assert any("no likelihood of held-out data" in text for text in verdict.assumptions)

    def test_a_loss_that_still_falls(self) -> None:
        for seed in range(5):
            falling = 1.0 - 0.7 * torch.arange(400) / 400 + 0.05 * torch.randn(400, generator=seeded(seed))
            assert "train longer" in str(of_losses(falling).verdict)
        assert "too few" in str(of_losses(self.losses(10, 1.0)).verdict)

    def test_noise_alone_is_no_trend(self) -> None:
        refused = sum(not of_losses(torch.randn(300, generator=seeded(k))).verdict for k in range(50))
        assert refused <= 2

    def test_held_out_likelihoods(self) -> None:
        """They decide: a training loss falls on as the data are learned by heart, and the best weights are kept."""
        falling = 1.0 - 0.7 * torch.arange(500) / 500
        assert of_losses(falling, (-1.0, 0.45, 0.5, 0.51), 3).verdict.trusted
        assert of_losses(falling, (-1.0, 0.5, 0.4, 0.1), 1).verdict.trusted
        assert "still grew by 0.4 nats" in str(of_losses(falling, (-1.0, 0.1, 0.3, 0.5), 3).verdict)
        assert "no step" in str(of_losses(falling, (0.0, -0.1, -0.2, -0.3), 0).verdict)


def test_losses_and_likelihoods() -> None:
    """The held-out likelihood is that of the data's distribution in the end; the loss is that of each step."""
    model = GroupDiffusion(Torus(1), "flow", **SMALL).fit(angles(4000), held_out=0.25, steps=300, **FIT)
    history = model.history
    assert history is not None
    assert history.loss.shape == (300,)
    assert history.held_out_steps.tolist() == [0, *range(30, 301, 30)]
    truth = math.log(2.0 * math.pi) - 0.5 - math.log(0.3 * math.sqrt(2.0 * math.pi))
    assert float(history.held_out_log_prob[-1]) == pytest.approx(truth, abs=0.15)
    assert float(history.held_out_log_prob[0]) == pytest.approx(0.0, abs=0.01)  # uniform before the training
    assert history.verdict.trusted, history.verdict
    axes = history.plot()
    assert [line.get_label() for line in axes.lines[:2]] == ["loss", "held-out loss"]
    assert float(axes.lines[0].get_ydata()[-1]) == pytest.approx(float(history.loss[-2:].mean()))
    plt.close("all")


def test_says_that_it_has_not_converged() -> None:
    """By a warning only where held-out data were asked for."""
    silent = GroupDiffusion(Torus(1), "flow", **SMALL).fit(angles(200), steps=8, **FIT)
    assert silent.history is not None
    assert not silent.history.verdict
    assert len(silent.history.held_out_steps) == 0
    with warnings.catch_warnings(record=True) as caught:  # `pytest.warns` would pass on a warning of torch itself
        warnings.simplefilter("always")
        model = GroupDiffusion(Torus(1), "flow", **SMALL).fit(angles(200), held_out=0.2, steps=8, **FIT)
    assert any("too few" in str(x.message) and str(x.message).startswith("fit: ") for x in caught)
    assert model.history is not None
    assert not model.history.verdict


@pytest.mark.filterwarnings("ignore:fit:UserWarning")
def test_ends_early_with_the_best_weights() -> None:
    """Of twelve angles that are learned by heart."""
    few, test = angles(12, std=1.0), angles(500, seed=1, std=1.0)
    settings = {**FIT, "steps": 600, "learning_rate": 1e-2}
    model = GroupDiffusion(Torus(1), "flow", **SMALL).fit(few, held_out=test, **settings)
    history = model.history
    assert history is not None
    assert model.fitted is not None
    assert len(history.loss) == model.fitted.num_steps < 600
    assert not model.fitted.ended_by_time
    assert history.best_step < model.fitted.num_steps
    kept = history.held_out_log_prob[history.held_out_steps == history.best_step]
    assert float(kept) == float(history.held_out_log_prob.max())


@pytest.mark.filterwarnings("ignore:fit:UserWarning")
def test_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that was stopped has the history of one that was not; fewer steps than it made are refused."""
    from trivgeo.generative.diffusion_training import PathTraining

    step = PathTraining.training_step

    def run(folder: str, last: int = 40, steps: int = 40) -> GroupDiffusion:
        def stopped(self: PathTraining, batch: Tensor, index: int) -> Tensor:
            if self.global_step == last:
                raise InterruptedError
            return step(self, batch, index)

        monkeypatch.setattr(PathTraining, "training_step", stopped)
        model = GroupDiffusion(Torus(1), "flow", width=8, depth=1)
        return model.fit(angles(100), held_out=0.2, steps=steps, folder=tmp_path / folder, **FIT)

    whole = run("a").history
    with pytest.raises(InterruptedError):
        run("b", last=12)
    again = run("b").history
    assert whole is not None
    assert again is not None
    assert torch.equal(whole.loss, again.loss)
    assert torch.allclose(whole.held_out_loss, again.held_out_loss)
    assert whole.best_step == again.best_step
    assert len(run("b").history.loss) == len(whole.loss)  # type: ignore[union-attr]  # it is over
    for fewer in (4, len(whole.loss) - 1):
        with pytest.raises(
            ConfigurationError, match=f"steps: expected at least the {len(whole.loss)} steps of the check"
        ):
            run("b", steps=fewer)


def test_more_steps_in_a_folder(tmp_path: Path) -> None:
    """A training goes on to them, also if its checkpoints are then further apart; the same number is done at once."""
    for steps in (20, 20, 30, 47):
        model = GroupDiffusion(Torus(1), "flow", width=8, depth=1)
        model.fit(angles(100), steps=steps, folder=tmp_path / "c", **FIT)
        assert model.fitted is not None
        assert model.history is not None
        assert (model.fitted.num_steps, len(model.history.loss)) == (steps, steps)


@pytest.mark.filterwarnings("ignore:fit:UserWarning")
@pytest.mark.parametrize(
    "kind", ["diffusion", pytest.param("momentum", marks=pytest.mark.slow(reason="the other kind stays"))]
)
def test_every_kind_of_data(kind: str) -> None:
    """Conditions, masks, data sets, bridges; what cannot be split needs held-out data."""
    fit = {**FIT, "steps": 3, "batch_size": 8}
    g, c = angles(40), torch.randn(40, 2, generator=seeded(1))
    small = {"width": 8, "depth": 1}
    with_condition = GroupDiffusion(Torus(1), kind, condition=2, **small)
    for data in ((g, c), TensorDataset(g, c)):
        history = with_condition.fit(data, held_out=0.5, **fit).history
        assert history is not None
        assert bool(torch.isfinite(history.held_out_log_prob).all())
    with pytest.raises(ConfigurationError, match="held_out: expected held-out data, since a loader"):
        with_condition.fit(DataLoader(TensorDataset(g, c), 8), held_out=0.5, **fit)
    assert with_condition.fit(DataLoader(TensorDataset(g, c), 8), held_out=(g, c), **fit).history is not None
    mask = torch.ones(40, 3).bool().index_fill(1, torch.tensor([2]), False)
    masked = GroupDiffusion(Torus(1) ** 3, kind, **small).fit((g.repeat(1, 3), None, mask), held_out=0.5, **fit).history
    assert masked is not None
    assert bool(torch.isfinite(masked.held_out_log_prob).all())
    if kind == "diffusion":
        bridge = GroupDiffusion(Torus(1), "flow", **small).fit(g, coupling=Bridge(g), held_out=0.5, **fit).history
        assert bridge is not None
        assert bool(bridge.held_out_log_prob.isnan().all())


def test_held_out_data_are_named() -> None:
    """In messages, beside the samples; none of them are no data."""
    model, g = GroupDiffusion(Torus(1), "flow", **SMALL), angles(20)
    for held_out, error, message in (
        (g[:0], ShapeError, "held_out: expected at least one element"),
        (g[:, :0], ShapeError, "held_out: expected elements"),
        (g * torch.nan, NonFiniteError, "held_out: expected finite numbers"),
    ):
        with pytest.raises(error, match=message):
            model.fit(g, held_out=held_out, steps=1)
    with pytest.raises(ConfigurationError, match="seed: expected an integer below"):
        GroupDiffusion(Torus(1), "flow", 2**63)


def test_bad_input() -> None:
    model = GroupDiffusion(Torus(1), "flow", width=8, depth=1)
    for share in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match="held_out: expected a share"):
            model.fit(angles(20), held_out=share, steps=1)
    with pytest.raises(ConfigurationError, match="held_out: expected a share that leaves two rows of 3"):
        model.fit(angles(3), held_out=0.5, steps=1)
    with pytest.raises(ConfigurationError, match="network: expected a module as it is, without a wrapper"):
        GroupDiffusion(Torus(1), "flow", network=nn.Sequential(nn.DataParallel(nn.Linear(1, 1))))


@pytest.mark.parametrize(
    ("group", "volume"),
    [
        (Torus(2), (2.0 * math.pi) ** 2),
        (SO(3), 8.0 * math.pi**2),
        (DirectProduct(SO(2), Translation(1)), 2.0 * math.pi),
        (SE(2), 1.0),
    ],
    ids=repr,
)
def test_measures(group: Torus | SO | DirectProduct | SE, volume: float) -> None:
    """Densities of models and distributions are for one measure, and convert by the known volume."""
    data = group.exp(0.3 * torch.randn(50, group.dim, generator=seeded(0)))
    model = GroupDiffusion(group, "flow", width=8, depth=1).fit(data, steps=1, batch_size=16, progress=False)
    few = data[:3]
    haar = model.log_prob(few)
    for log_prob in (model.log_prob, model.distribution().log_prob):
        assert torch.allclose(log_prob(few), haar, atol=1e-5)
        assert torch.allclose(log_prob(few, measure="volume"), haar - math.log(volume), atol=1e-4)
    if isinstance(group, SO):
        kernel = HeatKernelDistribution(group, group.identity(), 0.05)  # near the normal density of its basis
        flat = torch.distributions.Normal(0.0, 0.05).log_prob(torch.zeros(3)).sum()
        assert float(kernel.log_prob(group.identity(), measure="volume")) == pytest.approx(float(flat), abs=0.01)
    with pytest.raises(ConfigurationError, match="measure"):
        model.log_prob(few, measure="lebesgue")
