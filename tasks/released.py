"""The option `--released FOLDER` of a test: the networks of Kim et al. (2026), from a checkout of their code."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trivgeo._applications import importable
from trivgeo.errors import CheckpointError, ConfigurationError

from .files import read_bytes

Network = TypeVar("Network")

FILES = {
    "heat_deeponet": "pretrained_checkpoints/heat_pde_deeponet.pt",
    "heat_deeponet_augmented": "pretrained_checkpoints/heat_pde_deeponet_data_aug.pt",
    "burgers_deeponet": "pretrained_checkpoints/burgers_pde_deeponet.npy",
    "features": "src/utils/MNIST_FID/lenet.pth",
}
"""Files in a checkout of the published code, by the names of our checkpoints in whose place they are."""

# The published energy of the network of many amplitudes is that of A = 1, where the network is best.
_AUGMENTED: dict[str, tuple[str, dict[str, Any]]] = {
    "energy": ("tasks.pde.energies.TrainingBox", {"u": (-1.0, 1.0), "fill": True}),
    "trained_on": ("tasks.pde.heat.HeatEquation", {"amplitude_min": 1.0, "amplitude_max": 1.0, "nu": 0.1}),
}


def use_released(config: Any, folder: str) -> None:
    """Give a test the published networks in place of ours, and a folder of results of its own, ``..._released``.

    Args:
        config: the parsed configuration of a test, a namespace of the parser; it is changed.
        folder: a checkout of the published code.

    Raises:
        ConfigurationError: the test asks for no network that was published.
        CheckpointError: a file is missing in the folder.
    """
    model = config.get("model")
    namespace = type(config)
    settings = namespace() if model is None else model.get("init_args", namespace())
    places = {name: settings.get(name) for name in ("checkpoint", "features")}
    wanted = {place: name for place, name in places.items() if isinstance(name, str) and name in FILES}
    if not wanted:
        raise ConfigurationError(f"--released: expected a test with one of {', '.join(FILES)}, got one with none")
    for place, name in wanted.items():
        file = Path(folder) / FILES[name]
        if not file.is_file():
            raise CheckpointError(
                f"--released: expected {FILES[name]} in {folder}, as in a checkout of the published code; there is none"
            )
        settings[place] = str(file)
    if wanted.get("checkpoint") == "heat_deeponet_augmented":
        kept = settings.get("energy") == "consistency"
        for name, (path, arguments) in _AUGMENTED.items():
            if not (kept and name == "energy"):
                settings[name] = namespace(class_path=importable(path), init_args=namespace(**arguments))
    config.trainer.default_root_dir = f"{config.trainer.default_root_dir}_released"
    config.released = None  # done: the configuration that is saved names the files


def read_published(path: str | Path, network_of: Callable[[bytes], Network], expected: str) -> Network:
    """Read a network from a published file.

    Args:
        path: the file.
        network_of: makes the network of the content.
        expected: what the file should hold, in words.

    Raises:
        CheckpointError: the file is missing or holds something else.
    """
    try:
        return network_of(read_bytes(path))
    except (OSError, EOFError, LookupError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path}: expected {expected}: {reason}") from error
