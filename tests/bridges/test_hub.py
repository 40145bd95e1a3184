"""Models on a hub, without a network: folders written and read, and what would be uploaded and downloaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

from tests.helpers import seeded
from trivgeo.bridges import hub
from trivgeo.bridges.hub import HubGroupDiffusion, HubLearnedInverter
from trivgeo.errors import CheckpointError
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import SE, SO, Torus
from trivgeo.inversion import LearnedInverter
from trivgeo.inversion.transformations import rotations


@pytest.fixture(scope="module")
def model() -> HubGroupDiffusion:
    torch.manual_seed(0)
    samples = Torus(2).exp(0.3 * torch.randn(64, 2, generator=seeded(0)))
    return HubGroupDiffusion(Torus(2), "flow", seed=1).fit(samples, steps=2)


def test_a_folder_and_back(model: HubGroupDiffusion, tmp_path: Path) -> None:
    """Weights, settings and the class; the folder holds a file that `GroupDiffusion.load` reads, and a card."""
    model.save_pretrained(tmp_path / "angles")
    assert sorted(p.name for p in (tmp_path / "angles").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    read = HubGroupDiffusion.from_pretrained(tmp_path / "angles", group=Torus(2))
    plain = GroupDiffusion.load(tmp_path / "angles" / "model.safetensors", Torus(2))
    assert type(read) is HubGroupDiffusion
    draws = [m.sample(5, generator=seeded(1)) for m in (model.eval(), read, plain)]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    card = (tmp_path / "angles" / "README.md").read_text()
    assert "library_name: trivgeo" in card
    assert 'HubGroupDiffusion.from_pretrained("this repository", group=...)' in card
    with pytest.raises(CheckpointError):
        HubGroupDiffusion.from_pretrained(tmp_path / "angles", group=SE(2))


def test_a_learned_inverter(tmp_path: Path) -> None:
    action = SO(2).action()
    clean = torch.randn(32, 6, 2, generator=seeded(2)) * torch.tensor([1.0, 0.3])
    inverter = HubLearnedInverter(action).fit(clean, rotations(SO(2), 30.0), steps=2)
    inverter.save_pretrained(tmp_path / "clouds")
    read = HubLearnedInverter.from_pretrained(tmp_path / "clouds", action=action)
    assert isinstance(read, LearnedInverter)
    results = [each(clean[:3], generator=seeded(3)).best() for each in (inverter, read)]
    torch.testing.assert_close(*results)


def test_repositories(model: HubGroupDiffusion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to the hub comes back from there: a folder stands for it."""
    store = tmp_path / "store"

    class Api:
        def __init__(self, **settings: Any) -> None: ...

        def create_repo(self, repo_id: str, **settings: Any) -> Any:
            return type("Repository", (), {"repo_id": repo_id})

        def upload_folder(self, repo_id: str, folder_path: Any, **settings: Any) -> str:
            shutil.copytree(folder_path, store / repo_id)
            return f"https://huggingface.co/{repo_id}"

    def download(repo_id: str, filename: str, **settings: Any) -> str:
        return str(store / repo_id / filename)

    monkeypatch.setattr(huggingface_hub.hub_mixin, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub.hub_mixin, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert model.push_to_hub("me/angles") == "https://huggingface.co/me/angles"
    assert (store / "me/angles" / hub.FILE).is_file()
    read = HubGroupDiffusion.from_pretrained("me/angles", group=Torus(2))
    assert torch.equal(model.eval().sample(3, generator=seeded(4)), read.sample(3, generator=seeded(4)))
