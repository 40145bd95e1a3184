"""What the command line says of bad input: one short reason, and status 2."""

import pytest

from tasks.__main__ import run

HEAT = "--config=tasks/configs/heat/tied.yaml"
INVERTER = "--model.init_args.inverter.init_args"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tset"], "invalid choice: 'tset'"),
        (["test", "--config=nothing.yaml"], "does not exist"),
        (["test", HEAT, f"{INVERTER}.stepss=3"], "Option 'stepss' is not accepted"),
        (["test", HEAT, f"{INVERTER}.steps=three"], "Expected a <class 'int'>"),
        (["test", HEAT, f"{INVERTER}.steps=0"], "ConfigurationError: steps: expected an integer of at least 1, got 0"),
        (
            ["test", HEAT, "--model.init_args.finish.init_args.steps=0"],
            "ConfigurationError: steps: expected an integer",
        ),
        (["test", HEAT, "--model.init_args.checkpoint=no.safetensors"], "CheckpointError: no.safetensors: expected a"),
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


def test_tracebacks_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSONARGPARSE_DEBUG", "true")
    with pytest.raises(ValueError, match="at least 1"):
        run(["test", HEAT, f"{INVERTER}.steps=0"])
