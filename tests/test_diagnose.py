"""Diagnosis: what is counted, on a road where everything can be worked out by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from roads import Walker, diagnosed, world
from scripted import Road, Scripted

from bmrl.diagnose import Settings, diagnose
from bmrl.diagnose import bank as banks
from bmrl.diagnose.bank import AFTER_ERROR, ON_TRACK, Bank
from bmrl.diagnose.decomposition import COMPOSITES, PARTS
from bmrl.diagnose.figures import Counts, Tally, combination, pair, ratio, share
from bmrl.diagnose.recovery import disturb
from bmrl.diagnose.resilience import fatal_turn, plan_ranges, turn_ranges
from bmrl.diagnose.transcripts import Referee
from bmrl.envs import Task
from bmrl.errors import BmrlError, UsageError
from bmrl.intervals import wilson

FOUR = Task("four", "road", ("forward",) * 4, data=4)


def referee(judge=None) -> Referee:
    return Referee(Road(), judge, [FOUR])


# Figures


def counts(hits, trials) -> Counts:
    return Counts(np.array(hits, float), np.array(trials, float))


def test_a_share_is_pooled_over_the_trials_and_says_of_how_many_tasks():
    found = share(counts([1, 3, 0], [2, 4, 0]))
    assert found["value"] == pytest.approx(4 / 6)
    assert found["tasks"] == 2


def test_tasks_that_count_once_have_wilsons_interval():
    found = share(counts([1, 0, 1, 1], [1, 1, 1, 1]))
    assert (found["low"], found["high"]) == wilson(3, 4)


def test_an_interval_resamples_tasks_and_not_trials():
    # 50 tasks, each with 20 trials that all agree: as uncertain as 50 draws, not as 1,000.
    hits = np.array([20.0] * 25 + [0.0] * 25)
    found = share(counts(hits, [20] * 50))
    # 2 x 1.96 x sqrt(0.25 / 50) = 0.277; of 1,000 draws it would be 0.062. A t interval of 49 degrees is 1.04 as wide.
    assert found["high"] - found["low"] == pytest.approx(0.277 * 1.035, rel=0.08)


def test_a_difference_is_paired():
    # Tasks differ much, the two policies always by 0.1: unpaired it would be 0.8 wide.
    level = np.linspace(0, 0.9, 30)
    found = pair(counts(level + 0.1, [1.0] * 30), counts(level, [1.0] * 30))["difference"]
    assert found["value"] == pytest.approx(0.1)
    # No width among the tasks: what remains possible if at most Wilson's upper limit of tasks are unlike.
    unlike = wilson(0, 30)[1]
    assert found["low"] == pytest.approx(0.1 - 1.1 * unlike)
    assert found["high"] == pytest.approx(0.1 + 0.9 * unlike)


def test_nothing_counted_is_no_figure():
    nothing = counts([0, 0], [0, 0])
    assert share(nothing) == {"value": None, "low": None, "high": None, "tasks": 0}
    assert ratio(counts([1, 1], [1, 1]), counts([0, 0], [1, 1]))["value"] is None


def test_the_parts_of_a_gain_add_up_also_at_the_ends_of_a_resample():
    rng = np.random.default_rng(0)
    solved = {name: counts(rng.integers(0, 2, 20), [1] * 20) for name in COMPOSITES}
    sums = {part: combination([(f, solved[name]) for name, f in PARTS[part].items()])["value"] for part in PARTS}
    assert sums["decisions"] + sums["recovery"] + sums["survival"] == pytest.approx(sums["gain"], abs=1e-12)
    assert sums["recovery"] + sums["survival"] == pytest.approx(sums["after"], abs=1e-12)
    # Every resample is a weighting of the tasks, so it is enough that the factors themselves add up.
    for name in COMPOSITES:
        parts = sum(PARTS[part].get(name, 0) for part in ("decisions", "recovery", "survival"))
        assert parts == PARTS["gain"].get(name, 0)


# Transcripts


def test_the_planner_judges_where_no_judge_is():
    read = referee().read(FOUR, ["forward", "stray", "wander", "fly", "return", "forward"])
    assert read.kinds == ("progress", "regress", "ineffective", "invalid", "progress", "progress")
    assert read.distances == (4, 3, 4, 4, 4, 3, 2)
    assert read.errors == (False, True, True, True, False, False)


class Oddly:
    """A judge of its own mind."""

    def __init__(self, opening: str) -> None:
        self.said = ["search", "redundant"]

    def judge(self, action: str, observation: str) -> str:
        return self.said.pop(0)

    def fork(self):
        other = Oddly("")
        other.said = list(self.said)
        return other


def test_an_environments_own_judge_is_asked():
    judged = referee(Oddly)
    assert judged.by == "transcript"
    assert judged.read(FOUR, ["forward", "forward"]).kinds == ("search", "redundant")
    # Each command is judged from the same state.
    kinds = [outcome.kind for outcome in judged.outcomes(FOUR, ["forward"], ["forward", "stray"])]
    assert kinds == ["redundant", "redundant"]


def test_a_judge_that_makes_up_kinds_is_told():
    class Wild(Oddly):
        def judge(self, action: str, observation: str) -> str:
            return "brilliant"

    with pytest.raises(UsageError, match="brilliant"):
        referee(Wild).read(FOUR, ["forward"])


def test_outcomes_leave_no_trace():
    judged = referee()
    found = list(judged.outcomes(FOUR, ["forward"] * 3, ["stray", "forward", "stray"]))
    assert [(o.kind, o.distance, o.over) for o in found] == [
        ("regress", 2, False),
        ("progress", 0, True),
        ("regress", 2, False),
    ]


# The bank


def drawn(count: int = 6, seed: int = 0) -> list[banks.State]:
    judged = referee()
    tasks = [Task(f"road-{n}", "road", ("forward",) * 4, data=4) for n in range(5)]
    clean, clumsy = ("forward",) * 4, ("forward", "stray", "wander", "return", "forward", "stray")
    played = {"expert": [judged.read(t, clean) for t in tasks], "a": [judged.read(t, clumsy) for t in tasks]}
    return banks.draw(played, judged, count=count, seed=seed, ranges=turn_ranges(16))


def test_the_banks_hold_the_same_number_of_each_source():
    states = drawn()
    for name in (ON_TRACK, AFTER_ERROR):
        assert [sum(s.bank == name and s.source == who for s in states) for who in ("expert", "a")] == [6, 6]


def test_on_track_has_no_error_behind_it_and_after_error_has_one_just_behind():
    for state in drawn():
        errors = referee().read(FOUR, state.prefix).errors
        assert errors[-1] if state.bank == AFTER_ERROR else not any(errors)
        if state.bank == ON_TRACK:
            assert state.commands == {"forward": "progress", "stray": "regress"}
        else:  # what was accepted at the opening is judged, too
            invalid = {"forward": "invalid", "stray": "invalid"}
            assert state.commands == {"return": "progress", "wander": "ineffective"} | invalid


def test_an_expert_without_errors_has_them_forced_and_a_clumsy_policy_has_its_own():
    states = [state for state in drawn() if state.bank == AFTER_ERROR]
    assert all(state.forced == (state.source == "expert") for state in states)


def test_turns_and_tasks_are_drawn_evenly():
    # Places on track of the expert are turns 1, 2, 3-4 of five tasks: six states are two of each range.
    states = [state for state in drawn() if state.bank == ON_TRACK and state.source == "expert"]
    turns = [len(state.prefix) + 1 for state in states]
    assert [turns.count(1), turns.count(2), sum(t > 2 for t in turns)] == [2, 2, 2]
    assert len({state.task_id for state in states}) == 5
    assert drawn() == drawn()
    assert drawn(seed=1) != drawn()


def stored(tmp_path, name="some.bank.jsonl"):
    bank = Bank("road", "valid_seen", "games", tuple(drawn()))
    bank.write(tmp_path / name)
    return bank, tmp_path / name


def read(path, **changes):
    known = {"env": "road", "split": "valid_seen", "split_hash": "games", "tasks": [f"road-{n}" for n in range(5)]}
    return banks.read(path, **known | changes)


def test_a_bank_is_read_as_it_was_written(tmp_path):
    bank, path = stored(tmp_path)
    assert read(path) == bank
    assert read(path).hash == bank.hash


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"split_hash": "others"}, "split_hash games, played is others"),
        ({"split": "train"}, "split valid_seen, played is train"),
        ({"env": "alfworld"}, "env road, played is alfworld"),
        ({"tasks": ["road-0"]}, "which is not played; raise --tasks"),
    ],
)
def test_a_bank_of_other_games_is_refused(tmp_path, changes, told):
    with pytest.raises(UsageError, match=told):
        read(stored(tmp_path)[1], **changes)


@pytest.mark.parametrize(
    ("line", "text", "told"),
    [
        (0, "", "jsonl:1: not the head of a bank"),
        (0, '{"bank_format": 9}', "bank format 9, this bmrl reads 1"),
        (3, '{"bank": "on_tr', "jsonl:4: damaged"),
        (3, '{"bank": "on_track"}', "jsonl:4: damaged"),
        (3, "[]", "jsonl:4: damaged"),
        (3, None, "not those it was written with"),
    ],
)
def test_a_damaged_bank_is_told_by_its_line(tmp_path, line, text, told):
    _, path = stored(tmp_path)
    lines = path.read_text().splitlines()
    lines[line : line + 1] = [] if text is None else [text]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BmrlError, match=told) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_bank_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"--bank: .*none\.jsonl cannot be read"):
        read(tmp_path / "none.jsonl")


# Recovery


def test_disturbances_are_nested_and_never_end_a_game():
    state = next(s for s in drawn() if s.bank == ON_TRACK and len(s.prefix) == 3)  # one step before the goal
    tasks = {state.task_id: FOUR}
    found = disturb(referee(), [state], tasks, seed=0, strengths=(1, 2, 4))
    by_mode = {
        mode: {len(o.actions): o for o in found if o.mode == mode} for mode in dict.fromkeys(o.mode for o in found)
    }
    for of in by_mode.values():
        assert of[4].actions[:2] == of[2].actions
        assert of[2].actions[:1] == of[1].actions
    # Harmful: off the road, and then nowhere; the one turn back is all that is lost.
    assert by_mode["harmful"][4].actions == ("stray", "wander", "wander", "wander")
    assert [of.lost for of in by_mode["harmful"].values()] == [1, 1, 1]


def test_recovery_of_a_perfect_policy_by_hand():
    # On a road of l it needs l turns; after k harmful actions 1 more, so within the same turns as its twin it wins
    # unless the budget was exactly l; with the lost turn given back it always wins.
    found = diagnosed(Scripted(0, 1), Scripted(0, 1), budgets=(6, 7))
    rows = {(r["mode"], r["k"], r["budget"]): r for r in found["recovery"]["forced"]}
    for k in (1, 2, 4, 8):
        assert rows["harmful", k, 7]["ratio"]["a"]["value"] == 1
        assert rows["harmful", k, 6]["ratio"]["a"]["value"] < 1  # the roads of length 6
        assert rows["harmful", k, 6]["slack_matched"]["a"]["value"] == 1
        assert rows["harmful", k, 7]["regained"]["a"]["value"] == 1
        assert rows["harmful", k, 7]["regain_turns"]["a"]["value"] == 1
    assert found["recovery"]["rate"]["a"]["value"] == 1


def test_loops_and_natural_recovery_by_hand():
    # It strays at once and then wanders: turn 1 stray, turns 2 to 8 wander from the same place.
    found = diagnosed(Scripted(1, 0), Scripted(0, 1), budgets=(8,), strengths=())["recovery"]
    assert found["loop"]["a"]["value"] == pytest.approx(6 / 8)
    assert found["repeated"]["a"]["value"] == pytest.approx(6 / 7)
    assert found["natural"]["next"]["a"]["value"] == 0
    assert found["natural"]["next"]["b"]["value"] is None  # it never did anything idle
    assert found["forced"] is None
    # Walking a road of l says "forward" l times at other places: no loop, but each repeats the last action.
    assert found["loop"]["b"]["value"] == 0
    assert found["repeated"]["b"]["value"] == 1


# Resilience


def test_turn_ranges_double_and_plan_ranges_hold_as_many_tasks():
    assert turn_ranges(10) == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 10)]
    assert turn_ranges(1) == [(1, 1)]
    assert plan_ranges([3, 1, 2, 2, 4, 5, 6, 9]) == [(1, 1), (2, 3), (4, 5), (6, 9)]
    assert plan_ranges([4, 4, 4]) == [(4, 4)]


def test_the_fatal_turn_by_hand():
    # Three steps to go and 5 turns: two may be wasted. After the third wasted one nothing helps.
    assert fatal_turn([3, 3, 3, 3, 2, 1], 5) == (3, True)
    assert fatal_turn([3, 2, 1, 0], 5) == (3, False)  # solved
    assert fatal_turn([3, 2, None], 5) == (2, True)  # lost for good
    assert fatal_turn([3, 2, 2, 1, 0], 2) == (0, False)  # could never be solved in 2 turns
    assert fatal_turn([3, 3], 5) == (1, False)  # ended for another reason


def test_resilience_by_hand():
    found = diagnosed(Scripted(0, 1), Scripted(1, 1), budgets=(12,), strengths=())["resilience"]
    # The second one strays whenever it is on the road, so it gets nowhere: every other action is an error.
    for row in found["by_plan_length"]:
        if row["a"]["value"] is not None:
            assert row["a"]["value"] == 1
            assert row["b"]["value"] == 0
    assert all(row["a"]["value"] in (0, None) for row in found["by_turn"])
    assert found["by_turn"][0]["b"]["value"] == 1
    assert found["by_turn"][1]["b"]["value"] == 0


# Decomposition


def test_parts_of_a_gain_by_hand():
    # A never errs and returns; B strays at once and never returns. All roads are walked within 16 turns by A.
    (row,) = diagnosed(Scripted(0, 1), Scripted(1, 0), budgets=(16,), strengths=())["decomposition"]
    # A has no error, so nobody takes over from it: A.. = 1. After B's stray A returns and walks, 8 turns at most:
    # BAA = 1; BAB returns and strays again; B never recovers, so BBA = BBB = 0.
    assert row["s"] == {"AAA": 1, "AAB": 1, "ABA": 1, "ABB": 1, "BAA": 1, "BAB": 0, "BBA": 0, "BBB": 0}
    # decisions = 1/2 (1 - 1) + 1/2 (1 - 0); recovery = 1/4 (1 + 0 - 0 - 0); survival = 1/4 (1 - 0 + 0 - 0).
    assert [row[part]["value"] for part in PARTS] == [1, 0.5, 0.25, 0.25, 0.5]


def test_a_gain_of_what_is_done_after_errors_has_no_part_of_decisions():
    # Both err alike, with the same draws up to the first error. With 64 turns A walks every road, whoever began; B
    # walks those alone on which it never strays.
    (row,) = diagnosed(Scripted(0.5, 1), Scripted(0.5, 0), budgets=(64,), strengths=())["decomposition"]
    assert row["s"]["AAA"] == row["s"]["BAA"] == 1
    assert row["s"]["ABB"] == row["s"]["BBB"] < 0.4
    assert row["decisions"]["value"] == 0
    assert row["after"]["value"] == pytest.approx(row["gain"]["value"])
    assert row["recovery"]["value"] > 0 < row["survival"]["value"]


# The whole


def test_every_figure_is_plain_json_and_says_its_tasks():
    found = diagnosed(Scripted(0.2, 0.6, "a"), Scripted(0.4, 0.3, "b"), games=12, states=5)
    json.dumps(found, allow_nan=False)

    def figures(value):
        if isinstance(value, dict):
            if "low" in value:
                yield value
            else:
                for one in value.values():
                    yield from figures(one)
        elif isinstance(value, list):
            for one in value:
                yield from figures(one)

    all_of_them = list(figures(found))
    assert len(all_of_them) > 300
    assert all(set(f) == {"value", "low", "high", "tasks"} for f in all_of_them)
    for figure in all_of_them:
        if figure["value"] is not None and figure["low"] is not None:
            assert figure["low"] <= figure["value"] + 1e-9
            assert figure["value"] <= figure["high"] + 1e-9


def test_the_same_seed_gives_the_same_diagnosis_and_another_one_another():
    def made(seed):
        return diagnosed(Scripted(0.2, 0.6, "a"), Scripted(0.4, 0.3, "b"), games=12, states=5, seed=seed)

    assert made(3) == made(3)
    assert made(3)["headline"] != made(4)["headline"]


def test_exact_and_sampled_masses_agree():
    a, b = Scripted(0.2, 0.6, "a"), Scripted(0.4, 0.3, "b")
    exact = diagnosed(a, b, exact=True, strengths=())
    sampled = diagnosed(a, b, samples=20, strengths=())
    assert exact["single_step"]["mass"] == {"a": "exact", "b": "exact"}
    assert sampled["single_step"]["mass"] == {"a": "sampled", "b": "sampled"}
    assert exact["headline"]["single_step"]["a"]["value"] == pytest.approx(0.2)
    assert exact["headline"]["recovery"]["b"]["value"] == pytest.approx(0.3)
    # 90 states x 20 draws: standard error 0.4 / sqrt(1800) = 0.0094.
    assert sampled["headline"]["single_step"]["a"]["value"] == pytest.approx(0.2, abs=0.03)


def test_a_given_bank_is_used_and_not_drawn_again():
    settings = Settings((8,), states=4, strengths=())
    first = diagnose(*(Walker(Scripted(0.2, 0.6, name)) for name in "ab"), world(games=12), settings)
    again = diagnose(
        *(Walker(Scripted(0.5, 0.1, name)) for name in "cd"), world(games=12), replace(settings, bank=first.bank)
    )
    assert again.bank == first.bank


class Silent(Road):
    """A road without distances, which does not list its commands either."""

    listed = True

    def distance(self):
        return None

    def step(self, action):
        return replace(super().step(action), admissible=self.admissible if self.listed else None)


def test_an_environment_without_planner_and_judge_has_the_parts_that_need_none():
    road = Silent(12)
    tasks = [replace(task, plan=()) for task in road.tasks("valid_seen")]
    bare = replace(world(games=12), env=road, tasks=tasks, expert=None)
    players = [Walker(Scripted(0.2, 0.6, name)) for name in "ab"]
    found = diagnose(*players, bare, Settings((4, 8), states=4)).result
    assert found["judge"] is None
    assert found["single_step"] is None
    assert found["decomposition"] is None
    assert found["resilience"] == {"by_plan_length": None, "by_turn": None, "hazard": None}
    assert len(found["curve"]) == 2
    assert found["recovery"]["loop"]["a"]["value"] is not None
    assert sum("neither a judge nor distances" in line for line in found["missing"]) == 1
    assert all("\n" not in line for line in found["missing"])


def test_with_a_judge_and_without_planner_only_random_actions_are_forced():
    class Judge:
        def __init__(self, opening: str) -> None:
            pass

        def judge(self, action: str, observation: str) -> str:
            return {"forward": "progress", "return": "progress", "stray": "regress"}.get(action, "ineffective")

        def fork(self):
            return self

    bare = replace(world(games=12), env=Silent(12), judge=Judge)
    players = [Walker(Scripted(0.2, 0.6, name)) for name in "ab"]
    found = diagnose(*players, bare, Settings((4, 8), states=4)).result
    assert found["judge"] == "transcript"
    assert {row["mode"] for row in found["recovery"]["forced"]} == {"random"}
    assert {row["slack_matched"] is None for row in found["recovery"]["forced"]} == {True}
    assert found["headline"]["recovery"]["a"]["value"] is not None


def test_told_players_play_every_budget():
    found = diagnosed(Scripted(0.2, 0.6, "a"), Scripted(0.2, 0.6, "a"), announce="total", games=12, states=4)
    assert [row["budget"] for row in found["decomposition"]] == [2, 4, 8, 16]
    assert found["resilience"]["by_plan_length"] is None
    assert any("told their budget" in line for line in found["missing"])
    # The same policy with the same draws is no better than itself.
    assert all(row["difference"]["value"] == 0 for row in found["curve"])


def test_no_tasks_is_told():
    players = [Walker(Scripted(0.2, 0.6))] * 2
    with pytest.raises(UsageError, match="holds no tasks"):
        diagnose(*players, replace(world(), tasks=[]), Settings((4,)))


def test_a_tally_adds_up_by_task():
    tally = Tally(2)
    tally.add(1, 0.5)
    tally.add(1, 1.0, 3.0)
    assert tally.counts().hits.tolist() == [0, 1.5]
    assert tally.counts().trials.tolist() == [0, 4]
