"""Whether bmrl does on a card what it says, in one command of at most six minutes, without network.

`python benchmarks/gpu_check.py [--out FILE] [--rehearse]`; see README.md in this folder. Needs torch, transformers and
peft; bmrl itself is taken from this clone and need not be installed.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

NEEDED = ("torch", "transformers", "peft", "numpy", "safetensors")  # of bmrl's requirements, for what runs here
SECONDS = 345  # of the six minutes; the rest is for the end of what was begun
CAP_GB = 24.0


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def refuse_missing() -> None:
    """Installs what is missing if a network is there; otherwise ends with one line."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        return
    say(f"missing: {', '.join(missing)}; trying pip")
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    wanted = [line for line in asked if re.split(r"[<>=\[]", line)[0] in missing]
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--timeout", "5", "--retries", "0"]
    subprocess.run([*line, *wanted], stdout=sys.stderr, check=False)
    invalidate_caches()
    if missing := [name for name in missing if find_spec(name) is None]:
        say(f"gpu_check: missing: {', '.join(missing)}, and pip cannot install them; install them by hand")
        sys.exit(2)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="all of it on the CPU with tiny models")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures as JSON, after each part")
    parser.add_argument("--cap-gb", type=float, default=CAP_GB, help="memory that may be used (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time to begin parts in (default: %(default)s)")
    parser.add_argument("--only", choices=["1.5B bf16", "7B NF4"], help="one of the two models")
    return parser.parse_args()


def main() -> None:
    """Runs, prints the table, and ends with 1 if anything failed."""
    given = options()
    refuse_missing()
    import torch
    from gpu_judge import judged, table
    from gpu_run import Check

    if not given.rehearse and not torch.cuda.is_available():
        say("gpu_check: no CUDA device is visible; --rehearse runs all of it on the CPU with tiny models")
        sys.exit(2)
    check = Check(rehearse=given.rehearse, out=given.out, cap_gb=given.cap_gb, seconds=given.seconds)
    check.run(given.only)
    rows = judged(check.found)
    check.found["table"] = [row._asdict() for row in rows]
    check.write()
    sys.stdout.write(table(check.found, rows) + "\n")
    sys.exit(1 if any(row.result == "fail" for row in rows) else 0)


if __name__ == "__main__":
    main()
