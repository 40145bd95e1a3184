"""Applications of trivgeo, run by `trivgeo fit|validate|test|predict --config FILE`, or `python -m tasks ...`.

The package is `tasks` in a checkout and `trivgeo.tasks` where trivgeo is installed, see `trivgeo._applications`. A
process imports it under one of the two names: under both, every class would exist twice.
"""

import os
import sys

_other = sys.modules.get("tasks" if __name__ == "trivgeo.tasks" else "trivgeo.tasks")
if _other is not None and _other.__file__ is not None and os.path.samefile(_other.__file__, __file__):
    raise ImportError(f"{__name__}: this process has imported the same files as {_other.__name__}: import from there")
