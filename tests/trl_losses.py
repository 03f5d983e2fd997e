"""Run by an environment that has TRL: its GRPO loss, and the gradient, on given numbers. JSON in, JSON out."""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl.trainer.grpo_trainer import GRPOTrainer


def main() -> None:
    answers = []
    for case in json.load(sys.stdin):
        logprobs = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
        mask = torch.tensor(case["mask"], dtype=torch.float64)
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, given=logprobs, **__: (given, torch.zeros_like(given), None),
            aux_loss_enabled=False,
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            importance_sampling_level=case["level"],
            beta=case["beta"],
            loss_type=case["loss_type"],
            epsilon_low=case["clip_low"],
            epsilon_high=case["clip_high"],
            use_vllm=False,
            _entropy_bonus_enabled=False,
            max_completion_length=case["constant"],
            current_gradient_accumulation_steps=1,
            args=SimpleNamespace(delta=None, use_bias_correction_kl=False),
            model=SimpleNamespace(training=True),
            accelerator=SimpleNamespace(reduce=lambda x, reduction: x, gather=lambda x: x),
            _metrics={"train": defaultdict(list)},
        )
        ids = torch.zeros(logprobs.shape, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": torch.ones_like(ids[:, :1]),
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": torch.tensor(case["advantages"], dtype=torch.float64),
            "old_per_token_logps": torch.tensor(case["old"], dtype=torch.float64),
            "ref_per_token_logps": torch.tensor(case["reference"], dtype=torch.float64),
        }
        loss = GRPOTrainer._compute_loss(trainer, None, inputs)
        loss.backward()
        answers.append({"loss": loss.item(), "gradient": logprobs.grad.tolist()})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
