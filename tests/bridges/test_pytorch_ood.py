"""Detectors of pytorch-ood as energies: the score, its gradient, and a search that undoes rotations by it."""

import pytest
import torch
from pytorch_ood.detector import EnergyBased, Mahalanobis, MaxLogit
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers import seeded
from trivgeo.bridges.pytorch_ood import OutlierEnergy
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SO
from trivgeo.inversion import ITS, TIED
from trivgeo.inversion.transformations import rotations


class Template(nn.Module):
    """Logits of a cloud: minus squared distances to two clean ones."""

    def __init__(self) -> None:
        super().__init__()
        clean = torch.randn(2, 12, 2, generator=seeded(0), dtype=torch.float64) * torch.tensor([1.0, 0.3])
        self.clean = nn.Parameter(clean)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(-(x.unsqueeze(1) - self.clean).square().mean((-2, -1)))


def test_the_energy_is_the_score_of_the_detector() -> None:
    network = Template().eval()
    x = torch.randn(5, 12, 2, generator=seeded(1), dtype=torch.float64)
    for detector in (EnergyBased(network), MaxLogit(network)):
        energy = OutlierEnergy(detector)
        torch.testing.assert_close(energy(x), detector.predict(x))
    expected = -torch.logsumexp(network(x), -1)
    torch.testing.assert_close(OutlierEnergy(EnergyBased(network))(x), expected)
    assert [name for name, _ in OutlierEnergy(EnergyBased(network)).named_parameters()] == ["model.clean"]


def test_a_search_by_a_detector() -> None:
    """The network is in evaluation mode while energies are evaluated, whatever its mode; clean clouds are restored."""
    network = Template().train()
    action, clean = SO(2).action(), network.clean.detach()
    g = rotations(SO(2))(6, seeded(2))
    moved = action(g, clean.repeat(3, 1, 1))
    inverter = TIED(action, OutlierEnergy(EnergyBased(network, t=0.05)), evaluations=150)
    result = inverter(moved, generator=seeded(3))
    torch.testing.assert_close(result.restore(moved), clean.repeat(3, 1, 1), rtol=0.0, atol=1e-3)
    assert network.training


def test_fitted_detectors() -> None:
    """Many compute without gradients: searches with gradients are refused, with the reason, and `ITS` needs none."""
    features = nn.Sequential(nn.Flatten(), nn.Linear(24, 4))
    x = torch.randn(64, 12, 2, generator=seeded(4))
    loader = DataLoader(TensorDataset(x, torch.arange(64) % 2), batch_size=32)
    detector = Mahalanobis(features).fit(loader)
    energy = OutlierEnergy(detector)
    torch.testing.assert_close(energy(x), detector.predict(x))
    action = SO(2).action()
    with pytest.raises(ConfigurationError, match="Mahalanobis, which computes without gradients: ITS needs none"):
        TIED(action, energy, evaluations=20)(x[:2])
    assert bool(ITS(action, energy)(x[:2], generator=seeded(5)).has_usable.all())


def test_what_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"predict\(x\)"):
        OutlierEnergy(nn.Identity())
    with pytest.raises(ShapeError, match="one score for each of 2"):
        OutlierEnergy(EnergyBased(nn.Unflatten(1, (2, 3))))(torch.zeros(2, 6))
