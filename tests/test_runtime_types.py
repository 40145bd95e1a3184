"""The shapes in the signatures are true: the library runs with jaxtyping and beartype checking every call."""

import subprocess
import sys

SCRIPT = """
from jaxtyping import install_import_hook

with install_import_hook("trivgeo", "beartype.beartype"):
    import trivgeo.groups, trivgeo.actions, trivgeo.sde, trivgeo.inversion
import torch
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.groups import BurgersSymmetry, HeatSymmetry, Heisenberg, SL, Translation
from trivgeo.inversion import TIED, DomainDistance, TestTimeEquivariant, calibrated_scale
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, forward_noising, reverse_diffusion

generator = torch.Generator().manual_seed(0)
for group in (SL(2), Heisenberg(2), Translation(3), HeatSymmetry(0.1, scale=0.1), BurgersSymmetry()):
    for batch in ((), (3,), (2, 1, 3)):
        v = 0.3 * torch.randn(*batch, group.dim, generator=generator)
        g = group.exp(v)
        group.log(g), group.has_log(g), group.Ad(g), group.log_modular(g), group.retract(g, v), group.perturb(g, v)
        group.algebra.bracket(v, v), group.algebra.ad(v), group.left_jacobian(v)
heat = HeatSymmetry(0.1, scale=[0.02, 0.35, 0.003, 0.35, 0.02, 0.5])
action = heat.action()
g = heat.exp(torch.randn(2, 6, generator=generator, dtype=torch.float64))
jets = torch.rand(2, 7, 3, generator=generator, dtype=torch.float64)
action(g, jets), action.is_valid(g, jets), action.jacobian(g, jets), action.log_abs_det_jacobian(g, jets)
x = torch.linspace(0, 6.28, 20, dtype=torch.float64)
data = OperatorInput(
    torch.stack([x, 0 * x, torch.sin(2 * x)], -1)[None], torch.cartesian_prod(x[::19], x)[None]
)
energy = DomainDistance((0.0, 6.28), (0.0, 6.28), (-1.0, 1.0))
calibrated_scale(OperatorAction(action), energy, data, num_samples=64, generator=generator)
inverter = TIED(OperatorAction(action), energy, steps=3, num_hypotheses=4)
result = inverter(data, generator=generator)
result.best(), result.best_energy(), result.found
TestTimeEquivariant(lambda z: torch.cat([z.query, z.query[..., :1]], -1), inverter, action)(data, generator=generator)
schedule = GeometricSchedule(0.1, 1.0)
score = EnergyScore(lambda e: e.square().sum((-1)), NoiseKernel(heat, schedule, 5), 3)
reverse_diffusion(heat, schedule, score, num_samples=4, steps=5, generator=generator)
forward_noising(heat, schedule, heat.identity(3), generator=generator)
try:
    heat.algebra.ad(torch.zeros(6, dtype=torch.long))
except Exception as error:
    assert "beartype" in type(error).__module__ or "jaxtyping" in type(error).__module__, error
    print("checked")
"""


def test_signatures_are_checked_and_true() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "checked" in run.stdout
