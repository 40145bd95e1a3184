"""Learned inversion of operator inputs: the network, its training on clean problems, and the inverter made of it."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tasks.pde.domain import Domain
from tasks.pde.equation import Equation
from tasks.pde.training import EpochSampler, batch_generator
from tasks.results import versions
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.inversion import AmortizedInverter, DataEnergy, InversionResult, Inverter, LearnedScore, LevelFeatures
from trivgeo.inversion.domain import hull_points
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.denoising import DenoisingStep, RefiningStep

_HEADER_KEY = "operator.score"
_DIRECTIONS = 8
_CORNERS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))


class OperatorReader:
    """Keeps of a problem a few points of its initial condition and the convex hull of its query points.

    Args:
        num_sensors: points of the initial condition, evenly chosen in their order.
    """

    def __init__(self, num_sensors: int) -> None:
        self.num_sensors = check_count("num_sensors", num_sensors)

    def __call__(self, x: OperatorInput) -> OperatorInput:
        """The smaller problem; symmetries that act projectively on (x, t) take hulls to hulls."""
        points = x.initial.shape[-2]
        chosen = torch.linspace(0, points - 1, self.num_sensors, device=x.initial.device).round().long()
        return OperatorInput(x.initial[..., chosen, :], hull_points(x.query))


class OperatorNetwork(nn.Module):
    """The noise of the transformation of a problem, from what `OperatorReader` kept of it: a perceptron.

    It reads how far the hull of the query points, the ends and the time of the initial line and the extremes of u
    are from those of the training domain, as they are and in units of the noise level, and u at the sensors. u is
    compressed by asinh, the query points are read through the support function of their hull.

    Args:
        dim: of the group.
        domain: the bounds of the training domain, in the order of `Domain`.
        num_sensors: points of the initial condition.
        width: of the hidden layers.
        depth: their number.

    Raises:
        ConfigurationError: a count below one, or not six bounds.
    """

    directions: Tensor
    box: Tensor

    def __init__(
        self, dim: int, domain: Sequence[float], num_sensors: int = 16, width: int = 128, depth: int = 3
    ) -> None:
        super().__init__()
        if len(domain) != len(Domain.__dataclass_fields__):
            raise ConfigurationError(f"domain: expected x_min, x_max, t_min, t_max, u_min, u_max, got {list(domain)}")
        self.dim = check_count("dim", dim)
        self.domain = Domain(*(float(bound) for bound in domain))
        self.num_sensors = check_count("num_sensors", num_sensors)
        self.width = check_count("width", width)
        self.depth = check_count("depth", depth)
        angle = 2 * math.pi / _DIRECTIONS * torch.arange(_DIRECTIONS)
        self.register_buffer("directions", torch.stack([angle.cos(), angle.sin()]), persistent=False)
        self.register_buffer("box", torch.tensor(_CORNERS), persistent=False)
        self.features = LevelFeatures()
        deviations = _DIRECTIONS + 5
        size = 2 * deviations + num_sensors + self.features.size
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.SiLU()]
            size = width
        self.layers = nn.Sequential(*layers, nn.Linear(size, dim))

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "dim": self.dim,
            "domain": [getattr(self.domain, name) for name in Domain.__dataclass_fields__],
            "num_sensors": self.num_sensors,
            "width": self.width,
            "depth": self.depth,
        }

    def forward(self, y: OperatorInput, level: Float[Tensor, " b"]) -> Float[Tensor, "b n"]:
        """The noise in units of its size, in the dtype of the problem; the network runs in its own.

        Args:
            y: what `OperatorReader` kept.
            level: the noise levels.
        """
        dtype = self.box.dtype
        initial, query, level = y.initial.to(dtype), y.query.to(dtype), level.to(dtype)
        d = self.domain
        origin = query.new_tensor([d.x_min, d.t_min])
        sides = query.new_tensor([d.x_max - d.x_min, d.t_max - d.t_min])
        hull = ((query - origin) / sides @ self.directions).amax(1) - (self.box @ self.directions).amax(0)
        place = (initial[..., :2] - origin) / sides
        line = torch.stack([place[..., 0].amin(1), place[..., 0].amax(1) - 1.0, place[..., 1].mean(1)], -1)
        u = torch.asinh(2.0 / d.u_max * initial[..., 2])
        low, high = (math.asinh(2.0 * bound / d.u_max) for bound in (d.u_min, d.u_max))
        range_ = torch.stack([u.amin(1) - low, u.amax(1) - high], -1)
        deviation = torch.asinh(4.0 * torch.cat([hull, line, range_], -1))
        scaled = torch.asinh(deviation / level.unsqueeze(-1))
        return self.layers(torch.cat([deviation, scaled, u, self.features(level)], -1)).to(y.initial.dtype)


class CleanProblemsDataset(Dataset[OperatorInput]):
    """Batches of problems inside the training domain; batch `i` is a function of `(seed, i)` alone."""

    def __init__(self, equation: Equation, num_sensors: int, batch_size: int, seed: int) -> None:
        self.equation = equation
        self.num_sensors = num_sensors
        self.batch_size = batch_size
        self.seed = seed

    def __getitem__(self, index: int) -> OperatorInput:
        """Draw batch `index`; of the query grid the corners are enough."""
        solutions = self.equation.sample(self.batch_size, batch_generator(self.seed, index))
        clean = self.equation.inputs(solutions, self.num_sensors, (2, 2))
        return OperatorInput(clean.initial.float(), clean.query.float())


class CleanProblems(pl.LightningDataModule):
    """Problems inside the training domain, none of them transformed.

    Args:
        equation: the equation and the law of its solutions.
        num_sensors: points of the initial condition.
        batch_size: problems a step.
        steps_per_epoch: steps between validations.
        seed: of the problems.

    Raises:
        ConfigurationError: a count is not positive.
    """

    def __init__(
        self,
        equation: Equation,
        num_sensors: int = 16,
        batch_size: int = 512,
        steps_per_epoch: int = 250,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.equation = equation
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch)
        self.dataset = CleanProblemsDataset(
            equation, check_count("num_sensors", num_sensors), check_count("batch_size", batch_size), seed
        )

    def train_dataloader(self) -> DataLoader[OperatorInput]:
        """New problems at every step."""
        return DataLoader(self.dataset, batch_size=None, sampler=EpochSampler(self.steps_per_epoch))

    def val_dataloader(self) -> DataLoader[OperatorInput]:
        """One batch that training does not see."""
        batch = self.dataset[2**31]
        return DataLoader([batch], batch_size=None)  # type: ignore[arg-type]


class OperatorDenoising(pl.LightningModule):
    """Denoising score matching on clean problems: `trivgeo.inversion.LearnedScore.loss`.

    The noise of a step is a function of the seed and the number of the step alone, so that a resumed run repeats it.

    Args:
        equation: the equation and the law of its solutions.
        group: its symmetry group; the scale sets how far the noise goes in each direction.
        schedule: the noise.
        num_sensors: see `OperatorNetwork`.
        width: see `OperatorNetwork`.
        depth: see `OperatorNetwork`.
        noise_steps: see `LearnedScore`.
        lowest_time: see `LearnedScore`.
        learning_rate: Adam's first step size; it falls to zero by half a cosine.
        seed: of the initial weights and the noise.
        export_path: where to write the trained score; nowhere when None.

    Raises:
        ConfigurationError: the group is not that of the equation, or a number is out of range.
    """

    def __init__(
        self,
        equation: Equation,
        group: LieGroup,
        schedule: GeometricSchedule,
        num_sensors: int = 16,
        width: int = 128,
        depth: int = 3,
        noise_steps: int = 2,
        lowest_time: float = 0.05,
        learning_rate: float = 2e-3,
        seed: int = 0,
        export_path: str | None = None,
    ) -> None:
        super().__init__()
        if not group.same_law(equation.group()):
            raise ConfigurationError(f"group: expected {equation.group()!r} with some scale, got {group!r}")
        self.equation = equation
        self.schedule = schedule
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.seed = seed
        self.export_path = export_path
        domain = [getattr(equation.domain, name) for name in Domain.__dataclass_fields__]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = OperatorNetwork(group.dim, domain, num_sensors, width, depth)
        self.score = LearnedScore(
            OperatorAction(group.action()),
            schedule,
            self.network,
            noise_steps=noise_steps,
            lowest_time=lowest_time,
            prepare=OperatorReader(num_sensors),
        )

    def training_step(self, batch: OperatorInput, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        loss = self._loss(batch, self.trainer.global_step)
        self.log("train/noise", loss, prog_bar=True, batch_size=len(batch.initial))
        return loss

    def validation_step(self, batch: OperatorInput, batch_idx: int) -> None:
        """Log the squared error of the noise per dimension; one for a network that knows nothing."""
        self.log("val/noise", self._loss(batch, -1), prog_bar=True, batch_size=len(batch.initial))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam with cosine decay, step by step."""
        optimizer = torch.optim.Adam(self.network.parameters(), self.learning_rate)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_end(self) -> None:
        """Export the score."""
        if self.export_path is not None and self.trainer.is_global_zero:
            measured = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            metadata = {
                **self.equation.description,
                "measured": measured,
                "steps": self.trainer.global_step,
                "seed": self.seed,
                "versions": versions(),
            }
            save_operator_score(self.score, self.schedule, Path(self.export_path), metadata)

    def _loss(self, batch: OperatorInput, step: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(1_000_003 * (self.seed + 1) + step)
        return self.score.loss(batch, generator) / self.network.dim


def save_operator_score(
    score: LearnedScore, schedule: GeometricSchedule, path: str | Path, metadata: Mapping[str, Any]
) -> None:
    """Write a score of operator inputs to a safetensors file, with all that rebuilds it in the header.

    Args:
        score: the score, of an `OperatorNetwork`.
        schedule: its noise.
        path: the file; missing parent folders are created.
        metadata: what JSON can hold.
    """
    network = score.backbone
    assert isinstance(network, OperatorNetwork)
    header = {
        "architecture": network.architecture,
        "group": type(score.group).__name__,
        "scale": score.group.scale.tolist(),
        "schedule": [schedule.minimum, schedule.maximum],
        "noise_steps": score.noise_steps,
        "lowest_time": score.lowest_time,
        "metadata": dict(metadata),
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    save_file(tensors, path, metadata={_HEADER_KEY: json.dumps(header)})


def load_operator_score(path: str | Path, action: OperatorAction) -> tuple[LearnedScore, dict[str, Any]]:
    """Read a score written by `save_operator_score`, in evaluation mode, its parameters constant.

    Args:
        path: the file.
        action: on operator inputs, of a group that differs from the score's at most in its scale.

    Returns:
        The score, on the group with the scale that it was trained with, and the metadata.

    Raises:
        CheckpointError: the file is missing or unreadable, holds no such score, or one of another group.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {})[_HEADER_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path}: expected a safetensors file with the header {_HEADER_KEY!r}: {error}"
        ) from error
    group = action.group
    if header["group"] != type(group).__name__ or header["architecture"]["dim"] != group.dim:
        raise CheckpointError(f"{path}: expected a score on {type(group).__name__}, got one on {header['group']}")
    network = OperatorNetwork(**header["architecture"])
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: tensors do not fit the header's architecture: {error}") from error
    score = LearnedScore(
        OperatorAction(group.with_scale(header["scale"]).action()),
        GeometricSchedule(*header["schedule"]),
        network.requires_grad_(False),
        noise_steps=header["noise_steps"],
        lowest_time=header["lowest_time"],
        prepare=OperatorReader(network.num_sensors),
    )
    return score.eval(), header["metadata"]


class TrainedOperatorInverter(nn.Module, Inverter):
    """An `AmortizedInverter` of a trained score; see there.

    Args:
        action: on operator inputs; the scale of its group is that of the score, whatever it is here.
        energy: ranks the hypotheses if ``ranked``.
        checkpoint: path of the score.
        steps: number of equal steps in time.
        num_hypotheses: number of chains.
        stepper: the scheme; default `RefiningStep`.
        start: ``"identity"`` or ``"noise"``.
        ranked: let the energy rank the hypotheses.

    Raises:
        CheckpointError: see `load_operator_score`.
    """

    def __init__(
        self,
        action: OperatorAction,
        energy: DataEnergy | None,
        checkpoint: str,
        steps: int = 10,
        num_hypotheses: int = 1,
        stepper: DenoisingStep | None = None,
        start: Literal["noise", "identity"] = "identity",
        ranked: bool = False,
    ) -> None:
        super().__init__()
        score, _ = load_operator_score(checkpoint, action)
        self.inverter = AmortizedInverter(
            score,
            energy if ranked else None,
            steps=steps,
            num_hypotheses=num_hypotheses,
            stepper=RefiningStep() if stepper is None else stepper,
            start=start,
        )
        self.action = self.inverter.action

    def forward(self, x_tilde: OperatorInput, *, generator: torch.Generator | None = None) -> InversionResult:
        """Those of the `AmortizedInverter`."""
        return self.inverter(x_tilde, generator=generator)
