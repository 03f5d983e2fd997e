"""Playing given actions: what an environment answers, what goes wrong, whether a plan wins."""

from collections.abc import Iterable
from dataclasses import dataclass

from bmrl.envs.base import Env, Step, Task
from bmrl.envs.worker import checked, describe


@dataclass(frozen=True, slots=True)
class Fault:
    """What an environment did instead of answering.

    Attributes:
        raised: it raised; otherwise its answer breaks the protocol.
        text: one line.
    """

    raised: bool
    text: str


def reset(env: Env, task: Task) -> Step | Fault:
    """The opening as a step that earned nothing."""
    try:
        answer = Step(env.reset(task), 0.0, False, False, env.admissible)
    except (Exception, SystemExit) as error:
        return Fault(True, describe(error))
    return _checked(answer)


def step(env: Env, action: str) -> Step | Fault:
    """The answer to an action."""
    try:
        answer = env.step(action)
    except (Exception, SystemExit) as error:
        return Fault(True, describe(error))
    return _checked(answer)


def _checked(answer: object) -> Step | Fault:
    try:
        return checked(answer)
    except (TypeError, ValueError, OverflowError) as error:
        return Fault(False, str(error))


def play(env: Env, task: Task, actions: Iterable[str]) -> list[Step | Fault]:
    """Opening and answers, up to the end of the game or the first fault."""
    answers = [reset(env, task)]
    for action in actions:
        last = answers[-1]
        if isinstance(last, Fault) or last.terminated:
            break
        answers.append(step(env, action))
    return answers


def plan_fault(env: Env, task: Task) -> str | None:
    """What is wrong with a task's plan, or None: it must win with its last command and not before."""
    if not task.plan:
        return "it has no plan"
    answers = play(env, task, task.plan)
    turn, last = len(answers) - 1, answers[-1]
    if isinstance(last, Fault):
        return f"at turn {turn} of {len(task.plan)} it {'raised' if last.raised else 'answered'} {last.text}"
    if last.won and turn == len(task.plan):
        return None
    if last.terminated:
        return f"it is {'won' if last.won else 'lost'} at turn {turn} of {len(task.plan)}"
    return "its plan does not win"
