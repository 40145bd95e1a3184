"""``python -m trivgeo COMMAND ...``, which is the command ``trivgeo``."""

import sys
from importlib import import_module

from trivgeo._applications import applications

if __name__ == "__main__":
    sys.exit(import_module(f"{applications()}.command").main())
