"""`python -m tasks fit|validate|test|predict --config FILE`, `python -m tasks sweep --config FILE`, `... report`."""

import sys

from tasks import report, sweep
from tasks.cli import main

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sweep", *arguments]:
            sweep.main(arguments, main)
        case ["report", *arguments]:
            report.main(arguments)
        case _:
            main()
