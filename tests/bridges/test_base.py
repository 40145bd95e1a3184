"""What a bridge says where its library is missing or broken, and that it is imported all the same."""

import subprocess
import sys

import pytest

BRIDGES = [
    ("deepinv", "RandomTransformation(ImageWarp(SO(2)), rotations(SO(2)))", "deepinv"),
    ("kornia", "RandomTransformation(ImageWarp(SO(2)), rotations(SO(2)))", "kornia"),
    ("sklearn", "EquivariantClassifier(None, None).get_params()", "scikit-learn"),
    ("hub", "HubGroupDiffusion(SO(2))", "huggingface_hub"),
]
SCRIPT = """
import sys
for name in ("deepinv", "kornia", "sklearn", "huggingface_hub", "torchvision", "pytorch_ood"):
    sys.modules[name] = None
from trivgeo.actions import ImageWarp
from trivgeo.groups import SO
from trivgeo.inversion.transformations import rotations
from trivgeo.bridges.{bridge} import *
try:
    {call}
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(("bridge", "call", "package"), BRIDGES)
def test_without_the_library(bridge: str, call: str, package: str) -> None:
    script = SCRIPT.format(bridge=bridge, call=call)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("ConfigurationError"), run.stdout
    assert package in run.stdout
