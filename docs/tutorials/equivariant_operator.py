"""An equivariant neural operator, for the KdV-Burgers equation: a search undoes the symmetry that moved a field."""

import torch

from trivgeo.actions import Field, FieldAction
from trivgeo.inversion import TIED, EquivariantOperator
from trivgeo.inversion.energies import FieldBox, FieldSpectrum
from trivgeo.pde import EvolutionEquation, GaussianField, SpectralEquation, solve
from trivgeo.symmetry import find_symmetries

KDV_BURGERS = EvolutionEquation("u_t + u*u_x = 0.2*u_xx - u_xxx")


class FNO(torch.nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.lift, self.read = torch.nn.Conv1d(1, width, 1), torch.nn.Conv1d(width, 1, 1)
        self.mix = torch.nn.ParameterList(torch.randn(width, width, 12, 2) / width for _ in range(3))

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        h = self.lift(u)
        for w in map(torch.view_as_complex, self.mix):
            h = h + torch.relu(torch.fft.irfft(torch.einsum("bck,cdk->bdk", torch.fft.rfft(h)[..., :12], w), n=32))
        return self.read(h)


u = GaussianField(0.2, 0.5, 6.0, 6, 16.0).sample(320, torch.manual_seed(0))(torch.arange(32.0).double() / 2)
spectral = SpectralEquation.from_equation(KDV_BURGERS)
both = [solve(spectral, Field.on_box(v[:, None].float(), [(0, 16)]), [0.0, 1.0], 0.02) for v in u.split(256)]
train, fno, action = both[0].values, FNO(), FieldAction(find_symmetries(KDV_BURGERS.residuals).group())
optimizer = torch.optim.Adam(fno.parameters(), 3e-3)
for pair in train[torch.randint(256, (400, 32))]:  # 400 steps of training on fields that were not moved
    (fno(pair[:, :, 0]) - pair[:, :, 1]).square().mean().backward()
    optimizer.step(), optimizer.zero_grad()
inverter = TIED(action, FieldSpectrum(FieldBox(both[0].slice(0).grid), train[:, :, :1]), evaluations=300)
moved = action(action.group.random(64, std=0.5), both[1])  # test fields: boosted, later, elsewhere
found = EquivariantOperator(fno, inverter, times=[1.0])(moved.slice(0), moved.slice(1).grid).values
alone, exact = fno(moved.values[:, :, 0]).unsqueeze(2), moved.slice(1).values
print("errors alone, inverted:", *(((p - exact).norm() / exact.norm()).item() for p in (alone, found)))
