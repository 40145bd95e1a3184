"""Command line of the tasks: LightningCLI whose model and data are chosen by class path in a config file."""

import argparse
import inspect
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import torch
import yaml
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

from trivgeo._applications import importable, portable
from trivgeo.errors import CheckpointError, ConfigurationError, TrivgeoError
from trivgeo.training import DAMAGED, AtomicCheckpointIO, NetworkTraining

from .allowed_classes import check_callables, import_modules
from .command import DEBUG, cause_of
from .config_inheritance import find, map_texts, resolved
from .files import make_folder, recording, storage
from .released import use_released
from .results import ResultsWriter, ShardedTest
from .training import NamedExport
from .training_state import TrainingCurve, TrainingState

# lines of the parser's messages that repeat the configuration, or say what else it could have been
_NO_KIND = "Does not validate against"
_ECHOES = ("Given value", "Subtypes:", "Errors:", _NO_KIND, f"- {_NO_KIND}", "- Expected a <class 'NoneType'>")

# an option that only configurations of tests have
_TEST_OPTION = re.compile(r"Subcommand '(\w+)' does not accept option 'verbose'")
# a setting that no command has, in a file or on the command line
_NO_OPTION = re.compile(r"does not accept option '([\w.]+)'|[Uu]nrecognized arguments: --([\w.]+)")
# what is said where no configuration is given, or one without --config
_NO_MODEL = re.compile(r"arguments are required: (\w+)\.model")
# a setting that a class does not have, and the classes in which it was given, the innermost last
_UNKNOWN = re.compile(r"Option '([\w.]+)' is not accepted")
_NO_CLASS_NAMED = ("lightning.LightningModule", "lightning.LightningDataModule")
_IN_CLASS = re.compile(r"class_path[ =]'([\w.]+)'")
# a value that does not suit its setting: the setting, kinds that would, a class that is not there or is another
_KEY = re.compile(r'Parser key "([\w.]+)"')
_EXPECTED = re.compile(r"Expected a <class '(\w+)'>")
_VALUE = re.compile(r"(?:Got|Given) value: (?:NestedArg\(.*val=)?(.*?)\)?(?=\. Got value:|\n|$)")
_NO_NAME = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_NO_CHILD = re.compile(r"Expected '([\w.]+)' to be a subclass of <class '(\w+)'>")
_CHOICE = re.compile(r"Expected a typing\.Literal\[(.*?)\]")
_REFUSED = re.compile(r"expects a function or a callable class: (?!Parser key)(.+?)(?=\. Got value:|\n|$)")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list",
    "dict": "names and values",
}
_EXTRA = re.compile(r"unrecognized arguments: (\S+)")
# dotted paths in the text of a configuration
_CLASS_PATH = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(\.\w+)+")

# values of `ckpt_path` for which Lightning finds a file in a training
_CHECKPOINT_ALIASES = ("last", "best")

# arguments of models that are linked to those of the data
_TAKEN_FROM_DATA = ("equation", "inputs")

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
        """As its parent, with class paths as files hold them."""
        return _CLASS_PATH.sub(lambda path: portable(path[0]), super().dump(*args, **kwargs))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the reason and leave with status 2."""
        if not self.exit_on_error or os.environ.get(DEBUG):
            super().error(message, ex)
        reasons = _reasons(message)
        if option := _NO_OPTION.search(reasons[0]):
            reasons = [_unknown_option(option[1] or option[2], _settings(self))]
        sys.stderr.write("error: " + "\n".join(reasons) + "\n")
        sys.exit(2)


def _reasons(message: str) -> list[str]:
    """The lines of a message of the parser that say what was wrong, in words of the command line."""
    if command := _TEST_OPTION.search(message):
        return [f"{command[1]}: expected a configuration for this command, got one for trivgeo test"]
    if command := _NO_MODEL.search(message):
        return [f"{command[1]}: expected a configuration: --config FILE, or --config NAME (`trivgeo list` has names)"]
    if (extra := _EXTRA.fullmatch(message.strip())) and os.path.isfile(find(extra[1])):
        return [f"expected options, got {extra[1]!r}: write --config {extra[1]}"]
    if unknown := _UNKNOWN.search(message):
        # the class that a function makes stands behind, in what was given
        line = message[unknown.end() :].splitlines()[:1]
        classes = _IN_CLASS.findall(line[0])[:1] if line else []
        classes = classes or _IN_CLASS.findall(message[: unknown.start()])
        if classes:
            return [_unknown_setting(classes[-1], unknown[1])]
    if one := _bad_value(message):
        return [one]
    lines = [line.split(" Got value: ", 1)[0] for line in message.splitlines()]
    return [line for line in lines if line.strip() and not line.strip().startswith(_ECHOES)]


def _bad_value(message: str) -> str | None:
    """What is wrong with a value: its setting, what was expected, and what came; ``None`` if the message is another."""
    keys, values = _KEY.findall(message), _VALUE.findall(message)
    setting = ".".join(keys)
    if no_name := _NO_NAME.search(message):
        module, name = no_name.groups()
        # classes for a class
        names = [known for known in dir(sys.modules.get(module)) if known[0].isupper() == name[0].isupper()]
        known = {known.lower(): known for known in names if not known.startswith("_")}
        like = get_close_matches(name.lower(), known, n=1)
        asked = f"; did you mean {known[like[0]]}?" if like else ""
        return f"{setting}: expected a name in {portable(module)}, got {name}{asked}"
    if no_child := _NO_CHILD.search(message):
        return f"{setting}: expected {no_child[2]} or a class derived from it, got {portable(no_child[1])}"
    if refused := _REFUSED.search(message):
        return f"{setting}: {refused[1]}"
    if choice := _CHOICE.search(message):
        return f"{setting}: expected one of {choice[1]}" + (f", got {values[0]}" if values else "")
    kinds = [kind for kind in _EXPECTED.findall(message) if kind != "NoneType"]
    if not keys or not values or not kinds or any(kind not in _KINDS for kind in kinds):
        return None
    return f"{setting}: expected {' or '.join(_KINDS[kind] for kind in kinds)}, got {values[0].strip(chr(39))}"


def _settings(parser: argparse.ArgumentParser) -> set[str]:
    """The names of the settings of a parser and of its commands."""
    found = set()
    for action in parser._actions:
        commands = action.choices.values() if isinstance(action.choices, dict) else ()
        found |= {action.dest}.union(*(_settings(command) for command in commands))
    return {name for name in found if not name.endswith("help")}


def _unknown_option(name: str, known: set[str]) -> str:
    """What is wrong with a setting that no command has; the one that may be meant, by its name or its last part."""
    last = {setting.rpartition(".")[2]: setting for setting in sorted(known)}
    like = get_close_matches(name, sorted(known), n=1) or [last[x] for x in sorted(get_close_matches(name, last, n=2))]
    return f"expected a setting of the command, got {name!r}" + (f"; did you mean {' or '.join(like)}?" if like else "")


def _unknown_setting(path: str, name: str) -> str:
    """What is wrong with a setting that a class does not have."""
    if path in _NO_CLASS_NAMED:
        return (
            f"expected the classes of model and data, got settings ({name}) to lie on another configuration: give both"
        )
    module, _, kind = path.rpartition(".")
    parents = getattr(vars(sys.modules[module]).get(kind), "__mro__", ()) if module in sys.modules else ()
    known = {
        known for parent in parents if "__init__" in vars(parent) for known in inspect.signature(parent).parameters
    }
    like = get_close_matches(name, sorted(known), n=1)
    return f"{portable(path)}: expected its settings, got {name!r}" + (f"; did you mean {like[0]}?" if like else "")


class SavedConfig(SaveConfigCallback):
    """Writes `config.yaml`, to a folder that may be written to and nowhere else."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """As its parent.

        Raises:
            ConfigurationError: a symbolic link lies in the folder.
            StorageError: it cannot be written to.
        """
        folder = trainer.log_dir  # every device must ask, since Lightning sends the answer to all
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
    """LightningCLI whose tests and trainings go on by the same command.

    Attributes:
        curve: metrics of a training.
        state: keeper of the state of a training; ``None`` if checkpoints are off.
    """

    state: TrainingState | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.curve = TrainingCurve()
        super().__init__(*args, **kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Modules to import first, and what the model takes from the data: the equation, the format of the images."""
        parser.add_argument(
            "--imports",
            type=list[str],
            default=[],
            help="modules of yours to import first, such as those of networks that a checkpoint holds",
        )
        parser.add_argument(
            "--released",
            type=str | None,
            default=None,
            help="of a test: a checkout of the code of Kim et al. (2026), whose networks take the place of ours",
        )
        for name in _TAKEN_FROM_DATA:
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the command line; its checkpoint is read next, if it is safe to read.

        Raises:
            ConfigurationError: the seed is one that NumPy does not take; see also `check_checkpoint`.
            CheckpointError: see `check_checkpoint`.
        """
        arguments = sys.argv[1:] if args is None else args
        if isinstance(arguments, list):
            self.config = parser.parse_args(resolved(arguments))
        else:
            self.config = parser.parse_object(arguments)
        subcommand = self.config.get("subcommand")
        if subcommand is not None:
            config = self.config[subcommand]
            if not 0 <= config.seed_everything < 2**32:
                raise ConfigurationError(
                    f"seed_everything: expected an integer in [0, 2^32), got {config.seed_everything}"
                )
            if config.released is not None:
                if subcommand != "test":
                    raise ConfigurationError(f"--released: expected trivgeo test, got {subcommand}")
                use_released(config, config.released)
            check_checkpoint(config, _CHECKPOINT_ALIASES if subcommand == "fit" else ())

    def before_instantiate_classes(self) -> None:
        """Check and import what the configuration names; raise if the model lacks the data it takes from."""
        check_callables(self.config)
        config = self.config[self.subcommand]
        import_modules(config.imports)
        if config.get("data") is None and config.get("model") is not None:
            taken = inspect.signature(resolve_name(config.model.class_path)).parameters.keys() & set(_TAKEN_FROM_DATA)
            if taken:
                raise ConfigurationError(f"data: expected some, of which the model takes {', '.join(taken)}, got none")

    def instantiate_classes(self) -> None:
        """As its parent.

        Raises:
            ConfigurationError: an argument of one of several kinds suits none of them.
        """
        try:
            super().instantiate_classes()
        except ValueError as error:
            if not str(error).startswith(_NO_KIND) or cause_of(error, TrivgeoError) is not None:
                raise
            # the parser's messages about other kinds say nothing where a constructor has refused its arguments
            reasons = [line.strip().removeprefix("- ") for line in _reasons(str(error))]
            own = [reason for reason in reasons if not reason.startswith("Expected a <class")]
            raise ConfigurationError("; ".join(own or reasons)) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """As its parent; checkpoints are written whole, a training keeps its state, a test deals its own batches.

        Raises:
            ConfigurationError: Lightning refuses the settings.
        """
        config = self.config_init[self.subcommand]["trainer"]
        if self.subcommand == "fit":
            given = config["callbacks"] or []
            own: list[Callback] = [self.curve]
            if config["enable_checkpointing"] is not False and not config["fast_dev_run"]:
                self.state = TrainingState(config["default_root_dir"])
                own.append(self.state)
            kwargs["callbacks"] = [*(given if isinstance(given, list) else [given]), *own]
        if self.subcommand == "test":  # the state of a training is of no use to a test of its network
            warnings.filterwarnings("ignore", "Be aware that when using `ckpt_path`", UserWarning)
        if isinstance(self.model, ShardedTest) and self.subcommand == "test":
            kwargs["use_distributed_sampler"] = False
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ModuleNotFoundError, TypeError, ValueError) as error:
            raise ConfigurationError(f"trainer: {error}") from error
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # Lightning's own: the user has set none
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def before_fit(self) -> None:
        """Go on with the training where an earlier run of the same command has left it.

        Raises:
            ConfigurationError: the model is one that is tested.
        """
        if type(self.model).training_step is LightningModule.training_step:
            raise ConfigurationError(
                f"model: expected one that is trained, got {type(self.model).__name__}, for trivgeo test"
            )
        if self.state is None:
            return
        found = self.state.identify(self._plain_config())
        config = self.config_init["fit"]
        if found is not None and config["ckpt_path"] is None:
            config["ckpt_path"] = str(found)
            if "weights_only" in config:  # Lightning 2.5 has none
                config["weights_only"] = True
            if self.trainer.is_global_zero:
                sys.stdout.write(f"goes on from {found}\n")

    def after_fit(self) -> None:
        """Print the figures of the held-out data and the curve, and say where the network was written."""
        folder = Path(self.trainer.log_dir or self.trainer.default_root_dir)  # every device must ask
        if not self.trainer.is_global_zero:
            return
        model, export = self.model, getattr(self.model, "export", None)
        if isinstance(model, NamedExport) and export is not None and not model.export_path(export).exists():
            model.on_train_end()  # an earlier run had done all steps
        if self.curve.epochs:
            tested = model.test_metrics() if isinstance(model, NetworkTraining) and self.datamodule is not None else {}
            picture = self.curve.draw(folder) if self.curve.names else folder
            sys.stdout.write(f"\n{self.curve.format(tested)}\nepochs: {self.trainer.current_epoch}, {picture}\n")
        if isinstance(model, NamedExport) and export is not None:
            sys.stdout.write(f"written to {model.export_path(export)}\n")

    def before_test(self) -> None:
        """Give every `ResultsWriter` the configuration it is to record; a test with rows has one in any case.

        The table of a writer is the only one that is printed.

        Raises:
            ConfigurationError: no batch is to be tested, which Lightning would skip without a word; or the model is one
                of a training, whose state is not given.
        """
        if isinstance(self.model, NamedExport) and self.config_init["test"]["ckpt_path"] is None:
            raise ConfigurationError(
                f"model: expected one that is tested, got {type(self.model).__name__}, for trivgeo fit (or ckpt_path, "
                "the state that a training has left)"
            )
        if self.trainer.limit_test_batches == 0:
            raise ConfigurationError("trainer.limit_test_batches: expected at least one batch, got 0")
        if isinstance(self.model, ShardedTest) and not self._writers():
            # the writer comes first: a run that finds its folder in use must write nothing, not even its configuration
            self.trainer.callbacks.insert(0, ResultsWriter(self.trainer.default_root_dir))  # type: ignore[attr-defined]
        config = self._plain_config()
        for writer in self._writers():
            writer.config = config
        if self._writers():
            # after a resume Lightning's table would have the batches of this process alone
            self.config_init["test"]["verbose"] = False

    def after_test(self) -> None:
        """Raise unless a batch was tested.

        Raises:
            ConfigurationError: the data had no batch.
        """
        if not all(writer.finished for writer in self._writers()):
            raise ConfigurationError("test: expected data with at least one batch, got none; no results were written")

    def _plain_config(self) -> dict[str, Any]:
        """The whole configuration of the subcommand, as files hold it."""
        name = self.subcommand
        config: dict[str, Any] = yaml.safe_load(self._parser(name).dump(self.config[name], skip_none=False))
        for option in ("imports", "released"):
            if not config[option]:
                del config[option]
        return config

    def _writers(self) -> list[ResultsWriter]:
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return [callback for callback in callbacks if isinstance(callback, ResultsWriter)]


def check_checkpoint(config: Namespace, found: Sequence[str] = ()) -> None:
    """Check that `ckpt_path` is a local file of tensors: Lightning takes addresses, too, and may read pickles there.

    Args:
        config: configuration of a subcommand; its `weights_only` becomes true.
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
    except DAMAGED as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path}: expected a checkpoint without pickled objects: {reason}") from error
    if not isinstance(content, dict) or "state_dict" not in content:
        raise CheckpointError(f"{path}: expected a checkpoint of Lightning, found no state_dict in it")


def run(arguments: Sequence[str]) -> int:
    """Run a subcommand; the status is 143 for a run that ends by SIGTERM, after the batch that it was in.

    Args:
        arguments: the subcommand and its options.
    """
    try:
        main(list(arguments))
    except SIGTERMException:
        return 128 + signal.SIGTERM
    return 0


def main(args: ArgsType = None) -> LightningCLI:
    """Run a subcommand: `fit`, `validate`, `test` or `predict`.

    Args:
        args: command line as a list of strings, `sys.argv[1:]` when None.

    Returns:
        The command line object; its `trainer`, `model` and `datamodule` are those of the run.
    """
    with _without_known_noise(), recording():
        try:
            return TasksCLI(
                parser_class=TasksParser,
                parser_kwargs={"prog": "trivgeo"},
                save_config_callback=SavedConfig,
                save_config_kwargs={"overwrite": True},
                trainer_defaults=dict(TRAINER_DEFAULTS),
                seed_everything_default=0,
                auto_configure_optimizers=False,
                args=args,
            )
        except MisconfigurationException as error:  # such as a model that has nothing to test
            raise ConfigurationError(str(error)) from error


@contextmanager
def _without_known_noise() -> Iterator[None]:
    """Silence advertisements and deprecations inside Lightning, and nothing else."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(_is_no_advertisement)
    try:
        with warnings.catch_warnings():
            # lightning 2.6 on torch 2.13
            warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated", category=FutureWarning)
            # lightning 2.6 calls names that jsonargparse 4.53 deprecates, also by way of `TasksParser`
            deprecating = r"(lightning\.pytorch|(trivgeo\.)?tasks)\.cli"
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=deprecating)
            # batches are made in the main process on purpose: that costs less than sending them from a worker
            warnings.filterwarnings("ignore", message=".*does not have many workers", category=PossibleUserWarning)
            # a resumed run writes to its own version_* folder
            warnings.filterwarnings("ignore", message="The dirpath has changed from", category=UserWarning)
            # a training that goes on does so in the folder of its state
            warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
            yield
    finally:
        logger.removeFilter(_is_no_advertisement)


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return "Tip: For seamless cloud" not in record.getMessage()
