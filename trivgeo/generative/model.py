"""Generative models of elements of any group: from samples to a model that draws and evaluates densities."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._deprecation import Converted, RenamedAttribute, renamed_arguments
from trivgeo._random import integers, permutation
from trivgeo.checks import check_choice, check_count, check_positive, check_type
from trivgeo.errors import CheckpointError, ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.base_distributions import BaseDistribution
from trivgeo.generative.measure import log_torus_volume, sum_over_compact
from trivgeo.generative.networks import GroupNetwork
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.generative.paths.diffusion import DiffusionPath
from trivgeo.generative.paths.flow_matching import FlowMatchingPath
from trivgeo.generative.paths.kinetic import KineticPath
from trivgeo.groups import LieGroup
from trivgeo.networks import read_file, write_file
from trivgeo.sde.likelihood import Divergence

__all__ = ["PATHS", "FittedPath", "GroupDiffusion"]

PATHS: dict[str, type[ProbabilityPath]] = {
    "diffusion": DiffusionPath,
    "momentum": KineticPath,
    "flow": FlowMatchingPath,
}
"""The shipped kinds by name."""

_HEADER = "trivgeo.GroupDiffusion"  # entry of the header of its files
_TOLERANCE = 1e-4
_NUM_FIT_ROWS = 16_384  # to which base distribution, levels of noise and input scales are fitted
_MAX_ENTRY_ERROR = 0.01  # relative distance of the entries of data from those of the nearest element


class FittedPath(nn.Module):
    """Result of `GroupDiffusion.fit` beside the weights of the network.

    Attributes:
        path: the probability path.
        base: its base distribution.
        settings: numbers that the path was built from.
        num_skipped_rows: rows of the training that were skipped, for want of a logarithm; zero for a loaded model.
    """

    def __init__(
        self, path: ProbabilityPath, base: BaseDistribution, settings: dict[str, Any], num_skipped_rows: int = 0
    ) -> None:
        super().__init__()
        self.path, self.base = path, base
        self.settings, self.num_skipped_rows = settings, num_skipped_rows


class GroupDiffusion(nn.Module):
    r"""A generative model on a group, in three lines.

    >>> model = GroupDiffusion(Torus(7), kind="diffusion")
    >>> model.fit(samples)
    >>> drawn, log_likelihoods = model.sample(1000), model.log_prob(test)

    ``kind`` is the probability path between data and base distribution: ``"diffusion"``, see `DiffusionPath`, with a
    geometric schedule; ``"momentum"``, see `KineticPath`; ``"flow"``, see `FlowMatchingPath`; or a subclass of
    `ProbabilityPath` of your own. The base distribution is Haar's on compact factors of the group, and elsewhere normal
    or a mixture of such (`fit_base_distribution`). The levels of noise are taken from the group where it is compact,
    and from the spread of the data elsewhere.

    Densities are with respect to, factor by factor of a product: :math:`d\theta_1 \dots d\theta_n` on a torus, Haar
    measure of total mass one on other compact groups, and on others left Haar measure that is Lebesgue measure of the
    algebra, in the basis of the group, at the identity.

    Args:
        group: the group of the data.
        kind: "diffusion", "momentum" or "flow", or a subclass of `ProbabilityPath`.
        seed: of the initial weights and of the training.
        width: see `GroupNetwork`, also for ``depth``.

    Attributes:
        network: the network that is trained.
        fitted: path, base distribution and settings, see `FittedPath`; ``None`` before `fit`.

    Raises:
        ConfigurationError: a setting is out of range.
    """

    def __init__(
        self,
        group: LieGroup,
        kind: str | type[ProbabilityPath] = "diffusion",
        seed: int = 0,
        *,
        width: int = 256,
        depth: int = 3,
    ) -> None:
        super().__init__()
        self.group = check_type("group", group, LieGroup)  # type: ignore[type-abstract]
        self._path_class = _path_class(kind)
        self.kind = kind if isinstance(kind, str) else kind.__name__
        self.seed = check_count("seed", seed, 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = GroupNetwork(group, self._path_class.uses_momentum(group), width, depth)
        self.fitted: FittedPath | None = None
        self._shape = (width, depth)

    law = RenamedAttribute("fitted.base", until="0.4")
    lost = RenamedAttribute("fitted.num_skipped_rows", until="0.4")
    settings = RenamedAttribute("fitted.settings", until="0.4")
    transport = RenamedAttribute("fitted.path", until="0.4")

    @renamed_arguments(until="0.4", train="samples", minutes=Converted("seconds", lambda minutes: 60.0 * minutes))
    def fit(
        self,
        samples: Tensor,
        *,
        steps: int = 20_000,
        seconds: float = 600.0,
        batch_size: int = 512,
        learning_rate: float = 2e-3,
        folder: str | Path | None = None,
        progress: bool | None = None,
    ) -> GroupDiffusion:
        """Train on elements, for a number of steps or a time; needs Lightning (``pip install trivgeo[training]``).

        Args:
            samples: ``[m, *element_shape]``; the model is then in their dtype and on their device.
            steps: number of steps of the optimiser, at most.
            seconds: time after which the training ends; the step size falls to zero by then.
            batch_size: rows of a step, drawn with repetition.
            learning_rate: largest step size of the optimiser.
            folder: for checkpoints; a training that was killed goes on from there when called again.
            progress: show a bar; ``None`` for one on a terminal.

        Returns:
            The model itself.

        Raises:
            ShapeError: the data are no batch of two elements or more.
            NonFiniteError: they hold NaN or infinity.
            DomainError: they are no elements of the group, or all the same one, of a group that is not compact.
            ConfigurationError: a number is out of range, the data are in half precision, or the axes of a compact group
                are of lengths so unequal that its noise cannot be simulated.
            CheckpointError: the folder holds the checkpoint of another training.
        """
        from trivgeo.generative.training import PathTraining, train

        data = self._check_samples(samples)
        check_count("steps", steps)
        check_positive("seconds", seconds)
        check_count("batch_size", batch_size)
        check_positive("learning_rate", learning_rate)

        def draw(count: int, generator: torch.Generator) -> Tensor:
            return data[integers(len(data), (count,), torch.empty(0), generator).to(data.device)]

        generator = torch.Generator(data.device).manual_seed(self.seed)
        rows = self._fit_rows(data, generator)
        settings, base = self._path_class.fit(self.group, rows, generator)
        path = self._path_class.build(self.group, settings, base)
        network = copy.deepcopy(self.network).to(data).requires_grad_(True).train()
        elements = path.training_batch(rows, generator).elements
        network.standardise(elements[torch.isfinite(elements.flatten(1)).all(-1)])
        training = PathTraining(network, path, learning_rate, self.seed)
        train(training, draw, steps, batch_size, seconds, folder, progress)
        network.load_state_dict(training.average.state_dict())
        fitted = FittedPath(path, base, settings, int(training.num_skipped_rows))
        self.network, self.fitted = network.to(data).eval(), fitted
        return self

    @renamed_arguments(until="0.4", number="num_samples")
    def sample(
        self,
        num_samples: int,
        *,
        generator: torch.Generator | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
    ) -> Tensor:
        """Draw elements, ``[num_samples, *element_shape]``, projected on the group to the last digit.

        By the stochastic process, whose noise corrects errors of the network; or, given a tolerance, and always with
        kind "flow", by the flow, whose distribution is that of `log_prob`. Rows are NaN where a network that has
        learned little makes a chain non-finite.

        Args:
            num_samples: number of elements.
            generator: source of the noise, on the device of the model.
            steps: of the stochastic process, by default 100; there are none with kind "flow".
            tolerance: of the flow, see `solve_adaptive`; by default 1e-4.

        Raises:
            ConfigurationError: the model is not fitted, a number is out of range, or there are both steps and a
                tolerance.
        """
        check_count("num_samples", num_samples)
        fitted = self._fitted()
        if steps is not None and tolerance is not None:
            raise ConfigurationError(f"steps, tolerance: expected one of them, got {steps} and {tolerance}")
        if tolerance is None:
            steps = fitted.path.default_steps if steps is None else check_count("steps", steps)
        with torch.no_grad():
            start = fitted.base.sample(num_samples, generator)
            if steps is None:
                tolerance = _TOLERANCE if tolerance is None else tolerance
                found = fitted.path.sample(self.network, start, generator, tolerance)
            else:
                found = fitted.path.sample_stochastic(self.network, start, generator, steps)
            return self.group.project(found.double()).to(found.dtype)

    def log_prob(
        self,
        g: Tensor,
        *,
        tolerance: float = _TOLERANCE,
        divergence: Divergence | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " b"]:
        """Log-density of elements, in nats; see `GroupDiffusion` for the measure.

        Args:
            g: ``[b, *element_shape]``.
            tolerance: see `solve_adaptive`.
            divergence: see `flow_likelihood`.
            generator: of random numbers that kind "momentum" or the divergence asks for; default one with a fixed seed.

        Raises:
            ShapeError: the elements are no batch of the group's.
            NonFiniteError: they hold NaN or infinity.
            DomainError: they are no elements of the group.
            ConfigurationError: the model is not fitted.
        """
        fitted = self._fitted()
        g = self._check_elements(g, "g")
        if generator is None:
            generator = torch.Generator(g.device).manual_seed(0)
        like = next(self.network.parameters())
        with torch.no_grad():
            found = fitted.path.log_density(self.network, g.to(like), fitted.base, generator, tolerance, divergence)
        return found - sum_over_compact(self.group, log_torus_volume)

    def save(self, path: str | Path) -> None:
        """Write weights, base distribution and settings to a safetensors file, with the fingerprint of the group.

        Args:
            path: the file.

        Raises:
            ConfigurationError: the model is not fitted.
        """
        fitted = self._fitted()
        header = {
            "group": self.group.fingerprint(),
            "scale": self.group.scale.tolist(),
            "kind": self.kind,
            "seed": self.seed,
            "shape": list(self._shape),
            "settings": fitted.settings,
            "version": [fitted.path.target_version, self.network.version],
        }
        write_file(_modules(self.network, fitted.base), path, {_HEADER: header})

    @classmethod
    def load(cls, path: str | Path, group: LieGroup, kind: type[ProbabilityPath] | None = None) -> GroupDiffusion:
        """Read a model that `save` wrote.

        Args:
            path: the file.
            group: the group of the model, with its scale.
            kind: the class of the path, for models of a kind of your own.

        Raises:
            CheckpointError: the file is none of these, or its model is on another group or of another kind, its weights
                are not finite, or they were trained on another version of the regression target.
        """
        file = read_file(path)
        header = file.entry(_HEADER)
        try:
            fits = group.matches(header["group"]) and group.scale.tolist() == header["scale"]
            width, depth = header["shape"]
            model = cls(group, header["kind"] if kind is None else kind, header["seed"], width=width, depth=depth)
            settings = dict(header["settings"])
            same_kind = model.kind == header["kind"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected a file written by GroupDiffusion.save: {error!r}") from error
        if not fits:
            raise CheckpointError(f"{path}: expected a model on {group!r} with its scale, got one on another group")
        if not same_kind:
            raise CheckpointError(f"{path}: expected a model of kind {model.kind!r}, got one of {header['kind']!r}")
        like = group.random(32, std=0.1, generator=torch.Generator().manual_seed(0))
        base = model._path_class.fit_base(group, like)  # for its shapes; the numbers are read
        try:
            built = model._path_class.build(group, settings, base)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected settings of kind {model.kind!r}: {error!r}") from error
        expected = [built.target_version, model.network.version]
        version = header.get("version", 1)
        version = version if isinstance(version, list) else [version, 1]
        if version != expected:
            raise CheckpointError(
                f"{path}: expected versions {expected} of targets and inputs of a network of kind {model.kind!r} "
                f"on {group!r}, got {version}; fit the model again"
            )
        file.fill(_modules(model.network, base))
        model.fitted = FittedPath(built, base, settings)
        return model.eval()

    def _fitted(self) -> FittedPath:
        """Return the fitted path, or raise `ConfigurationError`."""
        if self.fitted is None:
            raise ConfigurationError("model: expected a fitted one; call fit(samples) or GroupDiffusion.load")
        return self.fitted

    def _fit_rows(self, data: Tensor, generator: torch.Generator) -> Tensor:
        """Return a fixed number of rows of the data in random order, with repetitions if the data have fewer."""
        rows = data[permutation((len(data),), data, generator)[:_NUM_FIT_ROWS]]
        if len(rows) < _NUM_FIT_ROWS:
            rows = rows.repeat(_NUM_FIT_ROWS // len(rows) + 1, *[1] * len(self.group.element_shape))[:_NUM_FIT_ROWS]
        return rows

    def _check_samples(self, samples: Any) -> Tensor:
        """Return the elements ``[m, *element_shape]`` of a training, or raise an error of `fit`."""
        data = self._check_elements(samples.detach() if isinstance(samples, Tensor) else samples, "samples")
        if len(data) < 2:
            raise ShapeError(f"samples: expected at least two elements, got {len(data)}")
        if torch.finfo(data.dtype).bits < 32:
            raise ConfigurationError(f"samples: expected float32 or float64, got {data.dtype}")
        if not self.group.is_compact and bool((data == data[:1]).all()):
            raise DomainError("samples: expected elements that differ, which set the levels of noise, got the same one")
        return data

    def _check_elements(self, g: Tensor, name: str) -> Tensor:
        """Project elements ``[b, *element_shape]`` on the group; raise an error for rows that are far from it."""
        g = self.group.check_elements(g, name)
        if len(self.group.batch_shape(g)) != 1:
            raise ShapeError(f"{name}: expected one batch dimension, got {list(self.group.batch_shape(g))}")
        if not bool(torch.isfinite(g).all()):
            raise NonFiniteError(f"{name}: expected finite numbers, got NaN or infinity")
        near = self.group.project(g)
        periods = torch.tensor(self.group.fingerprint()["periods"]).reshape(self.group.element_shape).to(g)
        error = torch.where(periods > 0, 0.0, (near - g).abs() / (1.0 + g.abs()))
        wrong = ~(error.flatten(1).amax(-1) < _MAX_ENTRY_ERROR)
        if bool(wrong.any()):
            raise DomainError(f"{name}: expected elements of {self.group!r}, got {int(wrong.sum())} rows that are none")
        return near


def _path_class(kind: Any) -> type[ProbabilityPath]:
    """Return the class of a kind that is given by name or as a class, or raise `ConfigurationError`."""
    if isinstance(kind, type) and issubclass(kind, ProbabilityPath):
        return kind
    return PATHS[check_choice("kind", kind, tuple(PATHS))]


def _modules(network: GroupNetwork, base: BaseDistribution) -> nn.ModuleDict:
    """Modules of a file, by the names of the file format."""
    return nn.ModuleDict({"network": network, "law": base})
