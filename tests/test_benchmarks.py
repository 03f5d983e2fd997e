"""The benchmarks run, and say what they could not measure."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_engines_side_by_side():
    line = [sys.executable, "benchmarks/env.py", "--games", "1", "--steps", "3", "--no-rollout", "--json"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["engines"]["fast"]["steps_per_s"] > 0
    assert found["engines"]["fast"]["pool_steps_per_s"] > 0
    assert found["rollout_share"] is None
    assert all("\n" not in told for told in found["missing"])
    has_engine = all(map(find_spec, ("alfworld", "textworld")))
    assert ("unmodified" in found["engines"]) == has_engine
    assert (found["fast_vs_unmodified"] is not None) == has_engine
    if not has_engine:
        (told,) = (told for told in found["missing"] if told.startswith("unmodified: "))
        assert told.startswith("unmodified: No module named")
