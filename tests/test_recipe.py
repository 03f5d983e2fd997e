"""Mistakes in recipes: each one line, all at once, in the order of the lines."""

from pathlib import Path

import pytest

from bmrl.errors import RecipeError
from bmrl.recipe import FixedBudget, Recipe, load, resolved
from bmrl.recipe.messages import schema_keys

GOOD = """\
name: good
budget: {train: {kind: fixed, turns: 8}}
train: {steps: 3}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str, *overrides: str) -> list[str]:
    """The lines about a recipe, with the folder cut away."""
    with pytest.raises(RecipeError) as caught:
        load(written(folder, text), overrides)
    assert caught.value.exit_code == 2
    assert all("\n" not in line for line in caught.value.problems)
    return [line.replace(f"{folder}/", "") for line in caught.value.problems]


def test_a_good_recipe_has_every_default(tmp_path: Path) -> None:
    recipe = load(written(tmp_path, GOOD))
    assert recipe.budget.train == FixedBudget(kind="fixed", turns=8)
    assert recipe.rollout.group_size == 8  # the schema's default
    again = Recipe.model_validate(resolved(recipe))
    assert again == recipe


# (lines added to or replacing parts of GOOD, what is said of them)
BAD = [
    ("optimiser: {}", "r.yaml:4: optimiser: unknown key; did you mean optimizer?"),
    ("lora: {rnak: 3}", "r.yaml:4: lora.rnak: unknown key; did you mean rank?"),
    (
        "rollout: {learning_rate: 1e-5}",
        "r.yaml:4: rollout.learning_rate: unknown key; did you mean optimizer.learning_rate?",
    ),
    (
        "chat: {zzzzzz: 1}",
        "r.yaml:4: chat.zzzzzz: unknown key; known here: think, system",
    ),
    (
        'rollout: {group_size: "8"}',
        'r.yaml:4: rollout.group_size: expected a whole number, got text "8"; write 8',
    ),
    (
        "rollout: {group_size: 8.0}",
        "r.yaml:4: rollout.group_size: expected a whole number, got 8.0; write 8",
    ),
    (
        "rollout: {tasks_per_step: 1_000}",
        'r.yaml:4: rollout.tasks_per_step: expected a whole number, got text "1_000"; write 1000',
    ),
    (
        "rollout: {tasks_per_step: true}",
        "r.yaml:4: rollout.tasks_per_step: expected a whole number, got true; "
        "groups per training step, one task each (default 16)",
    ),
    (
        "rollout: {group_size: 1}",
        "r.yaml:4: rollout.group_size: must be at least 2, got 1; "
        "episodes per group, same task and same budget (default 8)",
    ),
    (
        "rollout: {temperature: 0}",
        "r.yaml:4: rollout.temperature: must be above 0, got 0; sampling temperature in training (default 1.0)",
    ),
    (
        "lora: {dropout: 1}",
        "r.yaml:4: lora.dropout: must be below 1, got 1; dropout on the adapter's input; must be 0 "
        "in reinforcement learning, or the update is not of the policy that sampled (default 0.0)",
    ),
    (
        "optimizer: {learning_rate: .nan}",
        "r.yaml:4: optimizer.learning_rate: must be a finite number, got nan; peak learning rate (default 1e-05)",
    ),
    (
        "chat: {think: on}",
        'r.yaml:4: chat.think: expected true or false, got text "on"; write true',
    ),
    (
        "model: {dtype: float16}",
        'r.yaml:4: model.dtype: expected one of bfloat16, float32, got text "float16"; did you mean bfloat16?',
    ),
    (
        "model: {name: 7}",
        'r.yaml:4: model.name: expected text, got 7; put it in quotes: "7"',
    ),
    (
        "model: {name: null}",
        "r.yaml:4: model.name: expected text, got null; hub id, local model folder, .gguf file, "
        "installed package that carries one (`smollm2-135m`), or `pocket`, the embedded policy; a label when `new` is given (default pocket)",
    ),
    (
        "lora: {targets: 3}",
        "r.yaml:4: lora.targets: expected all-linear or a list, got 3; "
        "modules that get an adapter (default all-linear)",
    ),
    (
        "lora: {targets: [q_proj, 3]}",
        'r.yaml:4: lora.targets.1: expected text, got 3; put it in quotes: "3"',
    ),
    ("tracking: jsonl", 'r.yaml:4: tracking: expected a list, got text "jsonl"; write [jsonl]'),
    (
        "reward: 1.0",
        "r.yaml:4: reward: expected a section, got 1.0; what an episode is worth; success is reported as it is",
    ),
    (
        "env: {name: alfwrld}",
        "r.yaml:4: env.name: unknown environment alfwrld; did you mean alfworld?",
    ),
    (
        "env: {args: {admissable: true}}",
        "r.yaml:4: env.args.admissable: alfworld has no such argument; did you mean admissible?",
    ),
    (
        "env: {args: {admissible: 1}}",
        "r.yaml:4: env.args.admissible: expected true or false, got 1; the default is false",
    ),
    (
        "env: {args: {source: embedded}, eval_split: valid_sen}",
        "r.yaml:4: env.eval_split: the embedded games have no split valid_sen; did you mean valid_seen?",
    ),
    # contradictions
    (
        "lora: {dropout: 0.1}",
        "r.yaml:4: lora.dropout: 0.1 with `train`; set 0, or the update is not on-policy",
    ),
    (
        "lora: null",
        "r.yaml:4: lora: null needs `sft`; reinforcement learning trains an adapter, e.g. {rank: 16}",
    ),
    (
        "chat: {think: true}\nmodel: {name: a/b}\nrollout: {turn_tokens: 32}",
        "r.yaml:6: rollout.turn_tokens: 32 is too few with `chat.think: true`; try 256",
    ),
    (
        "rollout: {turn_tokens: 64}\nmodel: {context_tokens: 64}",
        "r.yaml:4: rollout.turn_tokens: 64 leaves no room in model.context_tokens 64; raise the latter",
    ),
    (
        "rollout: {max_groups: 20}",
        "r.yaml:4: rollout.max_groups: 20 without `dynamic: true`; set that, or remove it",
    ),
    (
        "rollout: {dynamic: true, max_groups: 15}",
        "r.yaml:4: rollout.max_groups: 15 is below tasks_per_step 16; raise it",
    ),
    (
        "rollout: {success_range: [0.9, 0.1]}",
        "r.yaml:4: rollout.success_range: low 0.9 is above high 0.1; swap them",
    ),
    (
        "rollout: {success_range: [0.5]}",
        "r.yaml:4: rollout.success_range: 1 numbers; write two, [low, high]",
    ),
    (
        "reward: {process: progress}",
        "r.yaml:4: reward.process: progress with `credit: episode` of rloo: it adds the same to every episode of a "
        "group and cancels; set algorithm.credit: turn, or algorithm.name: gigpo",
    ),
    (
        "reward: {process_weight: 0.5}",
        "r.yaml:4: reward.process_weight: with `process: none`; set process: progress or rules, or leave it out",
    ),
    (
        "algorithm: {name: dr_grpo, discount: 0.9}",
        "r.yaml:4: algorithm.discount: 0.9 with `credit: episode`, which has one return per episode; set credit: "
        "turn, or discount: 1",
    ),
    (
        "chat: {system: Hello}",
        "r.yaml:4: chat.system: with `model.name: pocket`, which takes no instructions",
    ),
    (
        "sft: {episodes: 3}",
        "r.yaml:4: sft: stands beside `train`; a recipe has one of them, remove the other",
    ),
]


@pytest.mark.parametrize(("lines", "said"), BAD, ids=[lines for lines, _ in BAD])
def test_one_mistake_is_one_line(tmp_path: Path, lines: str, said: str) -> None:
    assert mistakes(tmp_path, GOOD + lines + "\n") == [said]


BUDGETS = [
    ("{kind: mixed, turns: [4]}", "budget.train.kind: unknown kind mixed; did you mean mix?"),
    (
        "{kind: zzz}",
        "budget.train.kind: unknown kind zzz; choose one of: fixed, mix, uniform, loguniform, "
        "curriculum, adaptive, relative",
    ),
    (
        "{turns: 4}",
        "budget.train.kind: missing; add one of: fixed, mix, uniform, loguniform, curriculum, adaptive, relative",
    ),
    ("{kind: fixed}", "budget.train.turns: missing; add it: the budget, turns"),
    ("{kind: fixed, low: 4, turns: 3}", "budget.train.low: unknown key; known here: kind, turns"),
    ("{kind: mix, turns: []}", "budget.train.turns: the list is empty; the budgets, turns"),
    (
        "{kind: mix, turns: [4, 0]}",
        "budget.train.turns.1: must be at least 1, got 0; the budgets, turns",
    ),
    (
        "{kind: mix, turns: [4, 4]}",
        "budget.train.turns: 4 is listed twice; list it once and raise its weight",
    ),
    (
        "{kind: mix, turns: [4, 8], weights: [1]}",
        "budget.train.weights: 1 weights for 2 budgets; give one weight per entry of turns",
    ),
    (
        "{kind: mix, turns: [4, 8], weights: [0, 0.0]}",
        "budget.train.weights: all are 0; give one budget a positive weight",
    ),
    ("{kind: uniform, low: 9, high: 4}", "budget.train.low: 9 is above high 4; swap them"),
    ("{kind: loguniform, low: 9, high: 4}", "budget.train.low: 9 is above high 4; swap them"),
    ("{kind: relative, factors: [2], low: 9, high: 4}", "budget.train.low: 9 is above high 4; swap them"),
    (
        "{kind: relative, factors: [2, 2.0], low: 2, high: 4}",
        "budget.train.factors: 2 is listed twice; list each factor once",
    ),
    ("{kind: adaptive, turns: [4, 4]}", "budget.train.turns: 4 is listed twice; list each budget once"),
    (
        "{kind: adaptive, turns: [4, 8, 16], floor: 0.4}",
        "budget.train.floor: 0.4 for each of 3 budgets is more than 1 in all; lower it",
    ),
    (
        "8",
        "budget.train: expected a section, got 8; distribution the budget of a training group is drawn from",
    ),
]


@pytest.mark.parametrize(("budget", "said"), BUDGETS, ids=[budget for budget, _ in BUDGETS])
def test_budgets(tmp_path: Path, budget: str, said: str) -> None:
    text = f"name: x\ntrain: {{steps: 3}}\nbudget:\n  train: {budget}\n"
    assert mistakes(tmp_path, text) == [f"r.yaml:4: {said}"]


def test_supervised_contradictions(tmp_path: Path) -> None:
    text = """\
name: x
budget: {train: {kind: fixed, turns: 8}, eval: [4, 4]}
sft: {episodes: 3, announce: [none, none]}
model:
  new: {hidden: 100, heads: 8, kv_heads: 3}
  quantization: nf4
  adapter: runs/x
lora: null
"""
    assert mistakes(tmp_path, text) == [
        "r.yaml:2: budget.eval: 4 is listed twice; list each budget once",
        "r.yaml:3: sft.announce: none is listed twice; list each form once",
        # 100 is no multiple of 2 x 8; the next one is 112
        "r.yaml:5: model.new.hidden: 100 is not a multiple of twice the 8 heads; 112 is",
        "r.yaml:5: model.new.kv_heads: 3 does not divide the 8 heads; use a divisor of 8",
        "r.yaml:6: model.quantization: nf4 with `lora: null`; 4-bit weights cannot be trained, "
        "set quantization: none or give lora a rank",
        "r.yaml:7: model.adapter: with `lora: null`; give lora the adapter's rank to train it on",
    ]


@pytest.mark.parametrize(
    "budget",
    [
        "{kind: curriculum, turns: [4], every: 2}",
        "{kind: adaptive, turns: [4]}",
        "{kind: relative, factors: [2], low: 2, high: 9}",
    ],
)
def test_budgets_of_training_steps_are_none_of_demonstrations(tmp_path: Path, budget: str) -> None:
    kind = budget.split()[1].rstrip(",")
    assert mistakes(tmp_path, f"name: x\nsft: {{episodes: 3}}\nbudget:\n  train: {budget}\n") == [
        f"r.yaml:4: budget.train.kind: {kind} with `sft`; demonstrations have no such budgets, use mix, uniform or "
        "loguniform"
    ]


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ('wording: "{turns} left"', "with `budget.announce: none`, which tells nothing; set total or remaining"),
        ("announce: total, wording: hurry", "does not say the number; write {turns} where it stands"),
        ('announce: total, wording: "{turns} of {all}"', "has braces other than those of {turns}; remove them"),
    ],
)
def test_wording(tmp_path: Path, budget: str, said: str) -> None:
    text = f"name: x\ntrain: {{steps: 3}}\nbudget: {{train: {{kind: fixed, turns: 4}}, {budget}}}\n"
    assert mistakes(tmp_path, text) == [f"r.yaml:3: budget.wording: {said}"]


def test_a_decay_needs_an_end_that_is_known(tmp_path: Path) -> None:
    text = GOOD.replace("{steps: 3}", "{steps: 3, env_turns: 9}") + "optimizer: {schedule: linear}\n"
    assert mistakes(tmp_path, text) == [
        "r.yaml:4: optimizer.schedule: linear with `train.env_turns`, which may end the run before the decay does; "
        "set schedule: constant"
    ]


def test_a_new_model_needs_sft_and_no_lora(tmp_path: Path) -> None:
    assert mistakes(tmp_path, GOOD + "model: {new: {layers: 2}}\n") == [
        "r.yaml:4: model.new: needs `sft`; reinforcement learning starts from trained weights",
    ]
    supervised = GOOD.replace("train: {steps", "sft: {episodes")
    assert mistakes(tmp_path, supervised + "model: {new: {layers: 2}}\n") == [
        # lora is not in the file: it has its default
        "r.yaml:1: lora: with `model.new`; a new model trains all its weights, write `lora: null`",
    ]


def test_training_tasks_are_no_evaluation(tmp_path: Path) -> None:
    text = GOOD.replace("{steps: 3}", "{steps: 3, eval_every: 1}") + "env: {eval_split: train}\n"
    assert mistakes(tmp_path, text) == [
        "r.yaml:4: env.eval_split: train is also the train_split, so success would be measured on "
        "training tasks; name another split or set train.eval_every to 0"
    ]
    load(written(tmp_path, GOOD + "env: {eval_split: train}\n"))  # without evaluations it is fine


def test_every_mistake_at_once_in_the_order_of_the_lines(tmp_path: Path) -> None:
    text = """\
name: my exp
seed: -1
lora: {rank: 0, dropout: 0.1}
budget:
  train: {kind: uniform, low: 9, high: 4}
  eval: [4, x]
trian: {steps: 3}
train: {stepss: 3}
seed: 2
"""
    assert mistakes(tmp_path, text, "optimizer.learning_rate=-1", "foo") == [
        "r.yaml:1: name: letters, digits, `.`, `_` and `-` only, a letter or digit first, "
        'got text "my exp"; name of the experiment and of its run folder',
        "r.yaml:2: seed: must be at least 0, got -1; every random draw follows from it (default 0)",
        "r.yaml:3: lora.rank: must be at least 1, got 0; rank of the adapter (default 32)",
        # a contradiction is found although other keys, one of them beside it, are wrong
        "r.yaml:3: lora.dropout: 0.1 with `train`; set 0, or the update is not on-policy",
        "r.yaml:5: budget.train.low: 9 is above high 4; swap them",
        'r.yaml:6: budget.eval.1: expected a whole number, got text "x"; '
        "budgets of an evaluation, turns (default [4, 6, 8, 10, 15, 20, 30, 50])",
        "r.yaml:7: trian: unknown key; did you mean train?",
        # and `train.steps` is not called missing as well: its misspelling is the mistake
        "r.yaml:8: train.stepss: unknown key; did you mean steps?",
        "r.yaml:9: seed: is set twice, first on line 2; keep one",
        "--set optimizer.learning_rate=-1: optimizer.learning_rate: must be above 0, got -1; "
        "peak learning rate (default 1e-05)",
        "--set foo: expected KEY=VALUE; for example --set train.steps=3",
    ]


def test_an_empty_mapping_lacks_what_is_required(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "{}") == [
        "r.yaml:1: name: missing; add it: name of the experiment and of its run folder",
        "r.yaml:1: budget: missing; add it: how many turns an episode may use",
        "r.yaml:1: train: missing, and so is `sft`; add `train` for reinforcement learning "
        "or `sft` for supervised learning",
    ]


def test_every_key_of_the_schema_refuses_a_wrong_value_in_plain_words(tmp_path: Path) -> None:
    """Sets each key in turn to a list of a section, which fits nowhere."""
    keys = schema_keys()
    assert len(keys) > 70
    for key in keys:
        dotted = ".".join(map(str, key))
        if dotted.startswith("budget.train.") or dotted == "env.args":
            continue
        lines = mistakes(tmp_path, GOOD, "sft.episodes=1", f"{dotted}=[{{a: 1}}]")
        about = [line for line in lines if line.startswith(f"--set {dotted}=")]
        assert about, dotted
        for line in about:
            assert "Input should" not in line, line
            assert "http" not in line, line
            assert "; " in line, line
