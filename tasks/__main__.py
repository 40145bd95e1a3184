"""`python -m tasks COMMAND ...`, which is the command `trivgeo` in a checkout."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
