"""The devices on which all that takes the fixture `device` runs: CUDA where a card is, and the emulated one.

The emulated device is there only in processes that `tests/test_devices.py` starts: torch must have it before the first
backward pass, and it stays.
"""

from __future__ import annotations

import os

import pytest
import torch

DEVICES: list[object] = []
if emulate := os.environ.get("TRIVGEO_EMULATED_DEVICE") == "1":
    from tests.devices import emulated

    DEVICES.append(pytest.param(emulated.load(), id=emulated.NAME))
if torch.cuda.is_available():
    DEVICES.append(pytest.param(torch.device("cuda", 0), id="cuda", marks=pytest.mark.cuda))

collect_ignore = [] if emulate else ["test_emulated.py"]
if not DEVICES:
    collect_ignore += [f"test_{name}.py" for name in ("groups", "inversion", "diffusion", "tasks", "others")]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return request.param
