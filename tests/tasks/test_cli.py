"""What the command line makes of numbers given beside a file, and of bad input: one short reason, and status 2."""

import json
import math
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import yaml
from jsonargparse import Namespace

from tasks import command
from tasks.allowed_classes import check_callables
from tasks.cli import check_checkpoint, main
from tasks.files import hold
from tasks.seeds import check_seeds
from tests.tasks.sample_runs import CONFIGS
from trivgeo.errors import CheckpointError, ConfigurationError

HEAT = "--config=tasks/configs/heat/tied.yaml"
NOTHING_TO_TEST = (("model", "DemoModel"), ("data", "BoringDataModule"))
SILENT = ("test", HEAT, "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu")
INVERTER = "--model.init_args.inverter.init_args"


def run(arguments: list[str]) -> NoReturn:
    """As the process does."""
    sys.exit(command.main(arguments))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tset"], "got 'tset'; did you mean test?"),
        (["test", "--config=nothing.yaml"], "does not exist"),
        (["test", "--config=affnist/smal"], "does not exist; did you mean affnist/small"),
        (["test"], "test: expected a configuration: --config FILE"),
        (["test", "affnist/small", HEAT], "expected options, got 'affnist/small': write --config affnist/small\n"),
        (["fit", HEAT], "fit: expected a configuration for this command, got one for trivgeo test\n"),
        (
            ["test", HEAT, f"{INVERTER}.stepss=3"],
            "ReverseDiffusionSearch: expected its settings, got 'stepss'; did you mean steps?",
        ),
        (
            ["test", HEAT, "--model.init_args.inverter=trivgeo.inversion.RandomSearch", f"{INVERTER}.samples=3"],
            "RandomSearch: expected its settings, got 'samples'; did you mean num_samples?",
        ),
        (["test", HEAT, f"{INVERTER}.steps=three"], "steps: expected a whole number, got three\n"),
        (["test", HEAT, "--data.init_args.cases=many"], "cases: expected a whole number, got many\n"),
        (
            ["test", HEAT, "--model.init_args.inverter.class_path=trivgeo.inversion.Tied"],
            "inverter: expected a name in trivgeo.inversion, got Tied; did you mean TIED?\n",
        ),
        (
            ["test", HEAT, "--model.init_args.inverter.class_path=trivgeo.groups.SE"],
            "inverter: expected Inverter or a class derived from it, got trivgeo.groups.SE\n",
        ),
        (
            ["test", HEAT, "--model.init_args.inverter.class_path=no_module.TIED"],
            "inverter: No module named 'no_module'\n",
        ),
        (["test", HEAT, "--trainer.accelerator=tpu"], "ConfigurationError: trainer: "),
        (
            ["test", HEAT, "--model.init_args.inverter.class_path=trivgeo.inversion.LieLac"],
            "inverter: expected a name in trivgeo.inversion, got LieLac; did you mean LieLAC?\n",
        ),
        (["test", "--config=affnist/subset"], "to lie on another configuration: give both\n"),
        (
            ["test", HEAT, "--trainer.default_root_dir=README.md"],
            "README.md: expected a folder to write to, got a file\n",
        ),
        (["test", "--config=heat/deeponet"], "model: expected one that is tested, got PhysicsInformedTraining"),
        (["test", "--config=heat/budget"], "expected a configuration of one run, got a sweep"),
        (["sweep", "--config=heat/tied"], "got a configuration of one run"),
        (["sweep", "--config=heat/budget", "--jobs=two"], "argument --jobs: invalid int value: 'two'"),
        (["sweep", "--config=heat/budget", "--submit", "timeout_min=3"], "--submit: expected --cluster beside it"),
        (
            ["sweep", "--config=heat/budget", "--cluster=local", "--submit", "timeout_min"],
            "--submit: expected NAME=VALUE",
        ),
        (["test", HEAT, f"{INVERTER}.steps=0"], "ConfigurationError: steps: expected an integer of at least 1, got 0"),
        (
            ["test", HEAT, "--model.init_args.finish.init_args.steps=0"],
            "ConfigurationError: steps: expected an integer",
        ),
        (["test", HEAT, "--model.init_args.checkpoint=no.safetensors"], "CheckpointError: no.safetensors: expected a"),
        (
            ["test", HEAT, "--seed_everything=-1"],
            "ConfigurationError: seed_everything: expected an integer in [0, 2^32), got -1",
        ),
        (["test", HEAT, "--seed_everything=null"], "seed_everything: expected true or false or a whole number, got"),
        (["test", HEAT, "--trainer.devices=null"], "ConfigurationError: trainer: `devices`"),
        (["test", HEAT, "--data=null"], "ConfigurationError: data: expected some, of which the model takes equation"),
        (["test", HEAT, "--model=null"], "test: expected a configuration: --config FILE"),
        (["test", HEAT, "--model.init_args.inverter=null"], "the following arguments are required: inverter"),
        (
            ["test", *(f"--{part}=lightning.pytorch.demos.boring_classes.{name}" for part, name in NOTHING_TO_TEST)],
            "ConfigurationError: No `test_step()` method defined",
        ),
        (["test", HEAT, "--trainer.max_epochz=3"], "got 'trainer.max_epochz'; did you mean trainer.max_epochs?\n"),
        (["test", HEAT, "--epochs=3"], "got 'epochs'; did you mean trainer.max_epochs or trainer.min_epochs?\n"),
        (["test", HEAT, "--qqqq=3"], "error: expected a setting of the command, got 'qqqq'\n"),
        (["sweep", "--config=nothing.yaml"], "ConfigurationError: nothing.yaml: expected the description of a table"),
    ],
)
def test_bad_input(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(arguments)
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert reason in said
    errors = said[said.index("error: ") :]
    assert len(errors.splitlines()) <= 6
    assert "Given value" not in errors
    assert "usage" not in errors


def test_help_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["test", "--help"])
    assert capsys.readouterr().out.startswith("usage: trivgeo [options] test ")


def test_tracebacks_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSONARGPARSE_DEBUG", "true")
    with pytest.raises(ValueError, match="at least 1"):
        run(["test", HEAT, f"{INVERTER}.steps=0"])


NUMBERS = [
    ("test", "affnist/hybrid", "model.init_args.inverter.init_args.proposals.init_args.steps"),
    ("test", "fields/vorticity", "model.init_args.fields"),
    ("test", "generative/so4_flow", "model.init_args.model.init_args.seconds"),
    ("test", "heat/focal_calibrated", "model.init_args.inverter.init_args.initial"),
    ("test", "kdv/tied", "model.init_args.inverter.init_args.steps"),
]
"""A subcommand, a file of a folder, and a number in it."""

LONG_NUMBERS = [
    ("fit", "burgers/amortized_fit", "model.init_args.learning_rate"),
    ("fit", "digits/learned_fit", "data.init_args.batch_size"),
    ("fit", "heat/deeponet", "model.init_args.width"),
    ("fit", "kdv/deeponet", "data.init_args.equation.init_args.steps"),
    ("fit", "mnist/regulariser_affine", "model.init_args.penalty"),
    ("test", "burgers/tied", "model.init_args.inverter.init_args.steps"),
    ("test", "frames/score", "model.init_args.steps"),
    ("test", "homnist/tied_vae", "model.init_args.inverter.init_args.num_mc"),
    ("test", "rotmnist/posterior", "model.init_args.num_samples"),
    ("test", "photos/so2", "data.init_args.batch_size"),
    ("test", "so10/langevin", "model.init_args.sampler.init_args.steps"),
]
"""Those of the other folders: all folders are there."""


@pytest.mark.parametrize(
    ("subcommand", "config", "number"),
    [
        *NUMBERS,
        *(pytest.param(*entry, marks=pytest.mark.slow(reason="five folders stay")) for entry in LONG_NUMBERS),
    ],
)
def test_a_number_beside_a_file(
    subcommand: str, config: str, number: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["tasks"])

    def parsed(*more: str) -> dict[str, str]:
        with pytest.raises(SystemExit) as left:
            run([subcommand, f"--config={CONFIGS / config}.yaml", *more, "--print_config"])
        assert left.value.code == 0
        return leaves(yaml.safe_load(capsys.readouterr().out))

    plain, changed = parsed(), parsed(f"--{number}=7")
    assert plain.keys() == changed.keys()
    assert {key for key in plain if plain[key] != changed[key]} == {number}
    assert float(changed[number]) == 7.0


def test_every_folder_has_a_number() -> None:
    assert {config.split("/")[0] for _, config, _ in [*NUMBERS, *LONG_NUMBERS]} == {
        p.name for p in CONFIGS.iterdir() if p.is_dir()
    }


def leaves(tree: object, path: str = "") -> dict[str, str]:
    """The scalars and lists of a configuration by their dotted names."""
    if not isinstance(tree, dict):
        return {path.removeprefix("."): str(tree)}
    return {key: value for name, part in tree.items() for key, value in leaves(part, f"{path}.{name}").items()}


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "subprocess.getoutput",
        "os.popen",
        "builtins.exec",
        "os.unlink",
        "shutil.rmtree",
        "torch.load",
        "torch.fx.graph_module.reduce_graph_module",  # says that it returns a module
    ],
)
def test_functions_that_make_nothing_of_ours_are_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a function that returns one of ours, got {path}"):
        check_callables({"model": [{"init_args": {"energy": {"class_path": path, "init_args": {}}}}]})


def test_classes_and_functions_of_ours_pass() -> None:
    paths = [
        "trivgeo.inversion.ReverseDiffusionSearch",
        "tasks.pde.kdv.kdv_from_generators",
        "lightning.pytorch.callbacks.Timer",
    ]
    check_callables([{"class_path": path} for path in paths])


def test_functions_of_the_user_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ["from torch import nn", "from torch.fx.graph_module import reduce_graph_module"]
    source += ["def make() -> nn.Module: ...", "def other() -> int: ..."]
    (tmp_path / "users_own.py").write_text("\n".join(source))
    monkeypatch.syspath_prepend(tmp_path)
    check_callables({"class_path": "users_own.make"})
    for name in ("other", "reduce_graph_module"):
        with pytest.raises(ConfigurationError, match=f"got users_own.{name}"):
            check_callables({"class_path": f"users_own.{name}"})


def test_classes_of_installed_packages_pass_if_the_user_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lib" / "site-packages" / "bought"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("class Network: ...")
    monkeypatch.syspath_prepend(installed.parent)
    with pytest.raises(ConfigurationError, match=r"must be named in TRIVGEO_PACKAGES.*bought.Network"):
        check_callables({"class_path": "bought.Network"})
    monkeypatch.setenv("TRIVGEO_PACKAGES", "other,bought,subprocess")
    check_callables({"class_path": "bought.Network"})
    for path in ("subprocess.Popen", "sympy.Lambda"):
        with pytest.raises(ConfigurationError, match=f"got {path}"):
            check_callables({"class_path": path})


def test_a_configuration_runs_no_code(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    value = json.dumps({"class_path": "os.system", "init_args": {"command": f"touch {proof}"}})
    with pytest.raises((SystemExit, ConfigurationError)):
        main(["test", HEAT, f"--model.init_args.energy={value}"])
    assert not proof.exists()


@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")  # if a test before has imported it
@pytest.mark.parametrize(
    "path",
    [
        "subprocess.Popen",
        "sympy.Lambda",
        "torch.fx.GraphModule",
        "torch.utils.data.DataLoader",
        "lightning.pytorch.Trainer",
        "pip._internal.commands.install.InstallCommand",
        "builtins.object",
        "docstring_parser.DocstringMeta",  # of an extra of what we ask for
        "test.support.os_helper.EnvironmentVarGuard",
        "nowhere.Class",
        "Popen",
    ],
)
def test_classes_of_others_are_refused(path: str) -> None:
    for config in ({"class_path": path}, {"dict_kwargs": {"any": ({"class_path": path},)}}):
        with pytest.raises(ConfigurationError, match=f"class_path: expected a class .*got '?{path}"):
            check_callables(config)


def test_classes_of_torch_and_lightning_pass() -> None:
    trainer = ["callbacks.LambdaCallback", "strategies.DDPStrategy", "loggers.CSVLogger", "profilers.SimpleProfiler"]
    trainer += ["plugins.MixedPrecision", "plugins.io.AsyncCheckpointIO", "plugins.environments.SLURMEnvironment"]
    paths = [f"lightning.pytorch.{name}" for name in trainer]
    paths += ["torch.nn.ReLU", "torch.optim.Adam", "torch.optim.lr_scheduler.StepLR", "geoopt.optim.RiemannianAdam"]
    paths += ["torch.utils.data.TensorDataset", "torch.distributions.Normal"]
    paths += ["torchmetrics.classification.BinaryAccuracy"]
    check_callables([{"class_path": path} for path in paths])


@pytest.mark.filterwarnings("ignore")  # the parser's, about functions without types
@pytest.mark.parametrize(
    ("key", "path", "argument"),
    [
        ("callbacks", "lightning.pytorch.callbacks.LambdaCallback", "on_test_start"),
        pytest.param(
            *("strategy", "lightning.pytorch.strategies.DDPStrategy", "ddp_comm_state"),
            marks=pytest.mark.slow(reason="the callback stands for it"),
        ),
    ],
)
def test_classes_run_nothing_where_anything_is_taken(
    key: str, path: str, argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = tmp_path / "proof"
    code = f"__import__('os').system('touch {proof}')"
    value = {"class_path": "sympy.Lambda", "init_args": {"signature": "x", "expr": code}}
    entry = {"class_path": path, "init_args": {argument: value}}
    (tmp_path / "evil.yaml").write_text(yaml.safe_dump({"trainer": {key: [entry] if key == "callbacks" else entry}}))
    with pytest.raises(SystemExit, match="2"):
        run([*SILENT, f"--config={tmp_path / 'evil.yaml'}"])
    assert "got sympy.Lambda" in capsys.readouterr().err
    assert not proof.exists()


def test_the_settings_of_a_checkpoint_run_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"_class_path": "lightning.pytorch.LightningModule", "any": {"class_path": "sympy.Lambda"}}
    torch.save({"state_dict": {}, "hyper_parameters": settings}, tmp_path / "a.ckpt")
    with pytest.raises(SystemExit, match="2"):
        run([*SILENT, f"--ckpt_path={tmp_path / 'a.ckpt'}"])
    assert "got sympy.Lambda" in capsys.readouterr().err


class Note:
    """What a pickle would make; whoever reads it as tensors refuses it."""


@pytest.mark.parametrize("path", ["http://localhost:1/a", "file:///dev/null", "", "missing.ckpt", ".", "last", "a\0b"])
def test_a_checkpoint_is_a_file(path: str) -> None:
    with pytest.raises(ConfigurationError, match="ckpt_path: expected a file, got"):
        check_checkpoint(Namespace(ckpt_path=path, weights_only=None))


def test_checkpoints_hold_tensors_and_settings_only(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    config = Namespace(ckpt_path=str(path), weights_only=None)
    for content in ({"state_dict": Note()}, {}, [1]):
        torch.save(content, path)
        with pytest.raises(CheckpointError, match=r"a.ckpt: expected a checkpoint"):
            check_checkpoint(config)
    for content in (b"", b"text", b"PK\3\4"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"a.ckpt: expected a checkpoint"):
            check_checkpoint(config)
    torch.save({"state_dict": {"a": torch.zeros(8)}}, path, _use_new_zipfile_serialization=False)
    old = path.read_bytes()
    for length in range(0, len(old), 7):
        path.write_bytes(old[:length])
        with pytest.raises(CheckpointError, match=r"a.ckpt: expected a checkpoint"):
            check_checkpoint(config)
    torch.save({"state_dict": {}}, path)
    check_checkpoint(config)
    assert config.weights_only is True
    config.weights_only = False
    with pytest.raises(ConfigurationError, match="weights_only: expected true, got false"):
        check_checkpoint(config)


def test_fit_finds_its_last_checkpoint() -> None:
    config = Namespace(ckpt_path="last", weights_only=None)
    check_checkpoint(config, ("last", "best"))
    assert config.weights_only is True


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["--ckpt_path=http://localhost:1/a.ckpt", "--weights_only=false"], "weights_only: expected true, got false"),
        (["--ckpt_path=http://localhost:1/a.ckpt"], "ckpt_path: expected a file, got"),
        (["--ckpt_path=README.md"], "README.md: expected a checkpoint"),
    ],
)
def test_the_command_reads_no_other_checkpoint(
    settings: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["test", HEAT, *settings])
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


@pytest.mark.filterwarnings("ignore")  # the parser's, about functions without types
@pytest.mark.parametrize("named", ["os.system", "torch.fx.graph_module.reduce_graph_module"])
def test_functions_named_without_class_path_are_refused(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    callback = {"class_path": "lightning.pytorch.callbacks.LambdaCallback", "init_args": {"on_test_start": named}}
    with pytest.raises(SystemExit, match="2"):
        run(["test", HEAT, f"--trainer.callbacks=[{json.dumps(callback)}]"])
    assert "ConfigurationError: on_test_start: expected a function that returns" in capsys.readouterr().err


def test_functions_that_are_defaults_and_classes_of_modules_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody named a default, wherever it is from; the same function where it is none is refused."""
    source = ["import math", "class Below:", "    def __init__(self, root=math.sqrt): ...", "class Above(Below): ..."]
    (tmp_path / "with_default.py").write_text("\n".join(source))
    monkeypatch.syspath_prepend(tmp_path)
    arguments = {"root": math.sqrt, "module": torch.nn.ReLU}
    check_callables({"class_path": "with_default.Above", "init_args": Namespace(**arguments)})
    for other in ({"other": math.sqrt}, {"root": math.cos}, {"other": zip}, {"roots": [math.sqrt]}):
        with pytest.raises(ConfigurationError, match="expected a function that returns"):
            check_callables({"class_path": "with_default.Above", "init_args": Namespace(**other)})


def test_a_refused_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither where another run is at work nor where a link leads elsewhere."""
    (tmp_path / "config.yaml").write_text("first")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "config.yaml").symlink_to(tmp_path / "config.yaml")
    lock = hold(tmp_path)
    try:
        for folder, reason in (
            (tmp_path, "one that is in use"),
            (tmp_path / "linked", "without symbolic links, got one with 'config.yaml'"),
        ):
            with pytest.raises(SystemExit, match="2"):
                run([*SILENT, f"--trainer.default_root_dir={folder}"])
            assert reason in capsys.readouterr().err
            assert (tmp_path / "config.yaml").read_text() == "first"
    finally:
        lock.release()


def test_a_test_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run([*SILENT, f"--trainer.default_root_dir={tmp_path / 'run'}", "--trainer.limit_test_batches=0"])
    assert "limit_test_batches: expected at least one batch, got 0" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_in_place_of_the_saved_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(SystemExit, match="2"):
        run([*SILENT, f"--trainer.default_root_dir={tmp_path}"])
    assert "StorageError" in capsys.readouterr().err


def test_seeds_that_no_generator_takes() -> None:
    with pytest.raises(ConfigurationError, match="seeds: expected integers below"):
        check_seeds([99999999999999999999])
