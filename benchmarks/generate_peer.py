"""transformers' own `generate` as a competitor's process, on the same model and adapter.

It replays recorded episodes: the same tokens come in, and a logits processor leaves the recorded token alone to be
sampled. Rows that are over leave the batch at once, and environments cost it nothing: both more than most loops have.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from ours import policy_of
from serve import Job, measured, serve
from torch import Tensor
from transformers import DynamicCache

Turns = list[dict[str, Any]]


class Forced:
    """Leaves each row one token, that of its script; transformers ends and pads rows itself."""

    def __init__(self, scripts: Sequence[Sequence[int]], start: int) -> None:
        self.scripts, self.start = scripts, start

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        n = ids.shape[1] - self.start
        picks = torch.tensor([[script[min(n, len(script) - 1)]] for script in self.scripts], device=scores.device)
        return torch.full_like(scores, -torch.inf).scatter_(1, picks, 0.0)


class Generate:
    """Both loops; ``setup`` as in ``ours.Ours``."""

    def __init__(self, setup: Job) -> None:
        self.policy = policy_of(setup)
        self.policy.model.eval()
        self.pad = self.policy.tokenizer.pad_token_id

    def reprefill(self, job: Job) -> dict[str, Any]:
        """`generate` called anew on the whole transcript each turn."""
        return self._measured(self._reprefill, job)

    def cached(self, job: Job) -> dict[str, Any]:
        """The same with its cache handed back in each turn."""
        return self._measured(self._cached, job)

    def _measured(self, loop: Callable[[list[Turns]], int], job: Job) -> dict[str, Any]:
        with torch.no_grad():
            read, figures = measured(lambda: loop([episode["turns"] for episode in job["episodes"]]))
        return {"figures": {**figures, "prefill_tokens": read}}

    def _reprefill(self, episodes: list[Turns]) -> int:
        texts: list[list[int]] = [[] for _ in episodes]
        read = 0
        for turn, live in _rounds(episodes):
            for i in live:
                texts[i] += episodes[i][turn]["observation_ids"]
            ids, mask = self._left([texts[i] for i in live])
            read += ids.numel()
            new = self._generate(ids, mask, [episodes[i][turn]["action_ids"] for i in live])
            for i, said in zip(live, new, strict=True):
                texts[i] += said
        return read

    def _cached(self, episodes: list[Turns]) -> int:
        cache, read, before = DynamicCache(config=self.policy.causal.config), 0, list(range(len(episodes)))
        ids = mask = torch.zeros(len(episodes), 0, dtype=torch.long)
        for turn, live in _rounds(episodes):
            if live != before:
                kept = torch.tensor([before.index(i) for i in live])
                cache.batch_select_indices(kept)
                ids, mask, before = ids[kept], mask[kept], live
            added, present = self._left([episodes[i][turn]["observation_ids"] for i in live])
            read += added.numel()
            ids, mask = torch.cat([ids, added], 1), torch.cat([mask, present], 1)
            new = self._generate(ids, mask, [episodes[i][turn]["action_ids"] for i in live], past_key_values=cache)
            width = max(map(len, new))
            ids = torch.cat([ids, torch.tensor([said + [self.pad] * (width - len(said)) for said in new])], 1)
            held = torch.tensor([[1] * len(said) + [0] * (width - len(said)) for said in new])
            mask = torch.cat([mask, held], 1)
        return read

    def _generate(self, ids: Tensor, mask: Tensor, scripts: list[list[int]], **more: Any) -> list[list[int]]:
        bound = max(map(len, scripts))
        ends = sorted({script[-1] for script in scripts if len(script) < bound})
        out = self.policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=bound,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=ends or self.policy.tokenizer.eos_token_id,
            pad_token_id=self.pad,
            logits_processor=[Forced(scripts, ids.shape[1])],
            **more,
        )
        new = [row[: len(script)] for row, script in zip(out[:, ids.shape[1] :].tolist(), scripts, strict=True)]
        if new != scripts:
            raise RuntimeError("generate left the script")
        return new

    def _left(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Rows padded on the left, as `generate` wants them, and which of their tokens are there."""
        width = max(map(len, rows))
        ids = torch.tensor([[self.pad] * (width - len(row)) + row for row in rows])
        return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


def _rounds(episodes: list[Turns]) -> list[tuple[int, list[int]]]:
    """(turn, episodes that have it) of each round."""
    return [
        (turn, [i for i, turns in enumerate(episodes) if turn < len(turns)]) for turn in range(max(map(len, episodes)))
    ]


if __name__ == "__main__":
    peer = Generate(json.loads(sys.argv[1]))
    serve({"reprefill": peer.reprefill, "cached": peer.cached})
