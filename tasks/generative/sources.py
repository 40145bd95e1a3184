"""Sets of elements: real torsion angles, and distributions that are drawn from."""

import math
import os
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from trivgeo.checks import check_count, check_fraction
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SO, SU, LieGroup, Torus
from trivgeo.sde import heat_kernel
from trivgeo.sde.noise import HeatKernel

from ..files import decompressed, read_bytes
from ..seeds import generator_of

RNA_VARIABLE = "TRIVGEO_RNA"
"""Environment variable that names the file of torsion angles."""

_NUM_ANGLES = 7  # torsion angles of a nucleotide
_TEST_SHARE = 0.1  # share of the rows that are kept for the test
_MAX_FILE_BYTES = 2**28  # bytes of a decompressed file


class Split(NamedTuple):
    """Elements of a group.

    Attributes:
        train: `[n, *element_shape]`.
        test: `[m, *element_shape]`.
    """

    train: Tensor
    test: Tensor


class ElementSource(ABC):
    """Source of elements of a group, for training and for a test.

    Attributes:
        group: group of the elements.
        names: names of the coordinates that pictures show, see `coordinates`.
        measure: measure of reported likelihoods, see `GroupDiffusion`; for angles "volume", as is usual for them.
    """

    group: LieGroup
    names: tuple[str, ...]
    measure: ClassVar[str] = "haar"

    @abstractmethod
    def split(self, seed: int) -> Split:
        """Elements for training and others for a test, a function of the seed."""

    def coordinates(self, g: Tensor) -> Tensor:
        """What pictures show of elements, `[m, c]`; by default angles in degrees."""
        return g.flatten(1).rad2deg().remainder(360.0)

    def log_density(self, g: Tensor) -> Tensor | None:
        """The true log-density, for the measure of `GroupDiffusion`, where it is known."""
        return None


class RNATorsions(ElementSource):
    """Seven backbone torsion angles of RNA nucleotides; one in ten is for the test.

    Args:
        path: a table, tab-separated and perhaps compressed, whose last seven columns are the angles in degrees; when
            None, what the environment variable TRIVGEO_RNA names.

    Raises:
        ConfigurationError: there is no such file, or a row is no such row.
    """

    measure = "volume"
    names = tuple(f"{angle} (deg)" for angle in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "chi"))

    def __init__(self, path: str | None = None) -> None:
        self.group = Torus(_NUM_ANGLES)
        found = path or os.environ.get(RNA_VARIABLE)
        if not found or not Path(found).is_file():
            raise ConfigurationError(f"{RNA_VARIABLE}: expected the file of torsion angles, got {found!r}")
        try:
            text = decompressed(read_bytes(found), _MAX_FILE_BYTES).decode()
            rows = [[float(x) for x in line.split("\t")[-_NUM_ANGLES:]] for line in text.splitlines() if line]
            self._angles = torch.tensor(rows, dtype=torch.float64).reshape(-1, _NUM_ANGLES).deg2rad()
        except (EOFError, OSError, zlib.error, ValueError, RuntimeError) as error:
            raise ConfigurationError(f"{found}: expected rows that end in seven angles: {error}") from error

    def split(self, seed: int) -> Split:
        order = torch.randperm(len(self._angles), generator=generator_of(seed))
        rows = self.group.project(self._angles).float()[order]
        test = round(_TEST_SHARE * len(rows))
        return Split(rows[test:], rows[:test])


class DrawnElements(ElementSource):
    """Elements of a distribution that can be drawn from.

    Args:
        train: number of elements for training.
        test: number of elements for the test.

    Raises:
        ConfigurationError: a count is below one.
    """

    def __init__(self, train: int, test: int) -> None:
        self.sizes = (check_count("train", train), check_count("test", test))

    @abstractmethod
    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        """Independent elements."""

    def split(self, seed: int) -> Split:
        generator = generator_of(seed)
        return Split(*(self.draw(size, generator).float() for size in self.sizes))


class Checkerboard(DrawnElements):
    """The uniform distribution on the dark fields of a checkerboard on T^2.

    Args:
        fields: along each side, an even number.
        train: see `DrawnElements`, also for `test`.

    Raises:
        ConfigurationError: the number of fields is odd, or a count is below one.
    """

    measure = "volume"
    names = ("theta 1 (deg)", "theta 2 (deg)")

    def __init__(self, fields: int = 4, train: int = 20_000, test: int = 2000) -> None:
        super().__init__(train, test)
        self.group = Torus(2)
        if check_count("fields", fields) % 2:
            raise ConfigurationError(f"fields: expected an even number, got {fields}")
        self.fields = fields

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        column = torch.randint(self.fields, (number,), generator=generator)
        row = 2 * torch.randint(self.fields // 2, (number,), generator=generator) + column % 2
        inside = torch.rand(number, 2, generator=generator, dtype=torch.float64)
        return 2.0 * math.pi * (torch.stack([column, row], -1) + inside) / self.fields - math.pi

    def log_density(self, g: Tensor) -> Tensor:
        field = ((self.group.project(g) + math.pi) * (self.fields / (2.0 * math.pi))).floor().long()
        dark = (field.sum(-1) % 2) == 0
        return torch.where(dark, math.log(2.0), -torch.inf).to(g.dtype)


class RotationMixture(DrawnElements):
    """Heat kernels about rotations that are drawn once, with equal weights.

    Args:
        modes: number of modes.
        std: standard deviation of the noise about each.
        train: see `DrawnElements`, also for `test`.
    """

    names = ("log x", "log y", "log z")

    def __init__(self, modes: int = 32, std: float = 0.15, train: int = 20_000, test: int = 2000) -> None:
        super().__init__(train, test)
        self.group = SO(3)
        self.std = std
        self.centres = self.group.random_haar(
            check_count("modes", modes), generator=generator_of(0), dtype=torch.float64
        )

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        which = torch.randint(len(self.centres), (number,), generator=generator)
        return self.group.compose(self.centres[which], _kernel(self.group).sample(self._variance(number), generator))

    def coordinates(self, g: Tensor) -> Tensor:
        return self.group.log(g)

    def log_density(self, g: Tensor) -> Tensor:
        away = self.group.compose(self.group.inverse(self.centres.to(g)), g.unsqueeze(1))
        logs = _kernel(self.group).log_density(away, self._variance(1).to(g).expand(away.shape[:2]))
        return logs.logsumexp(-1) - math.log(len(self.centres))

    def _variance(self, number: int) -> Tensor:
        return torch.full((number,), self.std**2, dtype=torch.float64)


class TimeEvolutions(DrawnElements):
    r"""Time evolutions :math:`e^{-i t H}` of quantum systems, as elements of SU(n).

    ``oscillator``: n points of a discretised harmonic oscillator, with a random frequency and centre, at a random time.
    ``ising``: the transverse-field Ising chain of :math:`\log_2 n` spins, with random couplings and fields. The
    trace of H is taken away.

    Args:
        n: the size of the matrices.
        system: "oscillator" or "ising".
        time: longest time of an evolution.
        spread: relative spread of the random parameters.
        train: see `DrawnElements`, also for `test`.

    Raises:
        ConfigurationError: the size does not fit the system, or a number is out of range.
    """

    def __init__(
        self,
        n: int,
        system: str = "oscillator",
        time: float = 1.0,
        spread: float = 0.3,
        train: int = 20_000,
        test: int = 2000,
    ) -> None:
        super().__init__(train, test)
        self.unitary = SU(n)
        self.group = self.unitary
        self.n, self.system, self.time, self.spread = n, system, time, check_fraction("spread", spread)
        if system not in ("oscillator", "ising") or (system == "ising" and n & (n - 1)):
            raise ConfigurationError(f"system: expected oscillator, or ising and n a power of 2, got {system!r}, {n}")
        self.names = ("Re U 11", "Im U 11", "Re U 12", "Im U 12")

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        h = self._oscillator(number, generator) if self.system == "oscillator" else self._ising(number, generator)
        trace = h.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] / self.n
        h = h - trace * torch.eye(self.n, dtype=h.dtype)
        t = self.time * (0.5 + 0.5 * torch.rand(number, 1, 1, generator=generator, dtype=torch.float64))
        zero = torch.zeros_like(h)
        return self.unitary.exp(self.unitary.vee(torch.stack([zero, -t * h], -1)))

    def coordinates(self, g: Tensor) -> Tensor:
        return g[:, 0, :2].flatten(1)

    def _random(self, number: int, generator: torch.Generator, *shape: int) -> Tensor:
        return 1.0 + self.spread * torch.randn(number, *shape, generator=generator, dtype=torch.float64)

    def _oscillator(self, number: int, generator: torch.Generator) -> Tensor:
        """Kinetic energy by second differences; frequency and centre are random."""
        x = torch.linspace(-1.0, 1.0, self.n, dtype=torch.float64)
        off = torch.ones(self.n - 1, dtype=torch.float64)
        kinetic = torch.eye(self.n, dtype=torch.float64) - 0.5 * (torch.diag(off, 1) + torch.diag(off, -1))
        frequency = 2.0 * self._random(number, generator, 1)
        centre = self._random(number, generator, 1) - 1.0
        return kinetic + torch.diag_embed(0.5 * frequency**2 * (x - centre) ** 2)

    def _ising(self, number: int, generator: torch.Generator) -> Tensor:
        """-sum J Z Z - sum B X."""
        spins = self.n.bit_length() - 1
        z, x = torch.tensor([[1.0, 0.0], [0.0, -1.0]]).double(), torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()

        def at(operator: Tensor, place: int) -> Tensor:
            left, right = torch.eye(2**place).double(), torch.eye(2 ** (spins - 1 - place)).double()
            return torch.kron(torch.kron(left, operator), right)

        pairs = torch.stack([at(z, k) @ at(z, k + 1) for k in range(spins - 1)])
        fields = torch.stack([at(x, k) for k in range(spins)])
        couplings = self._random(number, generator, spins - 1)
        strengths = self._random(number, generator, spins)
        return -torch.einsum("bk,kij->bij", couplings, pairs) - torch.einsum("bk,kij->bij", strengths, fields)


class RotationEvolutions(DrawnElements):
    r"""Evolutions :math:`e^{t A}` on SO(n) of a chain of rotors with random couplings between neighbours.

    Args:
        n: see `TimeEvolutions`, also for `time`, `spread`, `train` and `test`.
    """

    def __init__(self, n: int, time: float = 1.0, spread: float = 0.3, train: int = 20_000, test: int = 2000) -> None:
        super().__init__(train, test)
        self.group, self.n, self.time, self.spread = SO(n), n, time, check_fraction("spread", spread)
        self.names = ("R 11", "R 12", "R 13")

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        couplings = 1.0 + self.spread * torch.randn(number, self.n - 1, generator=generator, dtype=torch.float64)
        t = self.time * (0.5 + 0.5 * torch.rand(number, 1, 1, generator=generator, dtype=torch.float64))
        upper = torch.diag_embed(couplings, 1)
        return torch.linalg.matrix_exp(t * (upper - upper.mT))

    def coordinates(self, g: Tensor) -> Tensor:
        return g[:, 0, :3]


def _kernel(group: LieGroup) -> HeatKernel:
    kernel = heat_kernel(group)
    assert kernel is not None
    return kernel
