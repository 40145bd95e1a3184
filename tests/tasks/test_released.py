"""The option `--released`: files of the published form in place of our networks, and errors where they are missing."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.cli import main
from tasks.command import main as command
from tasks.images.fid import FrechetDistance, load_features
from tasks.pde.burgers import BurgersEquation
from tasks.pde.heat import HeatEquation
from tasks.pde.released import load_operator
from tasks.released import FILES
from tests.helpers import assert_relative, seeded
from trivgeo.errors import CheckpointError, ConfigurationError


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 0.3 * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def layers(inputs: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Weights `[inputs, outputs]` and biases of seven layers."""
    sizes = [inputs, *[100] * 7]
    return [
        (draw(a, b, seed=seed + i) / a**0.5, draw(b, seed=seed + 50 + i)) for i, (a, b) in enumerate(pairwise(sizes))
    ]


def write_heat(path: Path) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """A file of the published form with drawn weights."""
    parts = {"branch": layers(200, 1), "trunk": layers(2, 2)}
    state = {"b.0": torch.tensor(0.25)}
    for name, rows in parts.items():
        for i, (weight, bias) in enumerate(rows):
            state |= {f"{name}.linears.{i}.weight": weight.mT.float(), f"{name}.linears.{i}.bias": bias.float()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model_state_dict": state, "optimizer_state_dict": {}}, path)
    return parts["branch"], parts["trunk"]


def through(x: Tensor, rows: list[tuple[Tensor, Tensor]]) -> Tensor:
    """A tanh network."""
    for place, (weight, bias) in enumerate(rows):
        x = (x if place == 0 else x.tanh()) @ weight + bias
    return x


def gated(x: Tensor, rows: list[tuple[Tensor, Tensor]], u: tuple[Tensor, Tensor], v: tuple[Tensor, Tensor]) -> Tensor:
    """The published network with two encodings of its input."""
    first, second = (x @ u[0] + u[1]).tanh(), (x @ v[0] + v[1]).tanh()
    for weight, bias in rows[:-1]:
        z = (x @ weight + bias).tanh()
        x = z * first + (1 - z) * second
    return x @ rows[-1][0] + rows[-1][1]


def test_network_of_the_heat_equation(tmp_path: Path) -> None:
    branch, trunk = write_heat(tmp_path / "heat.pt")
    loaded = load_operator(str(tmp_path / "heat.pt"))
    assert loaded.metadata == HeatEquation().description
    u, points = draw(3, 200, seed=7), draw(3, 5, 2, seed=8)
    expected = torch.einsum("bk,bqk->bq", through(u, branch), through(points, trunk).tanh()) + 0.25
    assert_relative(loaded.network(u, points), expected, 1e-5)
    # Taylor mode, too: u_x by central differences
    step = torch.tensor([1e-5, 0.0], dtype=torch.float64)
    slope = (loaded.network(u, points + step) - loaded.network(u, points - step)) / 2e-5
    assert_relative(loaded.network.forward_jet(u, points).x, slope, 1e-6)


def test_network_of_burgers_equation(tmp_path: Path) -> None:
    parts, flat = [], []
    for inputs, seed in ((101, 3), (2, 4)):
        rows = layers(inputs, seed)
        encoders = [(draw(inputs, 100, seed=seed + 90 + i), draw(100, seed=seed + 95 + i)) for i in range(2)]
        parts.append((rows, *encoders))
        flat += [x.flatten() for pair in [*rows, *encoders] for x in pair]
    np.save(tmp_path / "burgers.npy", torch.cat(flat).float().numpy())
    loaded = load_operator(str(tmp_path / "burgers.npy"))
    assert loaded.metadata == BurgersEquation().description
    u, points = draw(3, 101, seed=7), draw(3, 5, 2, seed=8)
    expected = torch.einsum("bk,bqk->bq", gated(u, *parts[0]), gated(points.flip(-1), *parts[1]))
    assert_relative(loaded.network(u, points), expected, 1e-5)


def lenet() -> dict[str, Tensor]:
    shapes = {
        "convnet.c1": (6, 1, 5, 5),
        "convnet.c3": (16, 6, 5, 5),
        "convnet.c5": (120, 16, 5, 5),
        "fc.f6": (84, 120),
        "fc.f7": (10, 84),
    }
    found = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        found |= {f"{name}.weight": draw(*shape, seed=seed).float(), f"{name}.bias": draw(shape[0], seed=seed).float()}
    return found


def test_published_features(tmp_path: Path) -> None:
    state = lenet()
    torch.save(state, tmp_path / "lenet.pth")
    network = load_features(str(tmp_path / "lenet.pth"))
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5),
        torch.nn.Tanh(),
        torch.nn.MaxPool2d(2, 2, 1),
        torch.nn.Conv2d(6, 16, 5),
        torch.nn.Tanh(),
        torch.nn.MaxPool2d(2, 2, 1),
        torch.nn.Conv2d(16, 120, 5),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(120, 84),
        torch.nn.Tanh(),
    )
    net.load_state_dict(dict(zip(net.state_dict(), list(state.values())[:8], strict=True)))
    images = torch.rand(90, 1, 28, 28, generator=seeded(0))
    assert_relative(network.features(images), net(images).detach(), 1e-5)
    distance = FrechetDistance(network)
    distance.add_reference(images)
    distance.add(images)
    assert abs(distance.compute()) < 1e-2


@pytest.mark.usefixtures("workplace")
def test_a_test_with_a_published_network(tmp_path: Path) -> None:
    write_heat(tmp_path / "folder" / FILES["heat_deeponet_augmented"])
    small = {"data.init_args.cases": 2, "data.init_args.nx": 8, "data.init_args.nt": 5, "data.init_args.seeds": "[0]"}
    small |= {"model.init_args.inverter.init_args.num_hypotheses": 2, "model.init_args.finish": "null"}
    small |= {"model.init_args.inverter.init_args.pruning": "[]", "model.init_args.inverter.init_args.steps": 3}
    options = [f"--{name}={value}" for name, value in small.items()]
    main(["test", "--config=heat/tied_augmented", f"--released={tmp_path / 'folder'}", *options])
    document = json.loads((tmp_path / "runs/heat/tied_augmented_released/results.json").read_text())
    assert any(name.endswith("heat_pde_deeponet_data_aug.pt") for name in document["files"])
    given = document["config"]["model"]["init_args"]
    assert given["energy"]["init_args"]["u"] == [-1.0, 1.0]  # that of A = 1, as published
    assert given["trained_on"]["init_args"]["amplitude_max"] == 1.0
    # the saved configuration runs again by itself
    saved = tmp_path / "runs/heat/tied_augmented_released/config.yaml"
    main(["test", f"--config={saved}", "--trainer.default_root_dir=again"])
    again = json.loads((tmp_path / "again/results.json").read_text())
    assert again["metrics"] == document["metrics"]


@pytest.mark.usefixtures("workplace")
def test_missing_files_are_named_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match=r"expected pretrained_checkpoints/heat_pde_deeponet.pt in .*nowhere"):
        main(["test", "--config=heat/tied", f"--released={tmp_path / 'nowhere'}"])
    assert command(["test", "--config=burgers/tied", f"--released={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(ConfigurationError, match="expected a test with one of heat_deeponet"):
        main(["test", "--config=kdv/tied", f"--released={tmp_path}"])
    with pytest.raises(ConfigurationError, match="expected trivgeo test, got fit"):
        main(["fit", "--config=heat/deeponet", f"--released={tmp_path}"])
    for name, load in (("damaged.pt", load_operator), ("damaged.npy", load_operator), ("damaged.pth", load_features)):
        (tmp_path / name).write_bytes(b"no network")
        with pytest.raises(CheckpointError, match=f"{name}: expected"):
            load(str(tmp_path / name))
