"""Random streams: fixed values, independence, no shared state."""

import random
import subprocess
import sys

import numpy as np

from bmrl.seeds import python_stream, stream

KEYS = [
    (0, "rollout"),
    (1, "rollout"),
    (0, "eval"),
    (0, "rollout", 0),
    (0, "rollout", 1),
    (0, "rollout", 0, 1),
    (0, "rollout", 1, 0),
    (0, "rollout", 1, 23),
    (0, "rollout", 12, 3),
    (0, "rollout1", 23),
]


def test_known_values_stay():
    assert stream(0, "a", 1).random(2).tolist() == [0.5532030221904186, 0.7579150305468662]
    assert python_stream(0, "a", 1).random() == 0.22387448706883895


def test_every_part_of_the_key_makes_another_stream():
    assert len({stream(*key).random() for key in KEYS}) == len(KEYS)
    assert len({python_stream(*key).random() for key in KEYS}) == len(KEYS)


def test_a_stream_starts_anew_each_time_and_whatever_came_before():
    first = [stream(*key).random(3).tolist() for key in KEYS]
    again = [stream(*key).random(3).tolist() for key in reversed(KEYS)]
    assert first == again[::-1]


def test_numpy_integers_are_the_same_key():
    assert stream(np.int64(3), "x", np.int32(4)).random() == stream(3, "x", 4).random()


def test_streams_are_uncorrelated():
    a, b = stream(0, "x", 1).random(10_000), stream(0, "x", 2).random(10_000)
    # The correlation of independent samples has standard deviation 1 / sqrt(10000) = 0.01.
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05


def test_global_state_is_neither_read_nor_changed():
    random.seed(1)
    np.random.seed(1)
    before = stream(0, "x").random(), python_stream(0, "x").random()
    states = random.getstate(), np.random.get_state()[1].tolist()
    random.seed(2)
    np.random.seed(2)
    assert (stream(0, "x").random(), python_stream(0, "x").random()) == before
    random.setstate(states[0])
    np.random.seed(1)
    stream(0, "x").random(5)
    python_stream(0, "x").random()
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]


def test_hash_randomisation_does_not_matter():
    code = "from bmrl.seeds import stream; print(stream(0, 'a', 1).random())"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{stream(0, 'a', 1).random()}\n"}
