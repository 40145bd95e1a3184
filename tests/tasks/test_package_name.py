"""The applications under both their names: `tasks` in a checkout, `trivgeo.tasks` installed; files say `tasks`."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.cli import main
from tasks.config_inheritance import map_texts, resolved
from tasks.files import recording
from tasks.images.convnet import ConvNet
from tasks.run_identity import identity
from trivgeo._applications import applications, importable, is_ours, portable
from trivgeo.networks import class_path

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = {
    "model": {"class_path": "tasks.so10.sampling.CornerSampling", "init_args": {"figure": "a.png", "num_samples": 4}},
    "data": {"class_path": "tasks.so10.data.SampleRequests"},
    "seed_everything": 0,
}

INSTALLED = f"""
import importlib.util, json, sys
from importlib.abc import MetaPathFinder

class Editable(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "trivgeo.tasks":
            return importlib.util.spec_from_file_location(
                name, {str(ROOT / "tasks" / "__init__.py")!r}, submodule_search_locations=[{str(ROOT / "tasks")!r}]
            )

sys.meta_path.insert(0, Editable())
"""
"""What an editable install puts in the way of imports."""


def run(code: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", INSTALLED + code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_paths_in_a_checkout() -> None:
    assert applications() == "tasks"
    for path in ("tasks.images.vae.VAE", "trivgeo.tasks.images.vae.VAE"):
        assert importable(path) == portable(path) == "tasks.images.vae.VAE"
        assert is_ours(path)
    for path in ("tasks.of_a_user.Class", "runs/tasks.images", "trivgeo.groups.SE", "tasks", "torch.nn.ReLU", "cli"):
        assert importable(path) == portable(path) == path
    assert importable("trivgeo.tasks") == "tasks"
    assert is_ours("trivgeo.groups.SE")
    assert not is_ours("torch.nn.ReLU")


def test_installed_and_checked_out_are_one() -> None:
    """Class paths, headers of networks and what determines the numbers of a run; no class is there twice."""
    settings = "--model.energy={class_path: tasks.images.energies.VAEEnergy, init_args: {names: [tasks.pde.heat.A]}}"
    arguments = ["test", "--config=heat/tied", "--data.source=tasks.images.mnist.BundledSample", settings, "tasks.png"]
    code = f"""
from trivgeo.tasks.command import main
assert main(["list"]) == 0
from trivgeo.tasks.cli import TasksParser
from trivgeo.tasks.config_inheritance import resolved
from trivgeo.tasks.images.convnet import ConvNet
from trivgeo.tasks.run_identity import identity
from trivgeo.networks import class_path
from lightning.pytorch import LightningDataModule

parser = TasksParser()
parser.add_subclass_arguments(LightningDataModule, "data")
data = {{"class_path": "tasks.so10.data.SampleRequests", "init_args": {{"seeds": [0]}}}}
parsed = parser.parse_object({{"data": data}})
assert parsed.data.class_path == "trivgeo.tasks.so10.data.SampleRequests"
assert "class_path: tasks.so10.data.SampleRequests" in parser.dump(parsed)
try:
    import tasks
except ImportError as error:
    print(json.dumps([
        str(error), class_path(ConvNet([1, 40, 40, 10])), identity({CONFIG!r}), resolved({arguments!r}),
        [name for name in sys.modules if name.split(".")[0] == "tasks"],
    ]))
"""
    error, network, same, found, twice = json.loads(run(code).splitlines()[-1])
    assert error == "tasks: this process has imported the same files as trivgeo.tasks: import from there"
    assert network == class_path(ConvNet([1, 40, 40, 10])) == "tasks.images.convnet.ConvNet"
    with recording():  # of no files: other tests have read some
        assert same == identity(CONFIG)
    assert twice == []
    assert found[2] == "--data.source=trivgeo.tasks.images.mnist.BundledSample"
    assert found[4] == "tasks.png"
    for mine, theirs in zip(resolved(arguments), found, strict=True):
        assert tree(mine) == map_texts(tree(theirs), portable)
    assert "trivgeo.tasks.pde.heat.A" in str(tree(found[3]))


def tree(argument: str) -> Any:
    return yaml.safe_load(argument.partition("=")[2])


def test_the_other_order_is_refused_too() -> None:
    code = "import tasks\ntry:\n    import trivgeo.tasks\nexcept ImportError as error:\n    print(error)"
    assert run(code).strip().endswith("the same files as tasks: import from there")


@pytest.mark.parametrize("path", ["tasks.images.vae.VAE", "trivgeo.tasks.images.vae.VAE"])
def test_a_configuration_may_use_either_name(path: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"model": {"class_path": path}}))
    (text,) = resolved([f"--config={tmp_path / 'a.yaml'}"])
    assert yaml.safe_load(text.removeprefix("--config=")) == {"model": {"class_path": "tasks.images.vae.VAE"}}


def test_configurations_are_written_with_public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jsonargparse calls a class by its shortest path."""
    monkeypatch.setattr(sys, "argv", ["tasks"])
    config = [f"--config={ROOT / 'tasks' / 'configs' / 'affnist' / 'hybrid.yaml'}", "--print_config"]
    stepper = "--model.init_args.inverter.init_args.proposals.init_args.stepper=trivgeo.sde.solvers.RefiningStep"
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        main(["test", config[0], stepper, config[1]])
    assert "class_path: trivgeo.sde.solvers.RefiningStep" in out.getvalue()
    assert "trivgeo.sde.RefiningStep" not in out.getvalue()
