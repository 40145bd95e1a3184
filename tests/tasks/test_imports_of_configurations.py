"""Networks of the user's own, in modules that configurations import: trained in one process, tested in another."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from tasks import checkpoints
from tasks.allowed_classes import import_modules
from tasks.cli import main
from tasks.run_identity import identity
from tests.tasks.images.test_new_image_set import FIT, TEST, run
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.networks import Network
from trivgeo.training import AtomicCheckpointIO

NETWORK = '''
import torch
from tasks.images.models import ImageClassifier


class Linear(ImageClassifier):
    """One linear layer."""

    def __init__(self, images):
        super().__init__(images)
        self.layer = torch.nn.Linear(images[0] * images[1] * images[2], images[3])

    @property
    def architecture(self):
        return {"images": list(self.images)}

    def _logits(self, x):
        return self.layer(x.flatten(1))
'''
SOURCE = {"class_path": "tasks.images.mnist.BundledSample"}


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workplace: None) -> str:
    """A module in the working folder."""
    Path("own_linear.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_linear", raising=False)
    return "own_linear"


def test_a_network_is_tested_in_another_process_than_it_was_trained_in(
    own_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here in this one, which forgets the module."""
    training = FIT["model"]["init_args"] | {"network": {"class_path": f"{own_module}.Linear"}}
    data = {"source": SOURCE, "batch_size": 100, "validation": 300}
    fit = {
        "trainer": FIT["trainer"] | {"max_epochs": 1},
        "model": FIT["model"] | {"init_args": training},
        "data": FIT["data"] | {"init_args": data},
    }
    Path("fit.yaml").write_text(yaml.safe_dump(fit))
    trainer = main(["fit", "--config=fit.yaml"]).trainer
    assert isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO)
    monkeypatch.delitem(sys.modules, own_module)  # as in a process that has only read the configuration
    drawn = {**TEST["data"]["init_args"], "source": SOURCE, "limit": 3, "seeds": [3]}
    model = {**TEST["model"]["init_args"], "figure": None}
    test = TEST | {
        "model": TEST["model"] | {"init_args": model},
        "data": TEST["data"] | {"init_args": drawn},
    }
    with pytest.raises(ValueError, match=rf"'imports: \[{own_module}\]'"):
        run("test", test)
    file = "checkpoints/colours.safetensors"
    with pytest.raises(CheckpointError, match=own_module):
        checkpoints.load_checkpoint(Network, file)
    run("test", test | {"imports": [own_module]})
    document = json.loads(Path("out/results.json").read_text())
    assert len(document["rows"]) == 3
    assert document["config"]["imports"] == [own_module]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("os", "modules of yours"),
        ("subprocess", "modules of yours"),
        ("builtins", "modules of yours"),
        ("numpy.linalg", "modules of yours"),
        ("own_linear.missing", "can be imported"),
        ("broken", "can be imported"),
        ("no_module_of_this_name", "PYTHONPATH"),
        ("__main__", "PYTHONPATH"),
        ("class", "PYTHONPATH"),
        ("own_linear.py", "can be imported"),
        ("./own_linear", "dotted names"),
        ("../own_linear", "dotted names"),
        (".own_linear", "dotted names"),
        ("", "dotted names"),
        ("own linear", "dotted names"),
    ],
)
def test_what_is_not_imported(name: str, reason: str, own_module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of others, and what is none."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as of a script, whatever runs the tests
    Path("broken.py").write_text("a module with an error")
    with pytest.raises(ConfigurationError, match=f"^imports: .*{reason}"):
        import_modules([name])


def test_installed_packages_are_imported_if_the_user_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVGEO_PACKAGES", "sklearn,yaml")
    import_modules(["yaml", "tasks.images.vae", "trivgeo.tasks.images.vae"])
    with pytest.raises(ConfigurationError, match="modules of yours"):
        import_modules(["numpy"])


def test_the_source_of_imported_modules_is_part_of_a_run(own_module: str) -> None:
    """Rows that were made by another network are no rows of this run."""
    import_modules([own_module])
    before = identity({"imports": [own_module]})
    assert before != identity({})
    with Path("own_linear.py").open("a") as file:
        file.write("\n# changed\n")
    assert identity({"imports": [own_module]}) != before
