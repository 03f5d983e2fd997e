"""ALFWorld's engine for the slow tests: unmodified, and Fast Downward as a planner.

Imports nothing of it before it is used. `import alfworld` makes a folder and sets $ALFWORLD_DATA; here it
is given a folder of the test's, and what was set before is set again.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from bmrl.envs.alfworld.twin import Twin

# What an agent may send and no engine accepts, or accepts only in one spelling; {r} and {o} are things of the game.
WRONG = (
    *(
        "",
        " ",
        "\t",
        "\n",
        "Look",
        "LOOK",
        "look ",
        " look",
        "  look  ",
        "look.",
        "inventory\n",
        "look\x00",
        "look look",
    ),
    *(
        "go to",
        "go to nowhere 1",
        "go  to {r}",
        "go to {r} ",
        "Go to {r}",
        "go to {r} 1",
        "goto {r}",
        "go to {r}; look",
    ),
    *(
        "open",
        "close",
        "examine",
        "use",
        "take {o}",
        "take {o} from nowhere 1",
        "use {o}",
        "examine {o}",
        "dance with {r}",
    ),
    *("put {o} in/on {r}", "put {o} in {r}", "move {o} in/on {r}", "{r}", "{o}", "help me", "<action>look</action>"),
    *("go to caf\u00e9 1", "\u8d70\u5411\u51b0\u7bb1", "\U0001f955" * 3, "look\u00a0", "\u200blook", "l\u043eok"),
    *("x" * 10_000, "go to {r} " * 300, "take " + "{o} " * 500),
)


class Player:
    """Chooses commands: those of a plan, random ones with rare verbs first, wrong ones, ones of a turn ago."""

    def __init__(self, twin: Twin, plan: tuple[str, ...], rng: Random) -> None:
        self._twin, self._plan, self._rng = twin, list(plan), rng
        self._used: dict[str, int] = {}
        self._before: tuple[str, ...] = ()
        self._receptacles = list(twin.game.place)
        self._objects = sorted(o for inside in twin.game.inside.values() for o in inside)

    def next(self, wrong: float = 0.25) -> str:
        now, rng = self._twin.admissible, self._rng
        stale = sorted(set(self._before) - set(now))
        self._before = now
        if self._plan:
            return self._plan.pop(0)
        if rng.random() < wrong:
            kind = rng.randrange(4)
            if kind == 0 and stale:
                return rng.choice(stale)
            if kind == 1:
                return self._misspelled(rng.choice(now))
            form = rng.choice(WRONG)
            return form.replace("{r}", rng.choice(self._receptacles)).replace("{o}", rng.choice(self._objects))
        verbs = sorted({command.split()[0] for command in now})
        verb = rng.choices(verbs, [1 / (1 + self._used.get(v, 0)) for v in verbs])[0]
        self._used[verb] = self._used.get(verb, 0) + 1
        return rng.choice([command for command in now if command.split()[0] == verb])

    def _misspelled(self, command: str) -> str:
        at = self._rng.randrange(len(command))
        forms = (
            command.upper(),
            command.title(),
            f"  {command}\n",
            command.replace(" ", "  "),
            command[:at],
            f"{command}.",
        )
        return self._rng.choice((*forms, command[:at] + command[at + 1 :], command[:at] + "\u00e9" + command[at:]))


@contextmanager
def alfworld_imports(folder: Path) -> Iterator[None]:
    """Imports of alfworld leave the environment variable and ``sys.argv`` as they were."""
    data, argv = os.environ.get("ALFWORLD_DATA"), sys.argv
    os.environ["ALFWORLD_DATA"] = str(folder)
    try:
        yield
    finally:
        sys.argv = argv
        if data is None:
            del os.environ["ALFWORLD_DATA"]
        else:
            os.environ["ALFWORLD_DATA"] = data


class Unmodified:
    """The engine as ALFWorld builds it."""

    def __init__(self, game: Path, scratch: Path) -> None:
        with alfworld_imports(scratch):
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
            from textworld.envs import PddlEnv

            infos = textworld.EnvInfos(won=True, admissible_commands=True)
            self._env = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
            self._env.load(str(game))
            self._note(self._env.reset())
        self.opening = self.text

    def step(self, command: str) -> str:
        state, self.score, self.done = self._env.step(command)
        return self._note(state)

    def _note(self, state: Any) -> str:
        self.text, self.won = state.feedback, state.won
        self.admissible = tuple(state.admissible_commands)
        return str(self.text)


def fewest(engine: Any, raw: Mapping[str, Any]) -> int | None:
    """Fast Downward's optimum from the engine's present state, each action counting one; None: no plan."""
    import fast_downward

    from bmrl.envs.alfworld.engine import _arguments_kept

    # Without costs each action costs 1; with ALFWorld's own, cleaning would count five turns.
    domain = re.sub(r"\(increase \(total-cost\) \d+\)", "", raw["pddl_domain"])
    said = [fact for fact in engine._state.facts if not fact.is_negation and fact.name not in ("checked", "examined")]
    facts = "\n".join(f"({fact.name} {' '.join(thing.name for thing in fact.arguments)})" for fact in said)
    head, rest = raw["pddl_problem"].split("(:init", 1)
    goal = rest.split("(:goal", 1)[1]
    with _arguments_kept():
        _, sas = fast_downward.pddl2sas(domain, f"{head}(:init\n{facts}\n)\n(:goal{goal}", optimize=True)
    return engine._lib.get_last_plan_length() if engine._lib.solve_sas(sas.encode(), False) else None
