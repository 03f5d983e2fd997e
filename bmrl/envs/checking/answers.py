"""Checks of single answers: each yields one line for what it saw, nothing where all is well."""

from collections.abc import Iterator

from bmrl.envs.base import Step, Task
from bmrl.envs.checking.world import NONSENSE, World, after, short
from bmrl.envs.replay import Fault, plan_fault, play, reset, step

HOSTILE = (
    "",
    "   ",
    "x" * 100_000,
    "go\nto\tthe door",
    "ünïcödé 漢字 🙂 \u202eright to left",
    "\x00\x1b[31m",
    "{0} %s \\",
)
COMMANDS = 30  # admissible commands tried in one state


def types(world: World) -> Iterator[str]:
    """Texts are text, rewards are finite numbers, flags are flags, a win is an end."""
    seen = set()
    for task, actions, answers in world.played():
        last = answers[-1]
        if isinstance(last, Fault) and not last.raised and last.text not in seen:
            seen.add(last.text)
            yield f"{task.task_id}: {after(actions, len(answers) - 1)}: {last.text}"


def rewards(world: World) -> Iterator[str]:
    """Rewards of a step lie in the range that the environment states."""
    low, high = getattr(world.build(), "reward_range", (0.0, 1.0))
    for task, actions, answers in world.played():
        for turn, answer in enumerate(answers):
            if isinstance(answer, Step) and not low <= answer.reward <= high:
                found = f"{answer.reward:g} {after(actions, turn)}"
                yield f"{task.task_id}: {found}, outside reward_range ({low:g}, {high:g})"
                return


def admissible(world: World) -> Iterator[str]:
    """Commands are sorted, the same in answer and attribute, and none is answered as nonsense is."""
    for task, actions in world.scripts:
        env = world.build()
        answer = reset(env, task)
        for turn in range(len(actions) + 1):
            if isinstance(answer, Fault) or answer.terminated:
                break
            listed = answer.admissible
            if listed is not None and list(listed) != sorted(set(listed)):
                yield f"{task.task_id}: {after(actions, turn)} not sorted, or one twice: {short(', '.join(listed))}"
                return
            if listed != env.admissible:
                yield f"{task.task_id}: {after(actions, turn)} the attribute admissible is not that of the answer"
                return
            if turn < len(actions):
                answer = step(env, actions[turn])
    for task in world.sample():
        for prefix in dict.fromkeys((task.plan[:0], task.plan[: len(task.plan) // 2])):
            refused = _refused(world, task, prefix)
            if refused is not None:
                yield f"{task.task_id}: it lists {refused}"
                return


def _refused(world: World, task: Task, prefix: tuple[str, ...]) -> str | None:
    """An admissible command that is not accepted, with what was seen."""
    env = world.build()

    def answer(command: str) -> Step | Fault:
        return play(env, task, [*prefix, command])[-1]

    state, nonsense = play(env, task, prefix)[-1], answer(NONSENSE)
    if isinstance(state, Fault) or state.terminated:
        return None
    for command in (state.admissible or ())[:COMMANDS]:
        found = answer(command)
        if isinstance(found, Fault):
            if found.raised:
                return f"{command!r}, which raised {found.text}"
            continue  # told by types
        if found == nonsense:
            return f"{command!r}, but answers it as it does nonsense: {short(found.observation)}"
    return None


def plan(world: World) -> Iterator[str]:
    """A plan wins with its last command."""
    for task in world.sample():
        last = play(world.build(), task, task.plan)[-1]
        told = isinstance(last, Fault) and not last.raised  # by types
        if task.plan and not told and (fault := plan_fault(world.build(), task)) is not None:
            yield f"{task.task_id}: {fault}"


def distance(world: World) -> Iterator[str]:
    """Where it is known, it falls by one along a shortest plan, to 0."""
    for task in world.sample():
        if not task.plan:
            continue
        env = world.build()
        env.reset(task)
        found = [env.distance()]
        for command in task.plan:
            env.step(command)
            found.append(env.distance())
        if set(found) != {None} and found != list(range(len(task.plan), -1, -1)):
            yield f"{task.task_id}: {', '.join(map(str, found))} along its plan of {len(task.plan)} turns"


def actions(world: World) -> Iterator[str]:
    """Any text is answered: none, blanks, a very long one, any characters."""
    for task, said, answers in world.played():
        last = answers[-1]
        if isinstance(last, Fault) and last.raised:
            yield f"{task.task_id}: {after(said, len(answers) - 1)} it raised {last.text}"
            return
    task = world.sample()[0]
    for action in HOSTILE:
        answer = play(world.build(), task, [action])[-1]
        if isinstance(answer, Fault) and answer.raised:
            yield f"{short(action)} raised {answer.text}"
        elif isinstance(answer, Step) and answer.won:
            yield f"{short(action)} wins {task.task_id}"


def close(world: World) -> Iterator[str]:
    """It can be closed twice, before and after a play."""
    for when, prepare in (("before a reset", False), ("after a play", True)):
        env = world.build()
        if prepare:
            play(env, *world.scripts[0])
        for time in ("once", "twice"):
            try:
                env.close()
            except (Exception, SystemExit) as error:
                yield f"closed {time} {when} it raised {type(error).__name__}: {error}"
                break


def split_hash(world: World) -> Iterator[str]:
    """It is text, the same in every environment, and tells splits of different tasks apart."""
    env, found = world.build(), dict[str, str]()
    for split in world.tasks:
        found[split] = env.split_hash(split)
        if not isinstance(found[split], str) or not found[split]:
            yield f"{split}: {found[split]!r} is no text"
            return
    play(env, *world.scripts[0])
    for split, tasks in world.tasks.items():
        for other in (env.split_hash(split), world.build().split_hash(split)):
            if other != found[split]:
                yield f"{split}: {short(found[split])}, and asked again {short(other)}"
                return
        for name, others in world.tasks.items():
            if found[name] == found[split] and [t.task_id for t in others] != [t.task_id for t in tasks]:
                yield f"{split} and {name} have the same, but not the same tasks"
                return
