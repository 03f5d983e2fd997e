"""TextWorld: the kind of an action, judged from texts alone; expected kinds are worked out by hand."""

from importlib.util import find_spec
from random import Random

import pytest

from bmrl import envs
from bmrl.diagnose.transcripts import ERRORS, Referee
from bmrl.envs.textworld.kinds import Judge
from bmrl.errors import BmrlError

START = "You are in the hall.\nThe box is closed.\nExits: east, west (closed gate).\nYour task is to: find the coin and take it."
HALL = START.partition("\nYour task")[0]
EAST = "You are in the attic.\nOn the floor: hat.\nExits: west, north."
NORTH = "You are in the loft.\nOn the floor: coin.\nExits: south."
REFUSED = "You cannot do that."


def kinds(*played: tuple[str, str], opening: str = START) -> list[str]:
    judge = Judge(opening)
    return [judge.judge(action, text) for action, text in played]


def test_until_the_coin_is_seen_looking_where_nobody_has_looked_is_search():
    assert kinds(
        ("open box", "You open the box.\nIn the box: nothing."),  # it could have been there
        ("open box", REFUSED),
        ("look", HALL.replace("The box is closed.", "In the box: nothing.")),
        ("go east", EAST),
        ("go west", HALL.replace("The box is closed.", "In the box: nothing.")),  # away from the north
        ("go east", EAST),  # towards it, the nearest place not yet looked into
        ("take hat", "You take the hat."),
        ("dance", REFUSED),
    ) == ["search", "invalid", "redundant", "search", "redundant", "search", "ineffective", "invalid"]


def test_once_it_is_seen_the_known_way_decides():
    found = [("go east", EAST), ("go north", NORTH)]
    after = [
        ("go south", EAST),  # away from it
        ("look", EAST),
        ("go north", NORTH),
        ("inventory", "You carry: nothing."),  # nobody knew what is carried
        ("inventory", "You carry: nothing."),
        ("take coin", "You take the coin.\nYou have won."),
    ]
    assert kinds(*found, *after) == [
        "search",
        "search",
        "regress",
        "redundant",
        "progress",
        "search",
        "redundant",
        "progress",
    ]


def test_the_wrong_thing_is_a_step_back_and_a_list_of_commands_is_not_read():
    opening = (
        "You are in the hall.\nOn the floor: coin, jar.\nExits: none.\nYour task is to: find the coin and take it."
    )
    shown = "\nCommands: go east, take coin"
    assert kinds(("take jar", f"You take the jar.\nYou have lost.{shown}"), opening=opening + shown) == ["regress"]


def test_a_fork_is_independent():
    judge = Judge(START)
    assert judge.fork().judge("go east", EAST) == "search"
    assert judge.judge("go east", EAST) == "search"
    assert judge.judge("go east", REFUSED) == "invalid"


def test_a_task_that_cannot_be_read_is_told():
    with pytest.raises(BmrlError, match="cannot read the task"):
        Judge("You are in the hall.\nExits: none.")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("textworld") is None, reason="needs textworld: pip install 'bmrl[textworld]'")
@pytest.mark.parametrize("world", ["coin", "cooking", "treasure"])
def test_what_the_exploring_expert_does_is_hardly_ever_an_error(world):
    name = f"textworld_{world}"
    env = envs.make(name)
    tasks = env.tasks("valid_seen")[:15]
    referee = Referee(env, envs.judge(name), tasks)
    found = []
    for number, task in enumerate(tasks):
        expert = envs.explorer(name, env.reset(task), Random(number))
        actions = []
        for _ in range(40):
            actions.append(expert.act())
            step = env.step(actions[-1])
            expert.observe(actions[-1], step.observation)
            if step.terminated:
                break
        found += referee.read(task, actions).kinds
    assert referee.by == "transcript"
    assert sum(kind in ERRORS for kind in found) <= 0.02 * len(found)
