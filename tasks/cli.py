"""Command line of the tasks: LightningCLI whose model and data are chosen by class path in a config file."""

import inspect
import logging
import os
import re
import signal
import struct
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires
from pathlib import Path, PurePath
from pickle import UnpicklingError
from pkgutil import resolve_name
from types import FunctionType
from typing import Any, NoReturn, get_type_hints

import torch
import yaml
from jsonargparse import Namespace
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.loggers.logger import Logger
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment, Precision
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn
from torch.distributions import Distribution
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from trivgeo._applications import importable, is_ours, portable
from trivgeo._deprecation import current_name
from trivgeo.errors import CheckpointError, ConfigurationError

from .command import DEBUG
from .config_inheritance import map_texts, resolved
from .files import make_folder, recording, storage
from .results import ResultsWriter, ShardedTest, writer_of

# lines of the parser's messages that repeat the configuration, or say what else it could have been
_ECHOES = ("Given value", "Subtypes:", "Errors:", "Does not validate against", "- Expected a <class 'NoneType'>")

_CLASS_PATH = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(\.\w+)+")

# what a configuration may take from torch and Lightning, and where from: other modules of torch hold networks that are
# made of code, torch.fx among them
_KINDS = (
    *(nn.Module, Optimizer, LRScheduler),
    *(LightningDataModule, Callback, Strategy, Accelerator, Logger, Profiler),
    *(Precision, ClusterEnvironment, CheckpointIO, LayerSync),
    *(Dataset, Distribution),
)
_MODULES_OF_KINDS = (
    *("torch.nn.", "torch.optim.", "torch.distributions.", "torch.utils.data.dataset.", "lightning."),
    *("torchmetrics.classification.", "torchmetrics.regression.", "geoopt."),
)

# these are there wherever this runs, as are the packages that ours asks for
_INSTALLERS = ("pip", "setuptools", "wheel")

# what torch raises where it reads a file that is cut, or none of its own
_DAMAGED = (
    *(UnpicklingError, EOFError, OSError, RuntimeError, ValueError, LookupError, TypeError),
    *(AssertionError, AttributeError, ArithmeticError, struct.error),
)

_FOUND_BY_FIT = ("last", "best")

_SAID_BY_DATA = ("equation", "inputs")

TRAINER_DEFAULTS = {
    "accelerator": "auto",
    "devices": 1,
    "inference_mode": False,  # inversion differentiates at test time
    "logger": False,
    "default_root_dir": "runs",
}
"""Settings of the trainer that a config file may override."""


class TasksParser(LightningArgumentParser):
    """Parser of configurations that hold class paths under the name of the applications in files, `tasks`.

    A wrong configuration is reported without the usage of every option and without the configuration.
    """

    def add_function_arguments(self, *args: Any, linked_targets: Any = None, **kwargs: Any) -> list[str]:
        """As its parent: jsonargparse 4.53 tells functions too what is linked, but only classes take it."""
        return super().add_function_arguments(*args, **kwargs)

    def parse_object(self, obj: Any, *args: Any, **kwargs: Any) -> Namespace:
        """As its parent; a mapping has class paths as files hold them."""
        return super().parse_object(map_texts(obj, importable), *args, **kwargs)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """As its parent, with class paths as files hold them: of old names that jsonargparse prefers, the new ones."""
        return _CLASS_PATH.sub(lambda path: portable(current_name(path[0])), super().dump(*args, **kwargs))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the reason and leave with status 2."""
        if not self.exit_on_error or os.environ.get(DEBUG):
            super().error(message, ex)
        lines = [line.split(" Got value: ", 1)[0] for line in message.splitlines()]
        kept = [line for line in lines if line.strip() and not line.strip().startswith(_ECHOES)]
        sys.stderr.write("error: " + "\n".join(kept) + "\n")
        sys.exit(2)


class SavedConfig(SaveConfigCallback):
    """Writes `config.yaml`, to a folder that may be written to and nowhere else."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """As its parent.

        Raises:
            ConfigurationError: a symbolic link lies in the folder.
            StorageError: it cannot be written to.
        """
        folder = trainer.log_dir  # a call of all devices
        if folder is not None and trainer.is_global_zero and not self.already_saved:
            make_folder(Path(folder))
            path = Path(folder) / self.config_filename
            with storage(path):
                if path.is_dir():
                    raise IsADirectoryError(f"{path} is a folder")
                super().setup(trainer, pl_module, stage)
        else:
            super().setup(trainer, pl_module, stage)


class TasksCLI(LightningCLI):
    """LightningCLI that hands the parsed configuration of a test to the writers of its results."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """What the data say the model need not be told: the equation, the format of the images."""
        for name in _SAID_BY_DATA:
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """As its parent, which reads settings from the checkpoint, but only from a file that is safe to read."""
        subcommand = self.config.get("subcommand")
        if subcommand is not None:
            check_checkpoint(self.config[subcommand], _FOUND_BY_FIT if subcommand == "fit" else ())
        super()._parse_ckpt_path()

    def before_instantiate_classes(self) -> None:
        """See `check_callables`; a model that takes something from the data needs some."""
        check_callables(self.config)
        config = self.config[self.subcommand]
        if config.get("data") is None and config.get("model") is not None:
            taken = inspect.signature(resolve_name(config.model.class_path)).parameters.keys() & set(_SAID_BY_DATA)
            if taken:
                raise ConfigurationError(f"data: expected some, of which the model takes {', '.join(taken)}, got none")

    def _set_seed(self) -> None:
        try:
            super()._set_seed()
        except ValueError as error:
            raise ConfigurationError(f"seed_everything: {error}") from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """As its parent; what Lightning refuses is an error of ours."""
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError) as error:
            raise ConfigurationError(f"trainer: {error}") from error

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except MisconfigurationException as error:  # such as a model that has nothing to test
            raise ConfigurationError(f"{subcommand}: {error}") from error

    def before_test(self) -> None:
        """Give every `ResultsWriter` the configuration it is to record; a test with rows has one in any case.

        Raises:
            ConfigurationError: no batch is to be tested: Lightning would skip the test without a word.
        """
        if self.trainer.limit_test_batches == 0:
            raise ConfigurationError("trainer.limit_test_batches: expected at least one batch, got 0")
        if isinstance(self.model, ShardedTest) and writer_of(self.trainer) is None:
            # the first of all: a run that finds its folder in use must write nothing, not even its configuration
            self.trainer.callbacks.insert(0, ResultsWriter(self.trainer.default_root_dir))  # type: ignore[attr-defined]
        config = yaml.safe_load(self._parser("test").dump(self.config["test"], skip_none=False))
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, ResultsWriter):
                callback.config = config

    def after_test(self) -> None:
        """See that something was tested.

        Raises:
            ConfigurationError: the data had no batch.
        """
        writer = writer_of(self.trainer)
        if writer is not None and not writer.finished:
            raise ConfigurationError("test: expected data with at least one batch, got none; no results were written")


def check_checkpoint(config: Namespace, found: Sequence[str] = ()) -> None:
    """Lightning takes addresses, too, and may read what is there as pickle; here `ckpt_path` is a file of tensors.

    Args:
        config: of a subcommand; its `weights_only` becomes true.
        found: names that Lightning finds a file for.

    Raises:
        ConfigurationError: no such file, or pickles are asked for.
        CheckpointError: the file is no checkpoint of Lightning, or one that only a pickle can read.
    """
    if config.get("weights_only") not in (None, True):
        raise ConfigurationError(f"weights_only: expected true, got {str(config.weights_only).lower()}")
    path = config.get("ckpt_path")
    if path is None:
        return
    if "weights_only" in config:  # Lightning 2.5 has none
        config.weights_only = True
    if path in found:
        return
    if "://" in str(path) or not os.path.isfile(path):
        raise ConfigurationError(f"ckpt_path: expected a file{''.join(f' or {name}' for name in found)}, got {path!r}")
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except _DAMAGED as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path}: expected a checkpoint without pickled objects: {reason}") from error
    if not isinstance(content, dict) or "state_dict" not in content:
        raise CheckpointError(f"{path}: expected a checkpoint of Lightning, found no state_dict in it")


def check_callables(config: Any) -> None:
    """A configuration may come from a stranger: what it names makes objects of ours, and nothing else.

    The parser checks a class against the type of its argument, but an argument may have none, or take any object. So a
    class must be of ours, of the user's, or a module, optimizer, callback, logger, plugin and so on of `torch.nn`,
    `torch.optim` and Lightning. A function must say that it returns a module of torch or an object of a class of the
    library, and be of ours or the user's: of no distribution that ours depends on, nor of the standard library. The
    same holds of what the parser found by a path alone, for arguments that are called.

    Raises:
        ConfigurationError: a class or a function does not.
    """
    _check(config, "configuration", None)


def _check(value: Any, name: str, owner: str | None) -> None:
    """See `check_callables`, of an argument of this name of the class at the path `owner`."""
    if isinstance(value, list | tuple | set):
        for part in value:
            _check(part, name, None)
    elif isinstance(value, Namespace | Mapping):
        entries = vars(value) if isinstance(value, Namespace) else value
        path = entries.get("class_path")
        if isinstance(path, str):
            _check_callable(path)
            owner = path
        for key, part in entries.items():
            _check(part, str(key), owner)
    elif callable(value) and not _may_be_called(value) and not _is_default(value, name, owner):
        raise ConfigurationError(f"{name}: expected a function that returns an object of ours, got {value!r}")


def _check_callable(path: str) -> None:
    try:
        found = resolve_name(importable(path))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"class_path: expected a class that there is, got {path!r}: {error}") from error
    if not _may_be_called(found):
        raise ConfigurationError(
            "class_path: expected a class of ours, of yours, or for networks and trainers of torch and Lightning, or"
            f" a function that returns one of ours, got {path}"
        )


def _makes_ours(found: object) -> bool:
    """Whether this is a function of ours or of the user's that says that it returns an object of ours."""
    if not isinstance(found, FunctionType) or not _is_ours_or_users(found.__module__ or "builtins"):
        return False
    returned = get_type_hints(found).get("return")
    return isinstance(returned, type) and any(
        parent is nn.Module or is_ours(parent.__module__) for parent in returned.__mro__
    )


def _may_be_called(found: object) -> bool:
    """Whether a stranger may have this called."""
    if isinstance(found, type):
        is_kind = issubclass(found, _KINDS) and f"{found.__module__}.".startswith(_MODULES_OF_KINDS)
        return is_kind or _is_ours_or_users(found.__module__)
    return _makes_ours(found)


def _is_default(value: object, name: str, owner: str | None) -> bool:
    """Whether the owner has this value by default: then nobody named it."""
    found = None if owner is None else resolve_name(owner)
    makers = [vars(parent).get("__init__") for parent in found.__mro__] if isinstance(found, type) else [found]
    parameters = [inspect.signature(maker).parameters.get(name) for maker in makers if isinstance(maker, FunctionType)]
    return any(parameter is not None and parameter.default is value for parameter in parameters)


def _is_ours_or_users(module: str) -> bool:
    """Whether a module is of this project, or one that is there because the user wrote or installed it.

    What we depend on is installed wherever this runs, so a stranger knows it, and some functions of it that return
    modules run the code in their arguments. The tests of the standard library, `test`, are not among its names.
    """
    if is_ours(module):
        return True
    package = module.split(".")[0]
    return package not in {*sys.stdlib_module_names, "test"} and package not in _packages_of_dependencies()


@cache
def _packages_of_dependencies() -> frozenset[str]:
    """Names to import of all distributions that ours asks for, with any extra, and of those that they need for it."""
    asked: list[str] = ["trivgeo", *_INSTALLERS]
    found: set[tuple[str, frozenset[str]]] = set()
    while asked:
        requirement = asked.pop()
        name, extras = _normal(requirement), _extras(requirement)
        if (name, extras) not in found:
            found.add((name, extras))
            # one that is not installed asks for nothing; without metadata of ours nobody can tell what is the user's
            try:
                texts = requires(name) or ()
                asked += [text for text in texts if name == "trivgeo" or (_marked(text) or {""}) & (extras | {""})]
            except PackageNotFoundError as error:
                if name == "trivgeo":
                    raise ConfigurationError(
                        "class_path: without the metadata of trivgeo (is it installed?) nobody can tell which classes"
                        " and functions are yours: only those of trivgeo and tasks, and classes of torch and Lightning,"
                        " are taken"
                    ) from error
    packages, distributions = packages_distributions(), {name for name, _ in found}
    installed = {name for names in packages.values() for name in names if _normal(name) in distributions}
    lacking = {name: _only_claimed(name) for name in installed}
    return frozenset(
        package
        for package, names in packages.items()
        if any(name in lacking and package not in lacking[name] for name in names)
    )


def _only_claimed(name: str) -> set[str]:
    """Packages that a distribution claims and does not hold: some claim every folder of their repository."""
    found = distribution(name)
    claimed = set((found.read_text("top_level.txt") or "").split())
    if not claimed:
        return claimed
    recorded = {PurePath(file).parts[0].split(".")[0] for file in found.files or ()}
    return claimed - recorded if claimed & recorded else set()  # a link to a working copy records none of them


def _extras(requirement: str) -> frozenset[str]:
    """The extras that a requirement asks for, such as `http` in `fsspec[http]>=2022.5`."""
    asked = re.match(r"[\w.-]+\s*\[([^\]]*)\]", requirement)
    return frozenset() if asked is None else frozenset(part.strip() for part in asked[1].split(","))


def _marked(requirement: str) -> set[str]:
    """The extras that a requirement is for; none if it holds in any case."""
    return set(re.findall(r"extra == ['\"]([^'\"]+)", requirement))


def _normal(requirement: str) -> str:
    """The name in a requirement, as package indices compare them."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def run(arguments: Sequence[str]) -> int:
    """Run a subcommand; the status is 143 for a run that ends by SIGTERM, after the batch that it was in.

    Args:
        arguments: the subcommand and its options.
    """
    try:
        main(list(arguments))
    except SIGTERMException:
        goes_on = (
            "training goes on from its last checkpoint by --ckpt_path"
            if "fit" in arguments
            else "the batches that were done are kept, the same command goes on"
        )
        sys.stderr.write(f"stopped by SIGTERM: {goes_on}\n")
        return 128 + signal.SIGTERM
    return 0


def main(args: ArgsType = None) -> LightningCLI:
    """Run a subcommand: `fit`, `validate`, `test` or `predict`.

    Args:
        args: command line as a list of strings, `sys.argv[1:]` when None.

    Returns:
        The command line object; its `trainer`, `model` and `datamodule` are those of the run.
    """
    arguments = sys.argv[1:] if args is None else args
    with _without_known_noise(), recording():
        return TasksCLI(
            parser_class=TasksParser,
            save_config_callback=SavedConfig,
            save_config_kwargs={"overwrite": True},
            trainer_defaults=dict(TRAINER_DEFAULTS),
            seed_everything_default=0,
            auto_configure_optimizers=False,
            args=resolved(arguments) if isinstance(arguments, list) else arguments,
        )


@contextmanager
def _without_known_noise() -> Iterator[None]:
    """Silence what Lightning says about itself, and nothing else."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(_is_no_advertisement)
    try:
        with warnings.catch_warnings():
            # lightning 2.6 on torch 2.13
            warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated", category=FutureWarning)
            # lightning 2.6 calls names that jsonargparse 4.53 deprecates, also by way of `TasksParser`
            deprecating = r"(lightning\.pytorch|(trivgeo\.)?tasks)\.cli"
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=deprecating)
            # jsonargparse 4.53 looks for every class at the first level, where it may have had an old name
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"jsonargparse\.")
            # batches are made in the main process on purpose: that costs less than sending them from a worker
            warnings.filterwarnings("ignore", message=".*does not have many workers", category=PossibleUserWarning)
            # arguments given by a caller count, whatever the process was started with
            warnings.filterwarnings("ignore", message="LightningCLI's args parameter is intended", category=UserWarning)
            # a resumed run writes to its own version_* folder
            warnings.filterwarnings("ignore", message="The dirpath has changed from", category=UserWarning)
            yield
    finally:
        logger.removeFilter(_is_no_advertisement)


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return "Tip: For seamless cloud" not in record.getMessage()
