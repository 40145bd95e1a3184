"""One test on one process and on two, of one CPU thread each, started by torchrun.

python -m benchmarks.devices
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.timing import environment

OUTPUT = Path(__file__).parent / "results" / "devices-cpu.json"
CONFIG = "heat/tied"
SEEDS = "[0,1,2,3]"  # a batch of ten problems each


def measured(processes: int, folder: Path) -> dict[str, float]:
    """Seconds of the slowest process, imports left out, and the error."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "benchmarks.devices", "--worker", str(folder), "--processes", str(processes)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    times = [json.loads(path.read_text()) for path in folder.glob("times.*.json")]
    document = json.loads((folder / "results.json").read_text())
    return {
        "processes": processes,
        "seconds": max(t["seconds"] for t in times),
        "cpu_seconds": max(t["cpu_seconds"] for t in times),
        "error": document["metrics"]["with inversion"]["mean"],
        "cases": len(document["rows"]),
    }


def work(folder: Path, processes: int) -> None:
    """What one process does."""
    from tasks.cli import main  # not by the process that only starts others

    options = {
        "config": CONFIG,
        "data.init_args.seeds": SEEDS,
        "trainer.accelerator": "cpu",
        "trainer.devices": processes,
        "trainer.strategy": "ddp",
        "trainer.enable_progress_bar": "false",
        "trainer.default_root_dir": folder,
    }
    start, used = time.perf_counter(), time.process_time()
    main(["test", *(f"--{name}={value}" for name, value in options.items())])
    taken = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - used}
    (folder / f"times.{os.environ['RANK']}.json").write_text(json.dumps(taken))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default=OUTPUT, help="JSON file to write")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=2, help="the larger number of processes")
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.processes)
        return
    rows = []
    for processes in (1, options.processes):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(processes, Path(folder)))
        print(rows[-1], flush=True)
    load = os.getloadavg()[0]
    document = {
        "environment": environment(torch.device("cpu")),
        "config": CONFIG,
        "seeds": SEEDS,
        "load": load,
        "rows": rows,
    }
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
