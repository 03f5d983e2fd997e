"""Checks that play again: the same answers everywhere, nothing disturbed, no limit unsaid."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, cast

from bmrl.envs.base import Env, Step, Task
from bmrl.envs.checking.shared import changes, shared_state
from bmrl.envs.checking.world import Answers, World, after, build, short
from bmrl.envs.replay import Fault, play, reset, step
from bmrl.errors import BmrlError

PLAYS = 8  # random plays that look for a step cap
WORKER_S = 60.0  # longest answer of a worker, making the environment included


def determinism(world: World) -> Iterator[str]:
    """The same task and actions give the same answers, in a new environment and in one used before."""
    used = world.build()
    for task, actions, answers in world.played():
        for env, where in ((world.build(), "in another environment"), (used, "in an environment used before")):
            if (seen := _difference(actions, answers, play(env, task, actions), where)) is not None:
                yield f"{task.task_id}: {seen}"
                return


def isolation(world: World) -> Iterator[str]:
    """Two environments in turns answer as each alone, and what the process shares stays as it is."""
    for (one, ones), (two, twos) in zip(world.scripts, [*world.scripts[1:], world.scripts[0]], strict=True):
        alone = play(world.build(), one, ones)
        if alone != play(world.build(), one, ones):
            continue  # told by determinism
        envs = world.build(), world.build()
        mixed, other = [reset(envs[0], one)], reset(envs[1], two)
        for turn in range(len(alone) - 1):
            if turn < len(twos) and isinstance(other, Step) and not other.terminated:
                other = step(envs[1], twos[turn])
            mixed.append(step(envs[0], ones[turn]))
        if (seen := _difference(ones, alone, mixed, f"in turns with one that plays {two.task_id}")) is not None:
            yield f"{one.task_id}: {seen}"
            break
    changed = changes(world.before)
    again = shared_state()  # now with what was imported meanwhile
    for _ in world.played():
        pass
    for name in dict.fromkeys([*changed, *changes(again)]):
        yield f"it changes {name}"


def workers(world: World) -> Iterator[str]:
    """In worker processes, where the order of sets is another, it answers the same."""
    from bmrl.envs.pool import Failed, Pool

    try:
        pickle.dumps(world.build)
    except Exception:
        return  # a class that only this process can make
    task, said = world.scripts[0]
    alone = play(world.build(), task, said)
    if any(isinstance(answer, Fault) for answer in alone) or alone != play(world.build(), task, said):
        return  # told by other checks
    setting = {"world": cast(Any, world.build).args[0], "args": cast(Any, world.build).args[1]}
    try:
        with Pool("", setting, workers=2, timeout_s=WORKER_S, slots=2, make=_in_worker) as pool:
            for slot in (0, 1):
                pool.reset(slot, task)
            for turn in range(len(alone)):
                for answer in pool.collect((0, 1)):
                    told = Fault(True, answer.error) if isinstance(answer, Failed) else answer.step
                    where = "in a worker process"
                    if (seen := _difference(said, alone[: turn + 1], [*alone[:turn], told], where)) is not None:
                        yield f"{task.task_id}: {seen}"
                        return
                if turn < len(alone) - 1:
                    for slot in (0, 1):
                        pool.step(slot, said[turn])
    except BmrlError as error:
        yield str(error)


def _in_worker(_: str, *, world: str | Callable[..., Env], args: Mapping[str, Any]) -> Env:
    return build(world, args)


def limits(world: World) -> Iterator[str]:
    """An own limit of turns is stated as ``max_turns``, or there is none up to the largest budget."""
    stated = getattr(world.build(), "max_turns", None)
    turns = world.turns if stated is None else min(world.turns, stated - 1)
    if (found := _cap(world, turns)) is None:
        return
    fix = f"state it as max_turns = {found}" if stated is None else f"not after its max_turns of {stated}"
    yield f"it ends after {found} turns without a win, whatever is played; {fix}"


def _cap(world: World, turns: int) -> int | None:
    """The turn at which plays that have nothing in common end alike; None: there is none up to ``turns``."""

    def lost_after(task: Task, said: Sequence[str]) -> int | None:
        answers = play(world.build(), task, said)
        last = answers[-1]
        ended = last.raised and len(answers) > 2 if isinstance(last, Fault) else last.terminated and not last.won
        return len(answers) - 1 if ended else None

    for task in world.sample()[:2]:
        # One that loses by wrong answers lasts longer if right ones come first; a step cap does not.
        begun = task.plan[:-1]
        idle = lost_after(task, [""] * turns)
        if idle is not None and idle == lost_after(task, [*begun, *[""] * turns][:turns]):
            return idle
        lengths = {_random_loss(world, task, turns, seed, begun if seed % 2 else ()) for seed in range(PLAYS)}
        if len(lengths) == 1 and None not in lengths:
            return lengths.pop()
    return None


def _random_loss(world: World, task: Task, turns: int, seed: int, begun: Sequence[str]) -> int | None:
    """Turns until a play of random admissible commands, after some that are given, is lost; None: it is not."""
    env, rng = world.build(), Random(f"limits/{seed}")
    answer = reset(env, task)
    for turn in range(1, turns + 1):
        if isinstance(answer, Fault) or not answer.admissible:
            return None
        # A play that wins says nothing: the command that would is left out.
        choice = [command for command in answer.admissible if command not in task.plan[-1:]] or answer.admissible
        answer = step(env, begun[turn - 1] if turn <= len(begun) else rng.choice(choice))
        if isinstance(answer, Step) and answer.terminated:
            return None if answer.won else turn
    return None


def _difference(said: Sequence[str], one: Answers, two: Answers, where: str) -> str | None:
    """Where two plays part, in one line."""
    for turn, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return f"{after(said, turn)} it answered {_told(a, b)}, and {where} {_told(b, a)}"
    return None if len(one) == len(two) else f"{len(one) - 1} turns, and {where} {len(two) - 1}"


def _told(answer: Step | Fault, other: Step | Fault) -> str:
    """What of an answer is not so in the other."""
    if isinstance(answer, Fault):
        return answer.text
    if isinstance(other, Step) and answer.observation == other.observation:
        names = ("reward", "terminated", "won", "admissible")
        name = next(name for name in names if getattr(answer, name) != getattr(other, name))
        return f"{name} {short(str(getattr(answer, name)))}"
    return short(answer.observation)
