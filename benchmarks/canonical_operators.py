"""Neural operators on fields that are shifted and boosted: alone, augmented, aligned by a network, inverted.

python -m benchmarks.canonical_operators [--equations burgers navier-stokes] [--fields 256] [--steps 800]

The setting is that of PACE-FNO (Xu, Mou, Zhang and He 2026, arXiv 2605.18606), from its abstract, which is all that was
at hand: equations on periodic domains; a Fourier neural operator; an estimator of Lie algebra coordinates that is
trained jointly with the operator under bounded perturbations; test sets with larger ones. Domains, viscosities and
distributions of fields, sizes of networks, losses, the bounds, and the refinement at inference are not known, and are
this script's own. Published is "up to 12 times" below augmentation beyond the bounds, for shifts and boosts, and less
for rotations with shifts; the error of each equation is not known. Rotations are here quarter turns, which a square
periodic box carries.

All methods see the same simulated solutions and train a network of the same size for the same number of steps:

- alone: on clean fields
- augmented: on fields moved anew in every batch, within the bounds
- augmented far: within the range of the test set
- aligned: a convolutional network estimates coordinates, the field is moved there, the operator predicts, and the
  result moves back; all is trained together on fields moved within the bounds, with the error of the coordinates in
  the loss
- inverted: `EquivariantOperator` with a `LearnedInverter` and `Newton`, and the network of clean fields
- true transformation: the same with the transformation known

Where fields are turned by quarters, too, the aligned network has a second one that tells the turn; the equivariant
operator tries all four, and takes the one of the lowest energy.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sympy as sp
import torch
from torch import Tensor, nn

from benchmarks.timing import environment
from tasks.fields.fno import SmallFNO
from trivgeo.actions import Field, FieldAction
from trivgeo.groups import from_generators
from trivgeo.inversion import EquivariantOperator, LearnedInverter
from trivgeo.inversion.energies import FieldComponents
from trivgeo.inversion.stages import Newton
from trivgeo.pde import FourierModes, SpectralEquation, solve
from trivgeo.symmetry import verify

LENGTH = 2 * math.pi
METHODS = ("alone", "augmented", "augmented far", "aligned", "inverted", "true transformation")


class Problem(NamedTuple):
    """An equation, the distribution of its fields, and how far they are moved.

    Attributes:
        equations: as text, or an equation of the library that has none.
        dims: of space.
        unknowns: of the fields; others of the equations, such as a pressure, no field holds.
        boosted: for each unknown the axis of the boost that adds to it, ``None`` for none.
        means: of the unknowns.
        sizes: amplitudes of the unknowns.
        points: along each axis.
        horizon: the time of the prediction.
        modes: of the Fourier neural operator, along each axis.
        width: of it.
        batch_size: of all trainings.
        solver: the equation of the fields, where it is not that of the texts.
        overtone: of the longest waves, by which a turned field differs from a shifted one.
        is_turned: whether fields are turned by quarters.
    """

    equations: list[str]
    dims: int
    unknowns: str
    boosted: tuple[int | None, ...]
    means: tuple[float, ...]
    sizes: tuple[float, ...]
    points: int
    horizon: float
    modes: int
    width: int
    batch_size: int
    solver: SpectralEquation | None = None
    overtone: float = 0.0
    is_turned: bool = False


class Motion(NamedTuple):
    """How fields are moved: shifted and boosted, and then turned.

    Attributes:
        moves: shifts and boosts along the axes, ``[b, 2, d]``.
        turns: quarter turns, ``[b]``.
    """

    moves: Tensor
    turns: Tensor


class IncompressibleFlow(SpectralEquation):
    """u_t + u . grad u + grad p = nu Laplace u with div u = 0, for velocities in the plane; p is projected out.

    Args:
        nu: kinematic viscosity.
    """

    def __init__(self, nu: float) -> None:
        self.nu = nu

    def linear(self, modes: FourierModes) -> Tensor:
        """-nu |k|^2."""
        return -self.nu * modes.squared

    def nonlinear(self, modes: FourierModes, u: Tensor) -> Tensor:
        """The part of -div(u u) that has no divergence."""
        a, b = modes.to_values(u).unbind(-3)
        aa, ab, bb = modes.to_modes(torch.stack([a * a, a * b, b * b], -3)).unbind(-3)
        kx, ky = modes.wave.unbind(-3)
        return self.solenoidal(modes, -1j * torch.stack([kx * aa + ky * ab, kx * ab + ky * bb], -3))

    @staticmethod
    def solenoidal(modes: FourierModes, u: Tensor) -> Tensor:
        """The part of coefficients ``[*batch, 2, *m]`` without divergence; it keeps means."""
        along = (modes.wave * u).sum(-3, keepdim=True) / modes.squared.where(modes.squared > 0, 1.0)
        return u - modes.wave * along


_ADVECTED = "{0}_t + u*{0}_x + v*{0}_y"
PROBLEMS = {
    "burgers": Problem(["u_t + u*u_x = 0.1*u_xx"], 1, "u", (0,), (0.0,), (0.7,), 64, 1.0, 16, 32, 32),
    "burgers-plane": Problem(
        [f"{_ADVECTED.format(w)} = 0.1*({w}_xx + {w}_yy)" for w in "uv"],
        2, "uv", (0, 1), (0.0, 0.0), (0.5, 0.5), 20, 1.0, 6, 16, 16,
    ),
    "shallow-water": Problem(
        [
            "h_t + diff(h*u, x) + diff(h*v, y) = 0",
            f"{_ADVECTED.format('u')} + h_x = 0.1*(u_xx + u_yy)",
            f"{_ADVECTED.format('v')} + h_y = 0.1*(v_xx + v_yy)",
        ],
        2, "huv", (None, 0, 1), (1.0, 0.0, 0.0), (0.1, 0.2, 0.2), 20, 1.0, 6, 16, 16,
    ),
    "navier-stokes": Problem(
        [*(f"{_ADVECTED.format(w)} + p_{x} = 0.1*({w}_xx + {w}_yy)" for w, x in ("ux", "vy")), "u_x + v_y = 0"],
        2, "uv", (0, 1), (0.0, 0.0), (0.5, 0.5), 20, 1.0, 6, 16, 16, IncompressibleFlow(0.1), 0.4,
    ),
}  # fmt: skip
PROBLEMS["navier-stokes-turned"] = PROBLEMS["navier-stokes"]._replace(is_turned=True)
SCALE = (2.0, 0.6)
"""Units of shifts and boosts in the group: about the size of those that are undone."""
NEAR, FAR = (0.5, 0.25), (math.pi, 1.0)
"""Largest shifts and boosts along each axis: the bounds of training, and of the test set, which begins beyond them."""


class Setting:
    """The moves of a problem, its simulated fields, and tests on them.

    Args:
        problem: which.
        fields: number of simulated solutions for training.
        seed: of everything.
    """

    def __init__(self, problem: Problem, fields: int, seed: int) -> None:
        self.problem, self.generator = problem, torch.Generator().manual_seed(seed)
        self.wave = self._frequencies()
        self.equation = problem.solver or SpectralEquation.from_equation(problem.equations)
        self.box = [(0.0, LENGTH)] * problem.dims
        self.start, self.end = self._simulated(fields)
        self.tests = self._simulated(128)

    def _frequencies(self) -> list[Tensor]:
        """The wave numbers along each axis, as of `torch.fft.rfftn`."""
        n, d = self.problem.points, self.problem.dims
        numbers = [torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)] * (d - 1)
        numbers.append(torch.arange(n // 2 + 1, dtype=torch.float64))
        return [k.reshape([-1 if i == axis else 1 for i in range(d)]) for axis, k in enumerate(numbers)]

    def _simulated(self, count: int) -> tuple[Tensor, Tensor]:
        """Fields whose longest waves have nearly fixed phases, and their solutions; means of zero but for ``means``."""
        p, g = self.problem, self.generator
        x = torch.arange(p.points, dtype=torch.float64) * LENGTH / p.points
        axes = [x.reshape([-1 if i == axis else 1 for i in range(p.dims)]) for axis in range(p.dims)]

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, *[1] * p.dims, generator=g, dtype=torch.float64)

        unknowns = []
        for c, (mean, size) in enumerate(zip(p.means, p.sizes, strict=True)):
            field = torch.zeros(count, *[p.points] * p.dims, dtype=torch.float64)
            for axis, place in enumerate(axes):
                phase = 0.25 * normal(count) + 0.8 * c + 0.5 * axis
                wave = torch.cos(place - phase) + p.overtone * torch.cos(2 * (place - phase))
                field = field + (1 + 0.15 * normal(count)) * wave
            for k in torch.cartesian_prod(*[torch.arange(-4, 5)] * p.dims).reshape(-1, p.dims).tolist():
                order = math.hypot(*k)
                if order >= 2:
                    angle = sum(k_i * place for k_i, place in zip(k, axes, strict=True))
                    waves = normal(count) * torch.cos(angle) + normal(count) * torch.sin(angle)
                    field = field + 0.4 / order**2.5 * waves
            unknowns.append(mean + size * field)
        start = Field.on_box(torch.stack(unknowns, 1), self.box)
        if isinstance(p.solver, IncompressibleFlow):
            modes = FourierModes.of(start.grid.steps[0, 0], start.counts)
            velocity = p.solver.solenoidal(modes, modes.to_modes(start.values[:, :, 0]))
            start = Field.on_box(modes.to_values(velocity), self.box)
        end = solve(self.equation, start, [p.horizon], 0.02 if p.dims == 1 else 0.05)
        return start.values[:, :, 0], end.values[:, :, 0]

    # Moves ---------------------------------------------------------------------------------------------------

    def moved(self, values: Tensor, moves: Tensor, elapsed: float) -> Tensor:
        """Fields shifted and boosted, after a time.

        Args:
            values: ``[b, c, *n]``.
            moves: shifts and boosts along the axes, ``[b, 2, d]``.
            elapsed: the time since the initial field.
        """
        p = self.problem
        place = moves[:, 0] + elapsed * moves[:, 1]
        angle: Tensor | float = 0.0
        for axis, k in enumerate(self.wave):
            angle = angle + place[:, axis].reshape(-1, *[1] * (p.dims + 1)) * k.to(values.dtype)
        assert isinstance(angle, Tensor)
        dims = tuple(range(-p.dims, 0))
        phase = torch.complex(torch.cos(angle), -torch.sin(angle))
        shifted = torch.fft.irfftn(torch.fft.rfftn(values, dim=dims) * phase, s=values.shape[2:], dim=dims)
        added = [torch.zeros_like(moves[:, 0, 0]) if a is None else moves[:, 1, a] for a in p.boosted]
        return shifted + torch.stack(added, 1).reshape(*values.shape[:2], *[1] * p.dims)

    def turned(self, values: Tensor, turns: Tensor) -> Tensor:
        """Fields turned by quarters: x to y and y to -x, with the components of vectors.

        Args:
            values: ``[b, c, n, n]``.
            turns: numbers of quarters, ``[b]``.
        """
        if not self.problem.is_turned:
            return values
        x, y = (self.problem.boosted.index(axis) for axis in (0, 1))
        found = [values]
        for _ in range(3):
            # at (x, y) stands what was at (y, -x)
            there = found[-1].flip(-1).roll(1, -1).transpose(-1, -2).unbind(1)
            found.append(
                torch.stack([-there[y] if c == x else there[x] if c == y else u for c, u in enumerate(there)], 1)
            )
        return torch.stack(found)[turns % 4, torch.arange(len(values))]

    def motion(self, count: int, least: Sequence[float], most: Sequence[float]) -> Motion:
        """Random shifts and boosts between bounds, of either sign, and quarter turns where there are any."""
        share = torch.rand(count, 2, self.problem.dims, generator=self.generator, dtype=torch.float64)
        sign = torch.randint(0, 2, share.shape, generator=self.generator) * 2 - 1
        low, high = (torch.tensor(bounds, dtype=torch.float64)[:, None] for bounds in (least, most))
        turns = torch.randint(0, 4 if self.problem.is_turned and max(most) else 1, (count,), generator=self.generator)
        return Motion(sign * (low + share * (high - low)), turns)

    def pairs(self, fields: tuple[Tensor, Tensor], motion: Motion) -> tuple[Tensor, Tensor]:
        """Moved initial fields and their solutions."""
        start, end = (
            self.turned(self.moved(values, motion.moves, elapsed), motion.turns)
            for values, elapsed in zip(fields, (0.0, self.problem.horizon), strict=True)
        )
        return start, end

    def action(self) -> FieldAction:
        """The group of shifts and boosts, whose fields `verify` has found to be symmetries."""
        p = self.problem
        space, t = sp.symbols("x y")[: p.dims], sp.Symbol("t")
        hidden = "p" if isinstance(p.solver, IncompressibleFlow) else ""  # its name is before all others
        fields = {}
        for axis in range(p.dims):
            along = [sp.Integer(i == axis) for i in range(p.dims)]
            fields[f"X{axis}"] = (*along, sp.S.Zero, *(sp.S.Zero for _ in p.unknowns))
            up = [sp.Integer(a == axis) for a in p.boosted]
            fields[f"C{axis}"] = (*(t * e for e in along), sp.S.Zero, *up)
        for field in fields.values():
            place = p.dims + 1
            if verify(p.equations, (*field[:place], *(sp.S.Zero for _ in hidden), *field[place:]), time=t) != 0:
                raise ValueError(f"expected a symmetry of {p.equations}, got {field}")
        unknowns = sp.symbols(list(p.unknowns))
        group = from_generators(fields, variables=[*space, t, *unknowns], scale=[*SCALE] * p.dims)
        return FieldAction(group, [True] * p.dims, regrid=True)

    def elements(self, action: FieldAction, moves: Tensor) -> Tensor:
        """The elements of moves, which all commute but for the order of shift and boost."""
        along = moves / torch.tensor(SCALE, dtype=moves.dtype)[:, None]
        return action.group.exp(along.transpose(1, 2).flatten(1))  # X0, C0, X1, C1


class Placed(nn.Module):
    """The operator of Li et al. with the coordinates as further inputs, from values to the change of values.

    Args:
        problem: sizes.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        c, d = len(problem.unknowns), problem.dims
        self.network = SmallFNO([problem.modes] * d, c + d, c, problem.width, 3)

    def forward(self, u: Tensor) -> Tensor:
        """``[b, c, *n]`` to the same."""
        x = torch.arange(u.shape[-1], dtype=u.dtype, device=u.device) / u.shape[-1]
        places = torch.stack(torch.meshgrid(*[x] * (u.ndim - 2), indexing="ij"))
        return u + self.network(torch.cat([u, places.expand(len(u), *places.shape)], 1))


class Aligned(nn.Module):
    """An operator between an estimate of the motion and its inverse.

    Args:
        setting: the moves.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self.operator = Placed(setting.problem)
        self.estimator = _reader(setting.problem, 2 * setting.problem.dims)
        self.compass = _reader(setting.problem, 4) if setting.problem.is_turned else None

    def estimated(self, u: Tensor) -> Tensor:
        """The shifts and boosts of fields that are not turned, ``[b, 2, d]``."""
        return self.estimator(u).unflatten(1, (2, -1)) * torch.tensor(FAR).to(u)[:, None]

    def forward(self, u: Tensor) -> Tensor:
        """``[b, c, *n]`` to the same."""
        turns = torch.zeros(len(u), dtype=torch.long) if self.compass is None else self.compass(u).argmax(1)
        u, elapsed = self.setting.turned(u, -turns), self.setting.problem.horizon
        moves = self.estimated(u)
        end = self.setting.moved(self.operator(self.setting.moved(u, -moves, 0.0)), moves, elapsed)
        return self.setting.turned(end, turns)

    def loss(self, u: Tensor, motion: Motion, bounds: Sequence[float]) -> Tensor:
        """The errors of the coordinates in units of their bounds, and the cross-entropy of the turns."""
        off = self.estimated(self.setting.turned(u, -motion.turns)) - motion.moves.float()
        loss = (off / torch.tensor(bounds)[:, None]).square().mean()
        return loss if self.compass is None else loss + nn.functional.cross_entropy(self.compass(u), motion.turns)


def _reader(problem: Problem, outputs: int) -> nn.Sequential:
    """A convolutional network of fields."""
    conv: type[nn.Conv1d | nn.Conv2d] = nn.Conv1d if problem.dims == 1 else nn.Conv2d
    channels, layers, size = len(problem.unknowns), [], problem.points
    for width in (16, 32, 32):
        layers += [conv(channels, width, 5, stride=2, padding=2, padding_mode="circular"), nn.GELU()]
        channels, size = width, (size + 1) // 2
    head = [nn.Flatten(), nn.Linear(channels * size**problem.dims, 64), nn.GELU(), nn.Linear(64, outputs)]
    return nn.Sequential(*layers, *head)


def relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    """|prediction - target| / |target| of each field, ``[b]``."""
    return (prediction - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)


def trained(network: nn.Module, setting: Setting, bounds: Sequence[float], steps: int) -> nn.Module:
    """Train a network by Adam and one cycle of the learning rate on fields moved anew in every batch.

    Args:
        network: from values to values.
        setting: the fields.
        bounds: the largest shifts and boosts.
        steps: of the optimiser.
    """
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-5)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        index = torch.randperm(len(setting.start), generator=setting.generator)[: setting.problem.batch_size]
        motion = setting.motion(len(index), (0.0, 0.0), bounds)
        u, target = (v.float() for v in setting.pairs((setting.start[index], setting.end[index]), motion))
        loss = relative_error(network(u), target).mean()
        if isinstance(network, Aligned):
            loss = loss + 0.1 * network.loss(u, motion, bounds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
    return network.eval()


def inverted(setting: Setting, network: nn.Module, steps: int, seed: int) -> Callable[[Tensor, Motion | None], Tensor]:
    """The equivariant operator of a network: values and their known motion, or none, to values.

    Args:
        setting: the fields.
        network: trained on clean fields.
        steps: of the learned inverter.
        seed: of it.
    """
    p, action = setting.problem, setting.action()
    clean = Field.on_box(setting.start, setting.box)

    def transformations(count: int, generator: torch.Generator | None) -> Tensor:
        uniform = torch.rand(count, 2, p.dims, generator=generator, dtype=torch.float64) * 2 - 1
        return setting.elements(action, uniform * torch.tensor(FAR, dtype=torch.float64)[:, None])

    learned = LearnedInverter(action, FieldComponents(clean), seed=seed)
    learned.fit(clean, transformations, steps=steps, batch_size=96 // p.dims, seconds=None, progress=False)
    operator = EquivariantOperator(_Single(network), learned.then(Newton(3)), [p.horizon])

    def predict(u: Tensor, motion: Motion | None) -> Tensor:
        if motion is None:
            every = [torch.full((len(u),), k) for k in range(4 if p.is_turned else 1)]
            fields = [Field.on_box(setting.turned(u, -turns), setting.box) for turns in every]
            found = [operator.inverter(f, generator=torch.Generator().manual_seed(seed)) for f in fields]
            turns = torch.stack([result.energies.amin(1) for result in found]).argmin(0)
            g = torch.stack([result.best() for result in found])[turns, torch.arange(len(u))]
        else:
            turns, g = motion.turns, setting.elements(action, motion.moves)
        initial = Field.on_box(setting.turned(u, -turns), setting.box)
        return setting.turned(operator.predict(initial, g).values[:, :, 0], turns)

    return predict


class _Single(nn.Module):
    """A network in single precision within double precision."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, u: Tensor) -> Tensor:
        """Values to values of the dtype that came."""
        return self.network(u.float()).to(u.dtype)


def compared(problem: Problem, fields: int, steps: int, seed: int = 0) -> dict[str, Any]:
    """Errors of all methods on fields moved within the bounds and beyond them, and the seconds of each.

    Args:
        problem: which.
        fields: simulated solutions for training.
        steps: of each training.
        seed: of everything.
    """
    setting, rows, seconds = Setting(problem, fields, seed), {}, {}
    near = setting.motion(len(setting.tests[0]), (0.0, 0.0), NEAR)
    far = setting.motion(len(setting.tests[0]), NEAR, FAR)
    sets = {"within": (near, setting.pairs(setting.tests, near)), "beyond": (far, setting.pairs(setting.tests, far))}
    nets: dict[str, nn.Module] = {}
    for name, bounds in (("alone", (0.0, 0.0)), ("augmented", NEAR), ("augmented far", FAR), ("aligned", NEAR)):
        before = time.process_time()
        torch.manual_seed(seed)
        nets[name] = trained(Aligned(setting) if name == "aligned" else Placed(problem), setting, bounds, steps)
        seconds[name] = time.process_time() - before
    before = time.process_time()
    ours = inverted(setting, nets["alone"], steps // (1 + problem.dims), seed)
    seconds["inverted"] = time.process_time() - before
    for which, (motion, (u, target)) in sets.items():
        with torch.no_grad():
            errors = {name: relative_error(net(u.float()).to(u), target) for name, net in nets.items()}
        errors["inverted"] = relative_error(ours(u, None), target)
        errors["true transformation"] = relative_error(ours(u, motion), target)
        rows[which] = {name: float(errors[name].detach().mean()) for name in METHODS}
    return {"errors": rows, "cpu_seconds": seconds, "fields": fields, "steps": steps, "width": problem.width}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.canonical_operators")
    parser.add_argument("--equations", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--fields", type=int, default=256, help="simulated solutions for training")
    parser.add_argument("--steps", type=int, default=800, help="of each training in one dimension; a half in the plane")
    parser.add_argument("--width", type=int, help="channels of the Fourier neural operators; default: the problem's")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "canonical-operators-cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.equations:
        problem = PROBLEMS[name] if options.width is None else PROBLEMS[name]._replace(width=options.width)
        result = compared(problem, options.fields, options.steps // problem.dims)
        kept[name] = result | {"environment": environment(torch.device("cpu"))}
        options.out.write_text(json.dumps(kept, indent=1) + "\n")
        print(name)
        for which, errors in result["errors"].items():
            print(f"  {which:8}", ", ".join(f"{m} {e:.4f}" for m, e in errors.items()))
        print("  seconds ", ", ".join(f"{m} {e:.0f}" for m, e in result["cpu_seconds"].items()))


if __name__ == "__main__":
    main()
