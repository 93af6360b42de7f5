"""All figures of the page on many ranks, one after another; run it where nothing else runs.

python benchmarks/ranks/page.py
"""

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = {
    "What is hidden": ["reduction_overlap.py"],
    "Processor time": ["step_overhead.py", "--processor", "--width", "1024", "--batch", "64"],
    "Steps by the clock": ["step_overhead.py"],
    "Bytes": ["planned_bytes.py"],
    "Forces by DDP on 1 rank": ["1", "ddp"],
    "Forces by DDP on 2 ranks": ["2", "ddp"],
    "Forces by DDP on 4 ranks": ["4", "ddp"],
    "Forces with parts on 2 ranks": ["2", "sharded"],
    "Forces with parts on 4 ranks": ["4", "sharded"],
}


def command_of(given: list[str], quick: bool) -> list[str]:
    """A benchmark of this folder, or the example on some ranks."""
    first, *rest = given
    if first.endswith(".py"):
        return [sys.executable, str(HERE / first), *rest, *["--quick"] * quick]
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", first]
    example = str(HERE.parents[1] / "examples" / "distributed_forces.py")
    more = ["--width", "256", "--size", "256", "--steps", "5" if quick else "100"]
    return [sys.executable, *start, example, *rest, *more]


def main() -> None:
    begun = time.monotonic()
    failed = False
    for title, given in SETTINGS.items():
        print(f"\n## {title}", flush=True)
        ended = subprocess.run(command_of(given, "--quick" in sys.argv), check=False)
        failed |= ended.returncode != 0
        print(f"({time.monotonic() - begun:.0f} s so far)", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
