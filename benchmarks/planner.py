"""Microseconds of a call of `env.distance()`, by kind of task: `python benchmarks/planner.py [--json]`.

States of the embedded games of valid_seen, reached by random commands, rare verbs first. No more than 50
microseconds a call on average are asked of it.
"""

import json
import time
from collections import defaultdict
from random import Random

import click

from bmrl.envs import make
from bmrl.system import system_info

STATES, CALLS = 30, 20  # states of a game; calls in each, of which the mean counts


def measure(seed: int) -> dict[str, float]:
    """Mean microseconds of CPU time of a call, by kind of task: what else runs on the machine does not count."""
    env = make("alfworld", source="embedded")
    spent: dict[str, list[float]] = defaultdict(list)
    for task in env.tasks("valid_seen"):
        rng = Random(f"{seed}/{task.task_id}")
        env.reset(task)
        for _ in range(STATES):
            accepted = env.admissible or ()
            verb = rng.choice(sorted({command.split()[0] for command in accepted}))
            if env.step(rng.choice([command for command in accepted if command.startswith(verb)])).terminated:
                env.reset(task)
            began = time.process_time()
            for _ in range(CALLS):
                env.distance()
            spent[task.kind].append((time.process_time() - began) / CALLS * 1e6)
    return {kind: sum(times) / len(times) for kind, times in spent.items()}


@click.command()
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(seed: int, as_json: bool) -> None:
    """Print the figures."""
    found = measure(seed)
    mean = sum(found.values()) / len(found)
    if as_json:
        click.echo(json.dumps({"distance_us": mean, "by_kind_us": found, "system": system_info()}))
        return
    for kind, value in found.items():
        click.echo(f"{value:8.1f} us  {kind}")
    click.echo(f"{mean:8.1f} us  mean; at most 50 are asked for")


if __name__ == "__main__":
    main()
