"""Tests of bridges to libraries that need torchvision are collected where it is installed: `make test-bridges`.

torchvision breaks other packages beside a build of torch that is not its own, so it is in no other environment. There
its operators are declared, and never called.
"""

import importlib
from importlib.util import find_spec

import torch

collect_ignore = (
    []
    if find_spec("torchvision")
    else ["test_bridges_page.py", "test_deepinv.py", "test_pytorch_ood.py", "test_torchvision.py"]
)

try:
    importlib.import_module("torchvision")
except ModuleNotFoundError:
    pass
except RuntimeError:  # its shared library was made for another build, as for CUDA beside torch for the CPU
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
