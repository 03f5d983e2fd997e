"""Whether an environment keeps the protocol, found out by playing it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from bmrl.envs.base import Env, Step, Task
from bmrl.envs.checking import answers, repeats
from bmrl.envs.checking.shared import restore, shared_state
from bmrl.envs.checking.world import NONSENSE, World, build
from bmrl.envs.replay import reset, step
from bmrl.envs.worker import describe
from bmrl.errors import BmrlError, UsageError

TASKS = 3  # of each split, spread over it
WANDER = 12  # turns of a play that is not a plan
WORDS = ("look", "help", "yes", "no", "1", "go north")  # for environments that do not say what they accept

METHODS = ("tasks", "split_hash", "reset", "step", "distance", "close")

CHECKS: dict[str, Callable[[World], Iterator[str]]] = {
    "types": answers.types,
    "rewards": answers.rewards,
    "admissible": answers.admissible,
    "plan": answers.plan,
    "distance": answers.distance,
    "determinism": repeats.determinism,
    "isolation": repeats.isolation,
    "actions": answers.actions,
    "limits": repeats.limits,
    "close": answers.close,
    "split_hash": answers.split_hash,
    "workers": repeats.workers,
}


def check(
    world: str | Callable[..., Env], args: Mapping[str, Any], *, splits: Sequence[str], turns: int
) -> dict[str, list[str]]:
    """See `bmrl.envs.check_env`: for each check what it found; without ``api`` none of the others is run."""
    from bmrl.envs import environment

    cls = environment(world) if isinstance(world, str) else world
    if not callable(cls):
        raise UsageError(
            f"check_env takes a name or a class, not {type(world).__name__}: it makes several environments"
        )
    before = shared_state()
    one = partial(build, world, dict(args))
    try:
        problems, tasks = _api(one, splits)
        if problems:
            return {"api": problems}
        sample = [task for split in tasks.values() for task in _spread(split)]
        made = World(one, tasks, _scripts(one, sample), turns, before)
        return {"api": [], **{name: list(_guarded(test, made)) for name, test in CHECKS.items()}}
    finally:
        restore(before)


def _guarded(one: Callable[[World], Iterator[str]], world: World) -> Iterator[str]:
    try:
        yield from one(world)
    except (Exception, SystemExit) as error:  # the environment's, where a check did not expect it
        yield f"it raised {describe(error)}"


def _api(make: Callable[[], Env], splits: Sequence[str]) -> tuple[list[str], dict[str, Sequence[Task]]]:
    """What is missing or of the wrong type, without which nothing else can be told; the tasks of each split."""
    try:
        env: Any = make()
    except BmrlError:
        raise  # of bmrl's own making: wrong arguments, a missing package
    except (Exception, SystemExit) as error:
        return [f"it cannot be made: {describe(error)}"], {}
    problems = [f"it has no method {name}" for name in METHODS if not callable(getattr(env, name, None))]
    if problems:
        return problems, {}
    tasks: dict[str, Sequence[Task]] = {}
    for split in splits or getattr(env, "splits", lambda: ["train"])():
        try:
            tasks[split] = tuple(env.tasks(split))
        except (Exception, SystemExit) as error:
            problems.append(f"tasks({split!r}) raised {describe(error)}; name its splits with splits()")
            continue
        if (wrong := _wrong_tasks(tasks[split])) is not None:
            problems.append(f"tasks({split!r}): {wrong}")
    if problems:
        return problems, {}
    first = next(iter(tasks.values()))[0]
    try:
        env.reset(first)
    except (Exception, SystemExit) as error:
        return [f"reset({first.task_id}) raised {describe(error)}"], {}
    if not hasattr(env, "admissible"):
        problems.append("reset sets no attribute admissible; None says that it cannot tell")
    return problems, tasks


def _wrong_tasks(tasks: Sequence[Any]) -> str | None:
    if not tasks:
        return "there are none"
    for task in tasks:
        if not isinstance(task, Task):
            return f"a {type(task).__name__} among them, not a Task"
        name: Any = task.task_id  # as stated, which need not be so
        plan: Any = task.plan
        if not isinstance(name, str):
            return f"the task_id {name!r} is not text"
        if not isinstance(plan, tuple) or not all(isinstance(command, str) for command in plan):
            return f"the plan of {name} is not a tuple of texts"
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            return f"two are called {task.task_id}"
        seen.add(task.task_id)
    return None


def _spread(tasks: Sequence[Task]) -> list[Task]:
    """The first, the last and what lies between, evenly."""
    last, count = len(tasks) - 1, min(TASKS, len(tasks))
    return [tasks[round(i * last / max(count - 1, 1))] for i in range(count)]


def _scripts(make: Callable[[], Env], tasks: Sequence[Task]) -> list[tuple[Task, tuple[str, ...]]]:
    """For each task its plan and a wander through what is accepted, nonsense now and then."""
    scripts: list[tuple[Task, tuple[str, ...]]] = []
    for index, task in enumerate(tasks):
        env, rng, said = make(), Random(f"check/{index}"), list[str]()
        answer = reset(env, task)
        while isinstance(answer, Step) and not answer.terminated and len(said) < WANDER:
            said.append(NONSENSE if len(said) % 5 == 3 else rng.choice(answer.admissible or WORDS))
            answer = step(env, said[-1])
        scripts += [(task, task.plan)] * bool(task.plan) + [(task, tuple(said))]
    return scripts
