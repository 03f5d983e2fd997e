"""Process supervision: what turns earn, that it cancels where it must, and changes what it should."""

import random

import pytest
import tiny
from test_update import CHAT, episode, turn

from bmrl.credit import Credit, advantages
from bmrl.envs import judge, make
from bmrl.envs.base import INEFFECTIVE, INVALID, PROGRESS, REDUNDANT, SEARCH, Task
from bmrl.envs.pool import Failed, Pool
from bmrl.process import progress, rules
from bmrl.recipe import load
from bmrl.rollout import rollout
from bmrl.run.train import process_rewards
from bmrl.types import EndReason, Play, Turn


def test_progress_is_the_distance_won_and_the_end_is_at_potential_0():
    # Distances 3, 2, 4 before the actions, weight 0.5: 3 - 2, 2 - 4, and 4 - 0 at the end, whichever it is.
    assert progress([3, 2, 4], weight=0.5) == [0.5, -1.0, 2.0]
    assert progress([1], weight=0.5) == [0.5]
    assert progress([], weight=0.5) == []


def test_a_distance_that_is_unknown_neither_earns_nor_costs():
    assert progress([3, None, 2], weight=1.0) == [0.0, 1.0, 2.0]
    assert progress([None, 3, 2], weight=1.0) == [0.0, 1.0, 2.0]
    assert progress([None, None], weight=1.0) == [0.0, 0.0]


def test_the_sum_of_progress_is_the_first_distance_whatever_was_done():
    rng = random.Random(0)
    for _ in range(100):
        walk = [5, *(rng.choice([None, *range(1, 9)]) for _ in range(rng.randrange(9)))]
        assert sum(progress(walk, weight=0.25)) == 0.25 * 5


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp"])
def test_with_one_advantage_per_episode_progress_cancels(name):
    # Success 1, 0 and progress that sums to 3/2 in both episodes: as without it.
    plain = [[[0.0, 1.0], [0.0, 0.0, 0.0]]]
    shaped = [[[0.5, 2.0], [0.5, -1.0, 2.0]]]
    states = [[["", ""], ["", "", ""]]]
    found, expected = (advantages(rewards, states, Credit(name)) for rewards in (shaped, plain))
    for of_episode, by_hand in zip(found[0], expected[0], strict=True):
        assert of_episode == pytest.approx(by_hand)


def test_with_credit_per_turn_progress_changes_the_advantages():
    # The same: rewards to go 5/2, 2 and 3/2, 1, 2; returns 5/2 and 3/2, each the other's baseline.
    shaped, states = [[[0.5, 2.0], [0.5, -1.0, 2.0]]], [[["", ""], ["", "", ""]]]
    assert advantages(shaped, states, Credit("rloo", "turn")) == [[[1.0, 0.5], [-1.0, -1.5, -0.5]]]
    # discount 1/2: to go 3/2, 2 and 1/2 - 1/2 + 1/2 = 1/2, -1 + 1 = 0, 2
    assert advantages(shaped, states, Credit("rloo", "turn", 0.5)) == [[[1.0, 1.5], [-1.0, -1.5, 0.5]]]


def test_rules():
    # After a failed action an effective one earns; a search without one before does not; a place again costs.
    kinds = [SEARCH, INVALID, SEARCH, INEFFECTIVE, PROGRESS, REDUNDANT, INVALID, INVALID, REDUNDANT]
    assert rules(kinds, weight=0.5) == [0.0, 0.0, 0.5, 0.0, 0.5, -0.5, 0.0, 0.0, -0.5]
    assert rules([], weight=0.5) == []


GO = CHAT.answer("go")
STAY = CHAT.answer("stay")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("asked", [True, False])
def test_distances_are_recorded_before_each_action_if_asked_for(workers, asked):
    script = [GO, STAY, GO, GO]
    sampler = tiny.ScriptedSampler(lambda row, n: script[n], rows=1, stop=GO[-1])
    play = Play(1, 0, 0, Task("t", "corridor", data=4), "train", 0, 5, prefix=("go",))
    with Pool("corridor", {}, workers=workers, timeout_s=30, slots=1, distances=asked, make=tiny.make) as pool:
        [found] = rollout(
            [play], sampler=sampler, chat=CHAT, pool=pool, turn_tokens=8, context_tokens=512, temperature=1.0
        )
    # Four turns from the goal; the prefix goes, then: go, stay, go, go.
    assert found.end_reason is EndReason.SUCCESS
    assert [turn.distance for turn in found.turns] == ([4, 3, 2, 2, 1] if asked else [None] * 5)


class Vague(tiny.Corridor):
    def distance(self):
        return 1.5


def vague(name):
    return Vague()


def test_a_distance_that_is_no_number_of_turns_is_an_error_of_the_environment():
    with Pool("corridor", {}, workers=0, timeout_s=5, slots=1, distances=True, make=vague) as pool:
        pool.reset(0, Task("t", "corridor", data=4))
        [answer] = pool.collect([0])
    assert isinstance(answer, Failed) and "distance is float" in answer.error


def recipe(tmp_path, *overrides):
    path = tmp_path / "r.yaml"
    path.write_text("name: r\nbudget: {train: {kind: fixed, turns: 4}}\ntrain: {steps: 1}\n")
    return load(path, overrides)


def test_progress_of_a_recorded_episode(tmp_path):
    earned = process_rewards(
        recipe(tmp_path, "reward.process=progress", "reward.process_weight=0.5", "algorithm={name: gigpo}")
    )
    turns = [Turn("", (), "go", "go", GO, (-1.0,) * len(GO), True, 0.0, distance) for distance in (2, 1)]
    assert earned(episode(EndReason.SUCCESS, *turns)) == [0.5, 0.5]
    assert process_rewards(recipe(tmp_path)) is None


@pytest.mark.parametrize("announce", ["none", "remaining"])
def test_rules_on_an_episode_of_alfworld_as_its_judge_sees_it(tmp_path, announce):
    env = make("alfworld", source="embedded", admissible=False)
    task = env.tasks("valid_seen")[0]
    seen = [env.reset(task)]
    place = next(a for a in env.admissible if a.startswith("go to"))
    actions = ["sing a song", place, "look", "sing a song", place]
    seen += [env.step(action).observation for action in actions]
    known = judge("alfworld")(seen[0])
    kinds = [known.judge(action, text) for action, text in zip(actions, seen[1:], strict=True)]
    assert kinds[0] == INVALID and kinds[1] == SEARCH
    told = [f"{text}\nTurns left: {8 - n}." if announce == "remaining" else text for n, text in enumerate(seen)]
    turns = [Turn(text, (), action, action, (), (), True, 0.0) for text, action in zip(told, actions, strict=False)]
    played = episode(EndReason.BUDGET, *turns)
    played = type(played)(*(getattr(played, f) for f in list(played.__dataclass_fields__)[:-2]), seen[-1], "")
    earned = process_rewards(recipe(tmp_path, "reward.process=rules", f"budget.announce={announce}"))
    assert earned(played) == rules(kinds, weight=0.1)
    assert earned(played)[1] == 0.1  # it mended the song
    env.close()


def test_turns_of_an_episode_without_turns_earn_nothing(tmp_path):
    earned = process_rewards(recipe(tmp_path, "reward.process=rules"))
    broken = Play(1, 0, 0, Task("t", "corridor"), "train", 0, 4).ended(EndReason.ENV_ERROR, (), "", "it broke")
    assert earned(broken) == []
    assert turn().distance is None
