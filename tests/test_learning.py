"""What is learned reaches what samples: tokens that are rewarded must become frequent."""

from statistics import fmean

import tiny
import torch

from bmrl.batch import make_rows
from bmrl.credit import Credit
from bmrl.envs.pool import Pool
from bmrl.rollout import rollout
from bmrl.sampler import LiveSampler
from bmrl.trainer import Update, update_policy
from bmrl.types import Episode, Play

UPDATE = Update(
    micro_batch_tokens=4096,
    max_logprob_gap=1e-4,  # a sampler that an update did not reach is told
)


def even(episode: Episode) -> float:
    """Share of sampled tokens with an even id: about half, before anything is learned."""
    return fmean(token % 2 == 0 for turn in episode.turns for token in turn.action_ids)


def test_tokens_that_are_rewarded_become_frequent():
    policy, chat = tiny.policy(), tiny.chat()
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=0.02)
    shares = []
    with Pool("corridor", {}, workers=0, timeout_s=30, slots=16, make=tiny.Corridor) as pool:
        tasks = pool.tasks("train")[-2:]
        for step in range(1, 13):
            groups = [[Play(step, g, e, task, "train", 0, 3) for e in range(8)] for g, task in enumerate(tasks)]
            episodes = rollout(
                [play for group in groups for play in group],
                sampler=LiveSampler(policy, rows=16, context_tokens=256),
                chat=chat,
                pool=pool,
                turn_tokens=12,
                context_tokens=256,
                temperature=1.0,
                announce="none",
            )
            halves = [episodes[:8], episodes[8:]]
            rewards = [[even(episode) for episode in half] for half in halves]
            shares.append(fmean(map(fmean, rewards)))
            rows = make_rows(
                halves,
                tiny.with_the_last(halves, rewards),
                credit=Credit("grpo"),
                truncation={},
                aggregation="constant",
                constant=12.0,
            )
            learned = update_policy(policy, optimizer, rows, UPDATE, poll=lambda: None)
            assert not learned["skipped_gap"]
    assert shares[0] < 0.6
    assert fmean(shares[-3:]) > 0.8, shares
