"""One episode of a policy, for somebody who watches."""

from bmrl.errors import UsageError
from bmrl.rollout import rollout
from bmrl.run.compose import make_player, make_pool, say
from bmrl.run.evaluate import load_policy
from bmrl.run.interrupt import interruptible
from bmrl.target import Target
from bmrl.types import Episode, Play


def play(target: Target, *, split: str, task_id: str, budget: int, seed: int, temperature: float | None) -> Episode:
    """The policy plays one task, as in an evaluation of that task by that seed.

    Args:
        target: from `target.find`; no baseline.
        temperature: 0 is greedy; the recipe's when None.

    Raises:
        UsageError: the split has no such task.
        BmrlError: the policy cannot be loaded.
    """
    recipe = target.recipe
    with interruptible() as poll, make_pool(recipe, slots=1) as pool:
        tasks = pool.tasks(split)
        place = next((at for at, task in enumerate(tasks) if task.task_id == task_id), None)
        if place is None:
            raise UsageError(f"--task: {split} has no game {task_id}")
        policy, checkpoint = load_policy(target)
        say(f"{target.name}{f', checkpoint {checkpoint}' if checkpoint else ''} plays")
        player = make_player(recipe, policy, pool, rows=1)
        (episode,) = rollout(
            [Play(0, place, seed, tasks[place], split, seed, budget)],
            sampler=player.sampler(),
            chat=player.chat,
            pool=pool,
            turn_tokens=player.turn_tokens,
            context_tokens=player.context_tokens,
            temperature=recipe.rollout.temperature if temperature is None else temperature,
            announce=player.announce,
            wording=player.wording,
            action_tokens=player.action_tokens,
            purpose="eval",
            on_episode=lambda _: None,
            poll=poll,
        )
    return episode
