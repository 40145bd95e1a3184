"""What a bridge says where its library is missing or broken, and that it is imported all the same."""

import re
import subprocess
import sys

CALLS = {
    "deepinv": "deepinv.RandomTransformation(warp, draws)",
    "kornia": "kornia.RandomTransformation(warp, draws)",
    "MONAI": "monai.to_metatensor(Volume(torch.zeros(1, 2, 2, 2), torch.eye(4)))",
    "scikit-learn": "sklearn.EquivariantClassifier(None, None)",
    "huggingface_hub": "hub.HubGroupDiffusion(SO(2))",
}
SCRIPT = f"""
import sys
for name in ("deepinv", "kornia", "monai", "sklearn", "huggingface_hub", "torchvision", "pytorch_ood"):
    sys.modules[name] = None
import torch
from trivgeo.actions import ImageWarp, Volume
from trivgeo.groups import SO
from trivgeo.inversion.transformations import rotations
from trivgeo.bridges import deepinv, hub, kornia, monai, pytorch_ood, sklearn, torchvision
warp, draws = ImageWarp(SO(2)), rotations(SO(2))
for call in {list(CALLS.values())!r}:
    try:
        eval(call)
    except Exception as error:
        print(type(error).__name__, error)
print(torchvision.RandomTransformation(warp, draws)(torch.zeros(1, 4, 4)).shape)
"""


def test_without_the_libraries() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *said, shape = run.stdout.splitlines()
    assert len(said) == len(CALLS)
    for package, line in zip(CALLS, said, strict=True):
        assert re.match(rf"ConfigurationError \w+: expected {package}, which is not installed: pip install ", line)
    assert shape == "torch.Size([1, 4, 4])"  # torchvision is not needed for tensors
