"""`python -m tasks fit|validate|test|predict|sweep --config FILE`, `... list`, `... report`, `... convert FILE`."""

import os
import signal
import sys

from lightning.pytorch.utilities.exceptions import SIGTERMException

from tasks import checkpoints, overlays, report, sweep
from tasks.cli import DEBUG, main
from trivgeo._text import ending_quietly
from trivgeo.errors import TrivgeoError


@ending_quietly()
def run(arguments: list[str]) -> None:
    """Run a subcommand.

    Bad input, and a disk that is full, is one line and status 2, or a traceback where `JSONARGPARSE_DEBUG` is true. A
    run that is told to end by SIGTERM finishes its batch and ends with status 143.
    """
    try:
        match arguments:
            case ["sweep", *rest]:
                sweep.main(rest, main)
            case ["report", *rest]:
                report.main(rest)
            case ["convert", *rest]:
                checkpoints.main(rest)
            case ["list"]:
                sys.stdout.write("\n".join(overlays.names()) + "\n")
            case _:
                main(arguments)
    except SIGTERMException:
        goes_on = (
            "training goes on from its last checkpoint by --ckpt_path"
            if "fit" in arguments
            else "the batches that were done are kept, the same command goes on"
        )
        sys.stderr.write(f"stopped by SIGTERM: {goes_on}\n")
        sys.exit(128 + signal.SIGTERM)
    except (TrivgeoError, ValueError) as error:
        reason = _cause(error)
        if reason is None or os.environ.get(DEBUG):
            raise
        sys.stderr.write(f"error: {type(reason).__name__}: {reason}\n")
        sys.exit(2)


def _cause(error: BaseException | None) -> TrivgeoError | None:
    """The error of ours that another, such as the parser's, was raised from."""
    while error is not None and not isinstance(error, TrivgeoError):
        error = error.__cause__ or error.__context__
    return error


if __name__ == "__main__":
    run(sys.argv[1:])
