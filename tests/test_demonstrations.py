"""Demonstrations from a run's own successes and from files of chats."""

import json
import re

import pytest

from bmrl.atomic import write_json
from bmrl.check import missing
from bmrl.demonstrations import from_file, from_run
from bmrl.envs.base import Shown
from bmrl.errors import BmrlError, RecipeError, UsageError
from bmrl.files import recipes_path
from bmrl.recipe import load
from bmrl.run_folder import FORMAT


def turn(observation, action, *, valid=True):
    return {
        "observation": observation,
        "action": action,
        "valid": valid,
        "reward": 0.0,
        "observation_tokens": 1,
        "action_tokens": 1,
        "logprob": -1.0,
    }


def played(task, budget, *turns, success=True, number=0):
    return {
        "step": 1,
        "group": 0,
        "episode": number,
        "task_id": task,
        "split": "train",
        "seed": 0,
        "budget": budget,
        "end_reason": "success" if success else "budget",
        "success": success,
        "turns": list(turns),
        "final_observation": "",
        "error": "",
    }


def run(folder, *episodes, announce="none", wording=None, env="alfworld"):
    recipe = {"model": {}, "env": {"name": env}, "budget": {"announce": announce, "wording": wording}}
    (folder / "episodes").mkdir(parents=True)
    write_json(folder / "recipe.resolved.json", recipe)
    write_json(folder / "system.json", {"run_format": FORMAT})
    for step, half in ((1, episodes[::2]), (2, episodes[1::2])):
        (folder / "episodes" / f"step-{step:06d}.jsonl").write_text("".join(json.dumps(e) + "\n" for e in half))
    return folder


def take(folder, most=100, seed=0, env="alfworld"):
    return from_run(folder, env=env, most=most, seed=seed)


def test_successes_are_taken_once_and_refused_actions_are_only_shown(tmp_path):
    won = played("a", 4, turn("start", "sing", valid=False), turn("Nothing happens.", "go"))
    lost = played("a", 4, turn("start", "go"), success=False)
    folder = run(tmp_path / "run", won, lost, {**won, "episode": 1, "budget": 8})
    assert take(folder) == [[Shown("start", "sing", 0.0), Shown("Nothing happens.", "go", 1.0)]]


def test_budgets_take_turns_and_so_do_tasks_within_one(tmp_path):
    # Budget 30: eight successes of task a, two of b; budget 4: one of c; budget 8: two of d.
    many = [played("a", 30, turn("a", f"go {n}")) for n in range(8)] + [
        played("b", 30, turn("b", f"go {n}")) for n in range(2)
    ]
    few = [played("c", 4, turn("c", "go")), *[played("d", 8, turn("d", f"go {n}")) for n in range(2)]]
    folder = run(tmp_path / "run", *many, *few)
    tasks = [turns[0].observation for turns in take(folder)]
    # Round by round the budgets 4, 8, 30, as far as they go; at 30 the tasks a and b alternate until b is used up.
    assert tasks[0] == "c" and tasks[1] == tasks[3] == "d"
    assert {tasks[2], tasks[4]} == {tasks[5], tasks[6]} == {"a", "b"}
    assert tasks[7:] == ["a"] * 6
    assert len({turns[0].action + turns[0].observation for turns in take(folder)}) == 13
    assert [turns[0].observation for turns in take(folder, most=5)] == tasks[:5]
    assert take(folder) == take(folder) and take(folder, seed=1) != take(folder)


def test_a_play_counts_under_the_smallest_budget_that_it_won_with(tmp_path):
    # One "go" of task a won under 30 turns and under 4. Counted under 30 it would wait its turn among three of task b;
    # under 4 it comes in the first round of budgets, before the second demonstration of budget 30.
    others = [played("b", 30, turn("b", f"go {n}")) for n in range(3)]
    first, again = played("a", 30, turn("a", "go")), played("a", 4, turn("a", "go"))
    for episodes in ((first, *others, again), (again, *others, first)):
        folder = run(tmp_path / str(episodes.index(again)), *episodes)
        assert [turns[0].observation for turns in take(folder)] == ["a", "b", "b", "b"]
        assert all(take(folder, seed=seed)[0][0].observation == "a" for seed in range(8))


def test_where_nothing_was_announced_observations_stay_as_they_are(tmp_path):
    folder = run(tmp_path / "run", played("a", 4, turn("start\n", "go")))
    assert take(folder) == [[Shown("start\n", "go", 1.0)]]


@pytest.mark.parametrize(
    "parts",
    [
        {"env": None},
        {"env": {"name": 3}},
        {"budget": None},
        {"budget": {"announce": "loudly"}},
        {"budget": {"announce": "total", "wording": 3}},
    ],
)
def test_a_run_whose_recipe_is_damaged_is_one_line(tmp_path, parts):
    folder = run(tmp_path / "run", played("a", 4, turn("start", "go")))
    recipe = json.loads((folder / "recipe.resolved.json").read_text())
    write_json(folder / "recipe.resolved.json", {**recipe, **parts})
    with pytest.raises(BmrlError, match=r"recipe\.resolved\.json: damaged .*; restore it or take another run$"):
        take(folder)


@pytest.mark.parametrize(
    ("announce", "wording", "lines"),
    [
        ("remaining", None, ["Turns left: 2.", "Turn left: 1."]),
        ("total", None, ["You have 2 turns."] * 2),
        ("remaining", "[{turns}]", ["[2]", "[1]"]),
    ],
)
def test_what_the_run_announced_is_taken_out_again(tmp_path, announce, wording, lines):
    turns = [turn(f"place {n}\n{line}", "go") for n, line in enumerate(lines)]
    folder = run(tmp_path / "run", played("a", 2, *turns), announce=announce, wording=wording)
    assert [shown.observation for shown in take(folder)[0]] == ["place 0", "place 1"]


def test_a_run_that_cannot_be_learned_from_is_refused(tmp_path):
    failed = run(tmp_path / "failed", played("a", 4, turn("start", "go"), success=False))
    with pytest.raises(UsageError, match=r"^sft\.path: none of the 1 training episodes of .* is a success; train it"):
        take(failed)
    with pytest.raises(UsageError, match=r"^sft\.path: .* is a run in alfworld, the recipe's env\.name is textworld"):
        take(failed, env="textworld")
    with pytest.raises(UsageError, match="not a run folder"):
        take(tmp_path / "none")


def chat(*texts, first="user"):
    roles = (first, "assistant") if first == "user" else (first, "user")
    return json.dumps({"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]})


def test_chats_of_a_file(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(
        "\n".join(
            [
                chat("start", "go north"),
                "",
                chat("start", "I look. <action> look </action>", "A door.", "<action>go</action>"),
            ]
        )
    )
    both = [[Shown("start", "go north", 1.0)], [Shown("start", "look", 1.0), Shown("A door.", "go", 1.0)]]
    assert from_file(path, most=9) == both
    assert from_file(path, most=1) == both[:1]


def test_a_line_ends_at_a_newline_only_and_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "chats.jsonl"
    said = "a\u2028b\x85c"  # JSON may hold both as they are; for Python's splitlines() each ends a line
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": "go"}]
    line = json.dumps({"messages": messages}, ensure_ascii=False)
    path.write_bytes(f"\ufeff{line}\r\n{line}".encode())
    assert from_file(path, most=9) == [[Shown(said, "go", 1.0)]] * 2


WRONG = {
    "not json": "no chat",
    "[1]": "no chat",
    '{"messages": 3}': "no chat",
    '{"messages": []}': "roles must be",
    '{"messages": [{"role": "user"}]}': "no chat",
    '{"messages": [{"role": "user", "content": 3}]}': "a content is no text",
    chat("be good", "start", first="system"): "a system message; leave it out",
    chat("start", "go", "more"): "end with assistant",
    chat("start", "<action></action>"): "holds no command",
    chat("start", " "): "holds no command",
    chat("start", "<think>left or right?</think> go"): "holds no command",
    chat("start", "go</action>"): "holds no command",
}


def test_every_wrong_line_of_a_file_is_named_at_once(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(line + "\n" for line in [chat("start", "go"), *WRONG]))
    with pytest.raises(BmrlError) as caught:
        from_file(path, most=9)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(WRONG)
    for number, (line, words) in enumerate(zip(lines, WRONG.values(), strict=True), start=2):
        assert line.startswith(f"chats.jsonl:{number}: ") and words in line and "; " in line
    path.write_text("nonsense\n" * 25)
    with pytest.raises(BmrlError, match="… and 5 more"):
        from_file(path, most=9)


def test_a_file_without_chats_or_none_at_all_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="holds no chat"):
        from_file(tmp_path / "empty.jsonl", most=9)
    with pytest.raises(UsageError, match="cannot be read"):
        from_file(tmp_path / "none.jsonl", most=9)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["sft.path=runs/x"], "sft.path: with `source: expert`, who plays anew; set source: run or file"),
        (["sft.source=run", "sft.noise=0.0"], "sft.source: run without a path; add sft.path, the run's folder"),
        (["sft.source=file", "sft.noise=0.0"], "sft.source: file without a path; add sft.path, a JSONL file"),
        (["sft.source=run", "sft.path=x"], "sft.noise: 0.25 with `source: run`, where nothing can be forced; set 0"),
    ],
)
def test_recipes_that_contradict_themselves_are_refused(overrides, line):
    with pytest.raises(RecipeError, match=re.escape(line)):
        load(recipes_path("pocket_sft.yaml"), overrides)


def test_a_path_that_does_not_exist_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert missing(load(recipes_path("pocket_rejection.yaml"))) == ["sft.path: there is no runs/pocket_mix yet"]
