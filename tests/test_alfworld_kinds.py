"""The kind of an action, judged from texts alone; expected kinds are worked out by hand."""

from random import Random

import pytest

from bmrl.envs.alfworld.expert import Expert
from bmrl.envs.alfworld.game import game_from_record
from bmrl.envs.alfworld.kinds import Judge, judged, kinds, oracle
from bmrl.envs.alfworld.splits import read_split
from bmrl.envs.alfworld.twin import Twin
from bmrl.envs.base import KINDS
from bmrl.errors import BmrlError

KITCHEN = ("cabinet 1", "countertop 1", "fridge 1", "microwave 1", "sinkbasin 1")


def opening(goal: str, places: tuple[str, ...] = KITCHEN) -> str:
    seen = ", ".join(f"a {place}" for place in places[:-1])
    return (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, "
        f"you see {seen}, and a {places[-1]}.\n\nYour task is to: {goal}."
    )


def at(place: str, *things: str, door: bool = False) -> str:
    """What is said on arrival at a place that lies open."""
    content = ", and ".join(filter(None, [", ".join(f"a {t}" for t in things[:-1]), *(f"a {t}" for t in things[-1:])]))
    lead = f"The {place} is open. In it" if door else f"On the {place}"
    return f"You arrive at {place}. {lead}, you see {content or 'nothing'}."


def closed(place: str) -> str:
    return f"You arrive at {place}. The {place} is closed."


def opened(place: str, *things: str) -> str:
    return f"You open the {place}. " + at(place, *things, door=True).partition(". ")[2]


def check(goal: str, *turns: tuple[str, str, str], places: tuple[str, ...] = KITCHEN) -> None:
    """(action, answer, expected kind) in order."""
    found = kinds(opening(goal, places), [turn[0] for turn in turns], [turn[1] for turn in turns])
    assert list(zip([turn[0] for turn in turns], found, strict=True)) == [(turn[0], turn[2]) for turn in turns]


def test_pick_and_place_search_and_what_wastes_it():
    check(
        "put some apple on fridge",
        ("look", "You are in the middle of a room. Looking quickly around you, you see nothing.", "ineffective"),
        ("fly to moon", "Nothing happens.", "invalid"),
        ("go to countertop 1", at("countertop 1", "fork 1"), "search"),
        ("examine countertop 1", at("countertop 1", "fork 1").partition(". ")[2], "redundant"),
        ("inventory", "You are not carrying anything.", "ineffective"),
        # A fork is not wanted, but nothing that is has been seen yet: neither regress nor progress.
        ("take fork 1 from countertop 1", "You pick up the fork 1 from the countertop 1.", "ineffective"),
        ("move fork 1 to countertop 1", "You move the fork 1 to the countertop 1.", "ineffective"),
        ("go to cabinet 1", closed("cabinet 1"), "search"),
        ("go to countertop 1", at("countertop 1", "fork 1"), "redundant"),
        ("go to cabinet 1", closed("cabinet 1"), "redundant"),  # still closed: to come again shows nothing
        ("open cabinet 1", opened("cabinet 1", "apple 1"), "search"),
        # Seen: take, go, open, move are left, 4 turns.
        ("take apple 1 from cabinet 1", "You pick up the apple 1 from the cabinet 1.", "progress"),
        ("close cabinet 1", "You close the cabinet 1.", "ineffective"),
        ("take apple 1 from cabinet 1", "Nothing happens.", "invalid"),
        ("go to fridge 1", closed("fridge 1"), "progress"),  # unseen, but wanted for itself now
        ("open fridge 1", opened("fridge 1"), "progress"),
        ("close fridge 1", "You close the fridge 1.", "regress"),
        ("open fridge 1", opened("fridge 1"), "progress"),
        ("go to countertop 1", at("countertop 1", "fork 1"), "regress"),
        ("go to sinkbasin 1", at("sinkbasin 1"), "search"),  # 2 turns before and after: go, move
        ("go to countertop 1", at("countertop 1", "fork 1"), "redundant"),
        ("go to fridge 1", at("fridge 1", door=True), "progress"),
        ("move apple 1 to fridge 1", "You move the apple 1 to the fridge 1.", "progress"),
    )


@pytest.mark.parametrize(
    ("goal", "verb", "tool", "door"),
    [
        ("put a clean apple in countertop", "clean", "sinkbasin 1", False),
        ("put a hot apple in countertop", "heat", "microwave 1", True),
        ("put a cool apple in countertop", "cool", "fridge 1", True),
    ],
)
def test_an_object_that_has_to_be_changed(goal, verb, tool, door):
    did = f"You {verb} the apple 1 using the {tool}."
    check(
        goal,
        ("go to cabinet 1", closed("cabinet 1"), "search"),
        ("open cabinet 1", opened("cabinet 1", "apple 1", "fork 1"), "search"),
        # Left: take, go, change, go, move: 5. With the fork in hand it has to be laid down first: 6.
        ("take fork 1 from cabinet 1", "You pick up the fork 1 from the cabinet 1.", "regress"),
        ("move fork 1 to cabinet 1", "You move the fork 1 to the cabinet 1.", "progress"),
        ("take apple 1 from cabinet 1", "You pick up the apple 1 from the cabinet 1.", "progress"),
        (f"go to {tool}", closed(tool) if door else at(tool), "progress"),
        (f"{verb} apple 1 with {tool}", did, "progress"),
        (f"{verb} apple 1 with {tool}", did, "ineffective"),
        ("go to countertop 1", at("countertop 1"), "progress"),
        ("move apple 1 to countertop 1", "You move the apple 1 to the countertop 1.", "progress"),
    )


def test_cooling_undoes_heat():
    check(
        "heat some apple and put it in countertop",
        ("go to fridge 1", at("fridge 1", "apple 1", door=True), "search"),
        ("take apple 1 from fridge 1", "You pick up the apple 1 from the fridge 1.", "progress"),
        ("go to microwave 1", closed("microwave 1"), "progress"),
        ("heat apple 1 with microwave 1", "You heat the apple 1 using the microwave 1.", "progress"),
        ("go to fridge 1", at("fridge 1", door=True), "redundant"),  # go, move: 2 as before
        ("cool apple 1 with fridge 1", "You cool the apple 1 using the fridge 1.", "regress"),
    )


def test_two_objects():
    check(
        "put two apple in fridge",
        ("go to countertop 1", at("countertop 1", "apple 2"), "search"),
        # One of two is seen: what is done with it counts, though the other is still to be found.
        ("take apple 2 from countertop 1", "You pick up the apple 2 from the countertop 1.", "progress"),
        ("go to sinkbasin 1", at("sinkbasin 1"), "search"),
        ("go to fridge 1", closed("fridge 1"), "progress"),
        ("open fridge 1", opened("fridge 1"), "progress"),
        ("move apple 2 to fridge 1", "You move the apple 2 to the fridge 1.", "progress"),
        ("go to cabinet 1", closed("cabinet 1"), "search"),
        ("go to countertop 1", at("countertop 1"), "redundant"),
        ("go to fridge 1", at("fridge 1", "apple 2", door=True), "redundant"),
        ("take apple 2 from fridge 1", "You pick up the apple 2 from the fridge 1.", "regress"),
        ("move apple 2 to fridge 1", "You move the apple 2 to the fridge 1.", "progress"),
        ("go to cabinet 1", closed("cabinet 1"), "redundant"),
        ("open cabinet 1", opened("cabinet 1", "apple 1"), "search"),
        ("take apple 1 from cabinet 1", "You pick up the apple 1 from the cabinet 1.", "progress"),
        ("go to fridge 1", at("fridge 1", "apple 2", door=True), "progress"),
        ("move apple 1 to fridge 1", "You move the apple 1 to the fridge 1.", "progress"),
    )


def test_look_at_something_in_light():
    check(
        "look at book under the desklamp",
        ("go to bed 1", at("bed 1", "book 1"), "search"),
        ("go to drawer 1", closed("drawer 1"), "search"),  # the book is left, but the lamp is unseen
        ("go to bed 1", at("bed 1", "book 1"), "progress"),
        ("take book 1 from bed 1", "You pick up the book 1 from the bed 1.", "progress"),
        ("go to desk 1", at("desk 1", "desklamp 1"), "search"),
        # Both are seen, the lamp is here: one turn is left.
        ("move book 1 to desk 1", "You move the book 1 to the desk 1.", "regress"),
        ("take book 1 from desk 1", "You pick up the book 1 from the desk 1.", "progress"),
        ("go to bed 1", at("bed 1"), "regress"),
        ("go to desk 1", at("desk 1", "desklamp 1"), "progress"),
        ("use desklamp 1", "You turn on the desklamp 1.", "progress"),
        places=("bed 1", "desk 1", "drawer 1"),
    )


def test_a_refusal_that_tells_where_the_agent_is():
    check(
        "put some apple on fridge",
        ("go to countertop 1", at("countertop 1"), "search"),
        # The texts do not say that both are at one place: to try is no mistake, to try again is.
        ("go to cabinet 1", "Nothing happens.", "search"),
        ("go to cabinet 1", "Nothing happens.", "invalid"),
        ("open cabinet 1", opened("cabinet 1", "apple 1"), "search"),
        ("take apple 1 from cabinet 1", "You pick up the apple 1 from the cabinet 1.", "progress"),
        ("go to fridge 9", "Nothing happens.", "invalid"),
    )


def test_lists_of_commands_are_not_looked_at():
    texts = [
        f"{text}\nCommands: go to fridge 1, take apple 1 from cabinet 1"
        for text in (opening("put some apple on fridge"), closed("cabinet 1"))
    ]
    assert kinds(texts[0], ["go to cabinet 1"], [texts[1]]) == ["search"]


def test_a_goal_in_other_words_is_one_line():
    with pytest.raises(BmrlError, match="cannot read the goal 'tidy up'"):
        Judge(opening("tidy up"))


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (4, 3, "oracle_progress"),
        (4, 4, "oracle_neutral"),
        (4, 6, "oracle_regress"),
        (4, None, "oracle_regress"),
        (None, None, "oracle_neutral"),
        (None, 4, "oracle_progress"),
        (1, 0, "oracle_progress"),
    ],
)
def test_oracle(before, after, kind):
    assert oracle(before, after) == kind


def test_plans_are_progress_to_the_oracle_and_mostly_luck_to_one_who_must_search():
    for record in read_split("valid_seen")[:24]:
        found = judged(game_from_record(record), record.plan)
        assert [one.oracle for one in found] == ["oracle_progress"] * len(record.plan)
        assert (found[0].oracle_before, found[-1].oracle_after) == (len(record.plan), 0)
        assert {one.kind for one in found} <= {"search", "progress"}
        assert found[0].kind == "search"  # nothing was seen before the first turn


def test_the_expert_only_searches_and_progresses():
    count = 0
    for index, record in enumerate(read_split("valid_seen")[:60]):
        twin = Twin(game_from_record(record))
        text = twin.reset()
        expert, judge = Expert(text, Random(index)), Judge(text)
        while not twin.won:
            action = expert.act()
            text = twin.step(action)
            assert judge.judge(action, text) in ("search", "progress"), (record.task_id, action, text)
            expert.observe(action, text)
            count += 1
    assert count > 500


def test_random_play_is_of_every_kind():
    found = set()
    for index, record in enumerate(read_split("valid_seen")[:12]):
        game, rng = game_from_record(record), Random(index)
        twin = Twin(game)
        judge = Judge(twin.reset())
        for turn in range(60):
            # Drawn among what is accepted nothing is ever invalid: now and then something else is said.
            action = "dance" if turn % 20 == 7 else rng.choice(twin.admissible)
            kind = judge.judge(action, twin.step(action))
            assert (kind == "invalid") == (action == "dance")
            found.add(kind)
            if twin.won:
                break
    assert found == set(KINDS)
