"""The benchmarks run, and say what they could not measure."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import floors
import ours
import pytest
import tiny
import worlds
from competitors import Competitor, alternating, ratio

from bmrl.batch import Row
from bmrl.envs import make
from bmrl.errors import BmrlError

ROOT = Path(__file__).resolve().parent.parent


def test_engines_side_by_side():
    line = [sys.executable, "benchmarks/env.py", "--games", "1", "--steps", "3", "--no-rollout", "--json"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["engines"]["fast"]["steps_per_s"] > 0
    assert found["engines"]["fast"]["pool_steps_per_s"] > 0
    assert found["rollout_share"] is None
    assert all("\n" not in told for told in found["missing"])
    has_engine = all(map(find_spec, ("alfworld", "textworld")))
    assert ("unmodified" in found["engines"]) == has_engine
    assert (found["fast_vs_unmodified"] is not None) == has_engine
    if not has_engine:
        (told,) = (told for told in found["missing"] if told.startswith("unmodified: "))
        assert told.startswith("unmodified: No module named")


# bytes: 1,000 a forward, 10 a token of the cache; operations: 2 a token, 1 a token attended to, 200 a row of logits
SHAPE = floors.Shape(weight_bytes=1000, cache_bytes=10, linear=1, adapter=7, head=100, attention=1)


def test_decode_floor():
    # First episode: the pre-fill of 3 gives the first of 3 sampled tokens; the two forwards behind it read 4 and 5
    # tokens. Then 6 + 2 are there, and one more forward reads 9. Second: one forward, 5 tokens. Together 23.
    episodes = [[([1, 2, 3], [4, 5, 6]), ([7, 8], [9, 9])], [([1, 2, 3, 4], [5, 6])]]
    # Four forwards one by one; two abreast no fewer than the three of the first episode.
    assert floors.decode_bytes(episodes, 1, SHAPE) == 4 * 1000 + 230
    assert floors.decode_bytes(episodes, 2, SHAPE) == 3 * 1000 + 230


def test_prefill_floor():
    # Openings 1 2 3, 1 2 9 and 1 2 3 again: tokens 1, 2, 3, 9 attend to 1, 2, 3, 3: 4 x 2 + 9, two rows of logits.
    openings = [[([1, 2, 3], [4, 5])], [([1, 2, 9], [4, 5])], [([1, 2, 3], [4, 5])]]
    assert floors.prefill_operations(openings, SHAPE) == 17 + 400
    # A second turn: 3 + 1 are held; the last sampled token and 3 added attend to 5, 6, 7, 8: 4 x 2 + 26.
    more = [[([1, 2, 3], [4, 5]), ([6, 7, 8], [9])], *openings[1:]]
    assert floors.prefill_operations(more, SHAPE) == 17 + 400 + 34 + 200


def test_update_floor():
    # 5 tokens attend to 1 .. 5: 5 x 2 + 15; logits of 2; forward and backward. The adapter: 5 x 14, three times.
    assert floors.update_operations([[([1, 2, 3], [4, 5])]], SHAPE) == 2 * (25 + 400) + 3 * 70


def test_shape_of_a_model():
    # Tied embeddings of v x 32; a layer: q and o 32 x 32, k and v 16 x 32, three of 48 x 32, two norms; a last norm.
    policy = tiny.policy(adapter=False)
    shape = floors.shape_of(policy)
    assert shape.adapter == 0
    layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32
    assert shape.head == len(policy.tokenizer) * 32
    assert shape.linear == 2 * layer
    assert shape.weight_bytes == 4 * (shape.head + 2 * (layer + 2 * 32) + 32)
    assert shape.cache_bytes == 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads of 8, fp32
    assert shape.attention == 4 * 2 * 4 * 8
    # An adapter of rank 4 on the seven matrices of each layer changes nothing else.
    assert replace(floors.shape_of(tiny.policy()), adapter=0) == shape
    assert floors.shape_of(tiny.policy()).adapter == 2 * 4 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 48))


def test_timed_games_last_as_told_and_are_decided_by_what_was_said():
    tasks = make("alfworld", source="embedded").tasks("train")
    groups = worlds.plays(tasks, episodes=8, group=2, least=2, most=5, seed=0)
    assert [group[0].budget for group in groups] == [2, 3, 4, 5]
    env, won = worlds.make("alfworld", source="embedded"), []
    for text in "abcdefgh":
        env.reset(groups[3][0].task)
        steps = [env.step(text) for _ in range(5)]
        assert [step.terminated for step in steps] == [False] * 4 + [True]
        assert "Nothing happens." not in [step.observation for step in steps]
        won.append(steps[-1].won)
        env.reset(groups[3][1].task)
        assert [env.step(text) for _ in range(5)] == steps
    assert 0 < sum(won) < 8


def test_a_row_per_turn_trains_the_same_tokens():
    row = Row(
        (1, 2, 3, 4, 5, 6, 7), (False, True, True, False, False, True, False), (-1.0, -2.0, -3.0), (0.5, 0.6, 0.7), 0.25
    )
    assert ours.by_turn(row) == [
        Row((1, 2, 3), (False, True, True), (-1.0, -2.0), (0.5, 0.6), 0.25),
        Row((1, 2, 3, 4, 5, 6), (False, False, False, False, False, True), (-3.0,), (0.7,), 0.25),
    ]


def test_competitors_alternate_and_one_that_fails_is_a_line():
    asked: list[str] = []

    def work(name, *seconds):
        left = list(seconds)

        def run():
            asked.append(name)
            if not left:
                raise BmrlError(f"{name}: no more")
            return {"wall_s": left.pop(0)}

        return run

    missing: list[str] = []
    works = {"a": work("a", 1.0, 5.0, 2.0), "b": work("b", 9.0), "c": work("c", 4.0, 4.0, 6.0)}
    found = alternating(works, repeats=3, missing=missing, say=lambda _: None)
    assert asked == ["a", "b", "c", "a", "b", "c", "a", "c"]
    assert missing == ["b: no more"]
    assert found["a"] == {"wall_s": {"median": 2.0, "least": 1.0, "most": 5.0}}
    assert ratio(found, "c", "a") == 2.0
    assert ratio(found, "b", "a") is None


def test_a_competitor_that_is_not_there_is_one_line():
    with (
        Competitor("x", "trl_peer.py", {}, "/nowhere/python") as absent,
        pytest.raises(BmrlError, match=r"x: /nowhere"),
    ):
        absent.ask("rollout")
    # Its process ends with an import.
    with Competitor("x", "vllm_peer.py", {}) as ended, pytest.raises(BmrlError, match=r"x: ModuleNotFoundError.*vllm"):
        ended.ask("rollout")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "measured", "peers"),
    [
        ("rollout", ["ratio_vs_reprefill", "decode_floor_fraction"], ["ratio_vs_trl", "ratio_vs_vllm"]),
        ("update", ["ratio_vs_row_per_turn", "floor_fraction"], ["ratio_vs_trl", "peak_vs_trl"]),
        ("step", ["floor_fraction"], ["ratio_vs_trl"]),
        ("growth", ["time_exponent", "time_exponent_episodes"], []),
        ("curve", ["ratio_vs_separate"], []),
    ],
)
def test_benchmarks_of_rollout_and_update(script, measured, peers):
    line = [sys.executable, f"benchmarks/{script}.py", "--quick", "--json"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(found[key] > 0 for key in measured)
    assert all(found[key] is None for key in peers)
    named = {told.partition(":")[0] for told in found["missing"]}
    assert named == {"TRL" if "trl" in key else "vLLM" for key in peers if key.startswith("ratio")}
