"""TRL's GRPOTrainer as a competitor's process, in an environment of its own: `pip install trl==1.16.0 peft jmespath`.

It replays recorded episodes through its own multi-turn loop and its environment interface. What is patched, and why:

* the chat template: TRL refuses one that does not show tool calls; this one shows them, and writes a tool's answer
  as the recorded episodes have it, as a turn of the user, so that the tokens are the same;
* ``parse_response`` of the tokenizer: any text is a call of the tool `act` while the episode has turns left; a
  small model does not write JSON, and TRL's loop knows no budget per episode;
* ``generate`` of the model gets a logits processor that leaves the recorded token alone to be sampled.

Loop, batching, loss and optimizer step are TRL's own.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from types import MethodType
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", WANDB_DISABLED="true")

import torch
from datasets import Dataset
from peft import LoraConfig
from serve import Job, measured, peak_above, serve, start_peak
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

SAID = "{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n{{ m.content }}"
    + SAID
    + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "plain": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}"
    + SAID
    + "{{ eos_token }}\n{% else %}\n{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
}


class RolledOut(Exception):
    """Raised behind a rollout that is to be followed by no update."""


class Replay:
    """Where TRL's loop stands in the recorded episodes; ``rows`` are those it generates for now."""

    def __init__(self, episodes: Sequence[dict[str, Any]]) -> None:
        self.episodes, self.rows = episodes, list(range(len(episodes)))
        self.turn = self.given = self.read = self.prompted = 0

    def generate(self, model: Any, original: Any, **inputs: Any) -> Tensor:
        scripts = [self.episodes[i]["turns"][self.turn]["action_ids"] for i in self.rows]
        start = inputs["input_ids"].shape[1]
        self.read += inputs["input_ids"].numel()
        self.prompted += int(inputs["attention_mask"].sum())

        def forced(ids: Tensor, scores: Tensor) -> Tensor:
            n = ids.shape[1] - start
            picks = torch.tensor([[script[min(n, len(script) - 1)]] for script in scripts])
            return torch.full_like(scores, -torch.inf).scatter_(1, picks, 0.0)

        out: Tensor = original(**inputs, logits_processor=[forced])
        self.parsed = deque(self.rows)
        self.rows, self.turn = [], self.turn + 1
        return out

    def parse(self, tokenizer: Any, ids: Sequence[int], **_: Any) -> dict[str, Any]:
        row = self.parsed.popleft()
        if list(ids) != list(self.episodes[row]["turns"][self.turn - 1]["action_ids"]):
            raise RuntimeError("TRL left the script")
        answer: dict[str, Any] = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
        if self.turn < len(self.episodes[row]["turns"]):
            self.rows.append(row)
            answer["tool_calls"] = [{"type": "function", "function": {"name": "act", "arguments": {"text": "x"}}}]
        return answer

    def environment(self) -> Any:
        replay = self

        class Env:
            """A recorded game."""

            def reset(self, **_: Any) -> None:
                self.episode, self.turn = replay.episodes[replay.given % len(replay.episodes)], 0
                replay.given += 1

            def act(self, text: str) -> str:
                """Say one command.

                Args:
                    text: The command.

                Returns:
                    What happened.
                """
                self.turn += 1
                return str(self.episode["turns"][self.turn]["observation"])

            def get_reward(self) -> float:
                return float(self.episode["end_reason"] == "success")

        return Env


class Trl:
    """A fresh model and trainer for each job; ``setup`` as in ``ours.Ours``, and ``family``: of the template."""

    def __init__(self, setup: Job) -> None:
        self.setup = setup

    def rollout(self, job: Job) -> dict[str, Any]:
        """TRL's multi-turn loop on the recorded episodes."""
        trainer, replay = self._trainer(job)
        original, took = trainer._generate, {}

        def timed(prompts: Any) -> Any:
            _, figures = measured(lambda: original(prompts))
            took.update(figures)
            raise RolledOut

        trainer._generate = timed
        try:
            trainer.train()
        except RolledOut:
            return {"figures": {**took, "prefill_tokens": replay.read, "prompt_tokens": replay.prompted}}
        raise RuntimeError("TRL rolled nothing out")

    def update(self, job: Job) -> dict[str, Any]:
        """TRL's old log-probabilities, loss and optimizer step on exactly the recorded tokens."""
        trainer, _ = self._trainer(job)
        trainer._generate = lambda prompts: recorded(job["episodes"])
        return {"figures": self._trained(trainer)}

    def step(self, job: Job) -> dict[str, Any]:
        """The whole: TRL's rollout of the recorded episodes, and its update on them."""
        trainer, _ = self._trainer(job)
        original, took = trainer._generate, {}

        def timed(prompts: Any) -> Any:
            began = time.perf_counter()
            result = original(prompts)
            took["rollout_s"] = time.perf_counter() - began
            return result

        trainer._generate = timed
        return {"figures": {**self._trained(trainer), **took}}

    def _trained(self, trainer: Any) -> dict[str, float]:
        """Seconds from the first batch's preparation to the end of the step: what sets a trainer up is left out."""
        prepare, start = trainer._generate_and_score_completions, {}

        def first(inputs: Any) -> Any:
            start.update(peak=start_peak(), wall=time.perf_counter(), cpu=time.process_time())
            return prepare(inputs)

        trainer._generate_and_score_completions = first
        trainer.train()
        return {
            "wall_s": time.perf_counter() - start["wall"],
            "cpu_s": time.process_time() - start["cpu"],
            "peak_mb": peak_above(start["peak"]),
            "grad_norm": next(float(entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry),
        }

    def _trainer(self, job: Job) -> tuple[Any, Replay]:
        episodes, size = job["episodes"], job["group"]
        tokenizer = AutoTokenizer.from_pretrained(self.setup["model"])
        tokenizer.chat_template = TEMPLATES[self.setup["family"]]
        tokenizer.response_template = {}  # there is one, says this; what it means is patched
        replay = Replay(episodes)
        tokenizer.parse_response = MethodType(replay.parse, tokenizer)
        model = AutoModelForCausalLM.from_pretrained(self.setup["model"], dtype=getattr(torch, self.setup["dtype"]))
        texts = [episode["opening"] for episode in episodes[::size]]
        rows = [{"prompt": messages(text, self.setup["family"])} for text in texts]
        lora = LoraConfig(r=self.setup["lora"], lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        trainer = GRPOTrainer(
            model=model,
            args=self._arguments(job),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=lora if self.setup["lora"] else None,
            environment_factory=replay.environment(),
        )
        original = trainer.model.generate
        trainer.model.generate = lambda **inputs: replay.generate(trainer.model, original, **inputs)
        return trainer, replay

    def _arguments(self, job: Job) -> Any:
        episodes = job["episodes"]
        longest = max(sum(len(t["observation_ids"]) + len(t["action_ids"]) for t in e["turns"]) for e in episodes)
        fitting = max(1, self.setup["micro_batch_tokens"] // longest)
        micro = max(n for n in range(1, len(episodes) + 1) if len(episodes) % n == 0 and (n <= fitting or n == 1))
        return GRPOConfig(
            output_dir=job["scratch"],
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=len(episodes) // micro,
            num_generations=job["group"],
            max_completion_length=2 * longest,
            max_steps=1,
            learning_rate=self.setup.get("learning_rate", 1e-5),
            lr_scheduler_type="constant",
            loss_type="dr_grpo",
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            temperature=1.0,
            generation_kwargs={"max_new_tokens": self.setup["turn_tokens"]},
            bf16=self.setup["dtype"] == "bfloat16",
            use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=self.setup["checkpointing"],
            report_to=[],
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
            dataloader_pin_memory=False,
        )


def messages(opening: str, family: str) -> list[dict[str, str]]:
    """The opening as a conversation: the texts between the marks of the template."""
    if family == "plain":
        return [{"role": "user", "content": opening.removeprefix("<|begin|>").removesuffix("\n>")}]
    parts = [part.removesuffix("<|im_end|>\n") for part in opening.split("<|im_start|>") if part]
    pairs = [part.partition("\n") for part in parts[:-1]]  # the last one begins the agent's turn
    return [{"role": role, "content": content} for role, _, content in pairs]


def recorded(episodes: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    """What TRL's ``_generate`` returns, of the recorded tokens."""
    prompts, completions, masks = [], [], []
    for episode in episodes:
        first, *later = episode["turns"]
        prompts.append(list(first["observation_ids"]))
        tokens, mask = list(first["action_ids"]), [1] * len(first["action_ids"])
        for turn in later:
            tokens += [*turn["observation_ids"], *turn["action_ids"]]
            mask += [0] * len(turn["observation_ids"]) + [1] * len(turn["action_ids"])
        completions.append(tokens)
        masks.append(mask)
    texts = [[{"role": "assistant", "content": ""}] for _ in episodes]
    return prompts, completions, masks, texts, None, {}, None, [[] for _ in episodes]


if __name__ == "__main__":
    peer = Trl(json.loads(sys.argv[1]))
    serve({"rollout": peer.rollout, "update": peer.update, "step": peer.step})
