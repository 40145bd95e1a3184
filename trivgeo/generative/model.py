"""Generative models of elements of any group: from samples to a model that draws and tells densities."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._random import integers, permutation
from trivgeo.checks import check_choice, check_count, check_positive, check_type
from trivgeo.errors import CheckpointError, ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.base_distributions import (
    BaseDistribution,
    fit_base_distribution,
    group_mean,
    is_isotropic,
    log_angles,
    over_compact,
    scaled_factors,
)
from trivgeo.generative.networks import GroupNetwork
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.generative.paths.diffusion import DiffusionPath
from trivgeo.generative.paths.flow_matching import FlowMatchingPath
from trivgeo.generative.paths.kinetic import KineticPath
from trivgeo.generative.paths.levels import noise_parts
from trivgeo.groups import DirectProduct, LieGroup
from trivgeo.networks import read_file, write_file
from trivgeo.sde.likelihood import Divergence
from trivgeo.sde.noise.heat import slowest_rate
from trivgeo.sde.noise.kinetic import KineticNoise
from trivgeo.sde.noise.schedule import GeometricSchedule

__all__ = ["GroupDiffusion"]

_ENTRY = "trivgeo.GroupDiffusion"  # of the header of its files
KINDS = ("diffusion", "momentum", "flow")
_NARROWEST = 0.0025  # the noise that stands for none, in units of the widest


# logarithm of what is left of the slowest mode of a compact group; less where brackets make kinetic noise costly
_MIXED, _MIXED_KINETIC = 8.0, 6.0
_STEPS = 100
_TOLERANCE = 1e-4
_ROWS = 16_384  # for which laws are fitted
_COMPONENTS = 8  # of the law that noise ends at
_OFF = 0.01  # how far from an element the entries of one may be


class GroupDiffusion(nn.Module):
    r"""A generative model on a group, in three lines.

    >>> model = GroupDiffusion(Torus(7), kind="diffusion")
    >>> model.fit(train)
    >>> samples, log_likelihoods = model.sample(1000), model.log_prob(test)

    ``kind`` is how data and noise are joined: ``"diffusion"``, see `DiffusionPath`, with a geometric schedule;
    ``"momentum"``, see `KineticPath`; ``"flow"``, see `FlowMatchingPath`. What noise ends at is Haar's law on what
    is compact of the group, and elsewhere a normal law or a mixture of such (`fit_base_distribution`). The levels of
    noise are taken from the group where it is compact, and from the spread of the data elsewhere.

    Densities are with respect to, factor by factor of a product: :math:`d\theta_1 \dots d\theta_n` on a torus, Haar
    measure of total mass one on other compact groups, and on others left Haar measure that is Lebesgue measure of the
    algebra, in the basis of the group, at the identity.

    Args:
        group: where the data are.
        kind: "diffusion", "momentum" or "flow".
        seed: of the initial weights and of the training.
        width: see `GroupNetwork`, also for ``depth``.

    Attributes:
        law: what noise ends at; none before `fit`.
        settings: the levels of noise that `fit` found.
        lost: rows of the training that did not count, for want of a logarithm; files do not hold it, zero after `load`.

    Raises:
        ConfigurationError: a setting is out of range.
    """

    def __init__(
        self, group: LieGroup, kind: str = "diffusion", seed: int = 0, *, width: int = 256, depth: int = 3
    ) -> None:
        super().__init__()
        self.group = check_type("group", group, LieGroup)  # type: ignore[type-abstract]
        self.kind = check_choice("kind", kind, KINDS)
        self.seed = check_count("seed", seed, 0)
        self.settings: dict[str, float] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            seeing = kind == "momentum" and not group.algebra.is_abelian
            self.network = GroupNetwork(group, seeing, width, depth)
        self.law: BaseDistribution | None = None
        self.lost = 0
        self._shape = (width, depth)

    @property
    def transport(self) -> ProbabilityPath:
        """How data and noise are joined; there is one once the model is fitted.

        Raises:
            ConfigurationError: the model is not fitted.
        """
        if not self.settings:
            raise ConfigurationError("model: expected a fitted one; call fit(train) or GroupDiffusion.load")
        if self.kind == "flow":
            assert self.law is not None
            return FlowMatchingPath(self.group, self.law, self.settings["speed"])
        widest = self.settings["widest"]
        if self.kind == "diffusion":
            rate = -math.log(_NARROWEST)
            top = widest * math.sqrt(2.0 * rate)
            return DiffusionPath(self.group, GeometricSchedule(_NARROWEST * top, top))
        noise = KineticNoise(self.group, 4.0 / widest)
        first = (1.5 * (_NARROWEST * widest) ** 2 / noise.friction) ** (1.0 / 3.0)
        last = noise.time_of(widest**2)
        noise = dataclasses.replace(noise, steps=noise_parts(self.group, widest**2, time=last))
        return KineticPath(noise, first, last)

    def fit(
        self,
        train: Tensor,
        *,
        steps: int = 20_000,
        minutes: float = 10.0,
        batch_size: int = 512,
        learning_rate: float = 2e-3,
        folder: str | Path | None = None,
        progress: bool | None = None,
    ) -> GroupDiffusion:
        """Train on elements, at most so many steps and minutes; needs Lightning (``pip install trivgeo[training]``).

        Args:
            train: ``[m, *element_shape]``; on the device, and in the dtype, on which the model shall be.
            steps: of the optimiser.
            minutes: after which it stops; the step size falls to zero by then.
            batch_size: rows of a step, drawn with repetition.
            learning_rate: at its peak.
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
        from trivgeo.generative.training import PathTraining
        from trivgeo.generative.training import train as run

        data = self._checked(train.detach() if isinstance(train, Tensor) else train, "train")
        if len(data) < 2:
            raise ShapeError(f"train: expected at least two elements, got {len(data)}")
        if torch.finfo(data.dtype).bits < 32:
            raise ConfigurationError(f"train: expected float32 or float64, got {data.dtype}")
        if not self.group.is_compact and bool((data == data[:1]).all()):
            raise DomainError("train: expected elements that differ, which set the levels of noise, got the same one")
        check_count("steps", steps)
        check_positive("minutes", minutes)
        check_count("batch_size", batch_size)
        check_positive("learning_rate", learning_rate)

        def draw(count: int, generator: torch.Generator) -> Tensor:
            return data[integers(len(data), (count,), torch.empty(0), generator).to(data.device)]

        before = copy.deepcopy(self.__dict__)
        try:
            self.to(data)
            self.network.requires_grad_(True).train()
            self._adapt(data)
            lessons = PathTraining(self.network, self.transport, learning_rate, self.seed)
            run(lessons, draw, steps, batch_size, 60.0 * minutes, folder, progress)
        except BaseException:  # no model that looks like a fitted one
            self.__dict__.update(before)
            raise
        self.network.load_state_dict(lessons.average.state_dict())
        self.network.to(data).eval()
        self.lost = int(lessons.lost)
        return self

    def sample(
        self,
        number: int,
        *,
        generator: torch.Generator | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
    ) -> Tensor:
        """Draw elements, ``[number, *element_shape]``, projected on the group to the last digit; NaN where a network
        that has learned little leads a chain out of all numbers.

        By the stochastic process, whose noise mends errors of the network; or, given a tolerance, and always of kind
        "flow", by the flow, whose law is that of `log_prob`.

        Args:
            number: how many.
            generator: the source of the noise, on the device of the model.
            steps: of the stochastic process, by default 100; there are none of kind "flow".
            tolerance: of the flow, see `solve_adaptive`; by default 1e-4.

        Raises:
            ConfigurationError: the model is not fitted, a number is out of range, or there are both steps and a
                tolerance.
        """
        check_count("number", number)
        transport, law = self.transport, self.law
        assert law is not None
        if steps is not None and tolerance is not None:
            raise ConfigurationError(f"steps, tolerance: expected one of them, got {steps} and {tolerance}")
        if steps is None and tolerance is None and self.kind != "flow":
            steps = _STEPS
        if steps is not None:
            check_count("steps", steps)
        tolerance = _TOLERANCE if tolerance is None else tolerance
        with torch.no_grad():
            start = law.sample(number, generator)
            found = transport.sample(self.network, start, generator, tolerance, steps)
            return self.group.project(found.double()).to(found.dtype)

    def log_prob(
        self,
        g: Tensor,
        *,
        tolerance: float = _TOLERANCE,
        divergence: Divergence | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " b"]:
        """The log-density of elements, in nats; see `GroupDiffusion` for the measure.

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
        transport, law = self.transport, self.law
        assert law is not None
        g = self._checked(g, "g")
        if generator is None:
            generator = torch.Generator(g.device).manual_seed(0)
        like = next(self.network.parameters())
        with torch.no_grad():
            found = transport.log_density(self.network, g.to(like), law, generator, tolerance, divergence)
        return found - over_compact(self.group, log_angles)

    def save(self, path: str | Path) -> None:
        """Write weights, laws and settings to a safetensors file, with the fingerprint of the group.

        Args:
            path: the file.

        Raises:
            ConfigurationError: the model is not fitted.
        """
        header = {
            "group": self.group.fingerprint(),
            "scale": self.group.scale.tolist(),
            "kind": self.kind,
            "seed": self.seed,
            "shape": list(self._shape),
            "settings": self.settings,
            "version": self._versions,
        }
        write_file(self, path, {_ENTRY: header})

    @classmethod
    def load(cls, path: str | Path, group: LieGroup) -> GroupDiffusion:
        """Read a model that `save` wrote.

        Args:
            path: the file.
            group: the group it is on, with its scale.

        Raises:
            CheckpointError: the file is none of these, or its model is on another group, its weights are not finite, or
                they come from a version in which this kind of network told something else.
        """
        file = read_file(path)
        header = file.entry(_ENTRY)
        try:
            fits = group.matches(header["group"]) and group.scale.tolist() == header["scale"]
            width, depth = header["shape"]
            model = cls(group, header["kind"], header["seed"], width=width, depth=depth)
            model.settings = dict(header["settings"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected a file written by GroupDiffusion.save: {error!r}") from error
        if not fits:
            raise CheckpointError(f"{path}: expected a model on {group!r} with its scale, got one on another group")
        like = group.random(32, std=0.1, generator=torch.Generator().manual_seed(0))
        model.law = model._fitted_law(like)  # of its shape
        version = header.get("version", 1)
        version = version if isinstance(version, list) else [version, 1]
        if version != model._versions:
            raise CheckpointError(
                f"{path}: expected versions {model._versions} of what a network of kind {model.kind!r} tells and sees "
                f"on {group!r}, got {version}; fit the model again"
            )
        return file.fill(model)

    def _adapt(self, data: Tensor) -> None:
        """Levels of noise, the terminal law, the scales of the network."""
        generator = torch.Generator(data.device).manual_seed(self.seed)
        rows = data[permutation((len(data),), data, generator)[:_ROWS]]
        if len(rows) < _ROWS:
            rows = rows.repeat(_ROWS // len(rows) + 1, *[1] * len(self.group.element_shape))[:_ROWS]
        if self.kind == "flow":
            self.law = self._fitted_law(rows)
            self.settings = {"speed": 1.0}
            target = self.transport.lesson(rows, generator).target
            self.settings = {"speed": float(target[torch.isfinite(target).all(-1)].square().mean().sqrt())}
        else:
            mixed = _MIXED_KINETIC if self.network.sees_momentum else _MIXED
            self.settings = {"widest": _widest(self.group, rows, mixed)}
            noised = self.transport.noised(rows, generator)
            self.law = self._fitted_law(noised[torch.isfinite(noised.flatten(1)).all(-1)])
        seen = self.transport.lesson(rows, generator).elements
        self.network.standardise(seen[torch.isfinite(seen.flatten(1)).all(-1)])

    def _fitted_law(self, samples: Tensor) -> BaseDistribution:
        """A flow may end at any law that is wide enough, noise ends at a certain one."""
        if self.kind == "flow":
            return fit_base_distribution(self.group, samples, 1.2)
        return fit_base_distribution(self.group, samples, components=_COMPONENTS)

    @property
    def _versions(self) -> list[int]:
        return [self.transport.version, self.network.version]

    def _checked(self, g: Tensor, name: str) -> Tensor:
        """The nearest elements, if they are near."""
        g = self.group.check_elements(g, name)
        if len(self.group.batch_shape(g)) != 1:
            raise ShapeError(f"{name}: expected one batch dimension, got {list(self.group.batch_shape(g))}")
        if not bool(torch.isfinite(g).all()):
            raise NonFiniteError(f"{name}: expected finite numbers, got NaN or infinity")
        near = self.group.project(g)
        periods = torch.tensor(self.group.fingerprint()["periods"]).reshape(self.group.element_shape).to(g)
        off = torch.where(periods > 0, 0.0, (near - g).abs() / (1.0 + g.abs()))
        wrong = ~(off.flatten(1).amax(-1) < _OFF)
        if bool(wrong.any()):
            raise DomainError(f"{name}: expected elements of {self.group!r}, got {int(wrong.sum())} rows that are none")
        return near


def _widest(group: LieGroup, data: Tensor, mixed: float) -> float:
    r"""The standard deviation of noise that leaves of the data no more than a `MixtureDistribution` can tell.

    On a compact group the slowest mode :math:`\chi` has :math:`\tfrac12 \sum_i X_i^2 \chi = -c \chi`, which in the
    natural basis, or a multiple of it, is read off the entries of an element at the identity (the determinant of U(n)
    is as slow). In another basis it is found by `slowest_rate`, but none is slower than if all axes were as short as
    the shortest: :math:`\sum_i X_i^2` is a quadratic form in the natural fields. Elsewhere it is twice the widest
    spread of the data. On a product it is the widest of the factors, for all have the same noise.
    """
    is_read_off = group.is_compact and is_isotropic(group)
    if isinstance(group, DirectProduct) and not is_read_off and (factors := scaled_factors(group)):
        parts = zip(factors, group.split(data), strict=True)
        return max(_widest(factor, part, mixed) for factor, part in parts)
    if not group.is_compact:
        _, v = group_mean(group, data)
        return 2.0 * float(v.std(0).max())
    if not is_read_off:
        shortest = float(torch.linalg.svdvals(group.basis.rows)[-1])
        most, slow = _widest(group.with_scale(shortest), data, mixed), slowest_rate(group)
        return most if slow is None else math.sqrt(mixed / max(slow, mixed / most**2))
    e = group.identity(dtype=torch.float64)
    periods = torch.tensor(group.fingerprint()["periods"], dtype=torch.float64).reshape(group.element_shape)
    rate = torch.where(periods > 0, 2.0 * math.pi / torch.where(periods > 0, periods, 1.0), 1.0)

    def entries(v: Tensor) -> Tensor:
        g = group.retract(e, v)
        return torch.where(periods > 0, (rate * g).cos(), g)

    zero = torch.zeros(group.dim, dtype=torch.float64)
    h = 1e-3 * torch.eye(group.dim, dtype=torch.float64)
    at = entries(zero)
    bend = (entries(h) + entries(-h) - 2.0 * at).sum(0) / 1e-6
    there = at.abs() > 0.5
    slowest = float((-0.5 * bend / at)[there].min())
    return math.sqrt(mixed / slowest)
