"""Losses and gradients against TRL's own, on random numbers."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from bmrl.algorithm import clipped_loss, k3, sequence_ratio, token_ratio, token_weights

ROOT = Path(__file__).resolve().parent.parent
# TRL's name of a loss, its level of the ratio, and what a recipe calls the aggregation.
SAME = [
    ("grpo", "token", "episode"),
    ("bnpo", "token", "token"),
    ("dr_grpo", "token", "constant"),
    ("grpo", "sequence", "episode"),  # GSPO
]


def cases():
    generator = torch.Generator().manual_seed(0)
    for loss_type, level, aggregation in SAME:
        for beta in (0.0, 0.3):
            for rows, time in ((4, 7), (6, 3)):
                lengths = torch.randint(1, time + 1, (rows,), generator=generator)

                def noise(scale, shape=(rows, time)):
                    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).tolist()

                old = torch.tensor(noise(1.0)) - 2
                yield {
                    "loss_type": loss_type,
                    "level": level,
                    "aggregation": aggregation,
                    "beta": beta,
                    "clip_low": 0.1,
                    "clip_high": 0.2,
                    "constant": 5,
                    "mask": (torch.arange(time)[None] < lengths[:, None]).double().tolist(),
                    "old": old.tolist(),
                    "logprobs": (old + torch.tensor(noise(0.3))).tolist(),
                    "reference": (old + torch.tensor(noise(0.3))).tolist(),
                    "advantages": noise(1.0, (rows,)),
                }


def ours(case):
    """The loss and its gradient, zero where nothing was sampled."""
    logprobs = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor(case["mask"]).bool()
    old, reference = (torch.tensor(case[key], dtype=torch.float64)[mask] for key in ("old", "reference"))
    counts = mask.sum(1).tolist()
    now = logprobs[mask]
    weights = token_weights(counts, aggregation=case["aggregation"], constant=float(case["constant"]))
    of_tokens, advantages = (
        torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(counts))
        for values in (weights, case["advantages"])
    )
    ratio = sequence_ratio(now, old, counts) if case["level"] == "sequence" else token_ratio(now, old)
    loss, _ = clipped_loss(ratio, advantages, of_tokens, clip_low=case["clip_low"], clip_high=case["clip_high"])
    loss = loss + case["beta"] * (of_tokens * k3(now, reference)).sum()
    loss.backward()
    return loss.item(), logprobs.grad


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_trl():
    python = ROOT / ".venv-unsloth" / "bin" / "python"
    if not python.exists():
        pytest.skip("there is no .venv-unsloth, which has TRL; `make test-slow` makes it")
    given = list(cases())
    script = str(ROOT / "tests" / "trl_losses.py")
    done = subprocess.run(
        [python, script], input=json.dumps(given), capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.strip().splitlines()[-1])
    for case, answer in zip(given, theirs, strict=True):
        loss, gradient = ours(case)
        assert loss == pytest.approx(answer["loss"], abs=1e-9)
        torch.testing.assert_close(gradient, torch.tensor(answer["gradient"], dtype=torch.float64), atol=1e-9, rtol=0)
        assert gradient.abs().sum() > 0
