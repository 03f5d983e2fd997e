"""Plays that begin with turns already decided: they are read, never sampled, and cost turns like any other."""

import pytest
import tiny
import torch

from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.policy import continuation_logprobs, token_logprobs
from bmrl.rollout import rollout
from bmrl.sampler import LiveSampler
from bmrl.types import EndReason, Play

CHAT = tiny.chat()
STOP = next(iter(CHAT.stop_ids))


def play(sampler, wanted, *, workers=0, **more):
    """(length of the corridor, budget, prefix) each."""
    plays = [Play(0, g, 0, Task(f"c-{n}", "corridor", data=n), "train", 0, b, p) for g, (n, b, p) in enumerate(wanted)]
    settings = {"turn_tokens": 8, "context_tokens": 512, "temperature": 1.0} | more
    with Pool("corridor", {}, workers=workers, timeout_s=60, slots=sampler.rows, make=tiny.make) as pool:
        return rollout(plays, sampler=sampler, chat=CHAT, pool=pool, **settings)


def scripted(rows=4):
    return tiny.ScriptedSampler(lambda row, n: CHAT.answer("go"), rows=rows, stop=STOP)


@pytest.mark.parametrize("workers", [0, 2])
def test_turns_of_a_prefix_count_and_the_policy_plays_the_rest(workers):
    sampler = scripted()
    wanted = [(4, 9, ("stay", "go")), (4, 4, ("stay", "go")), (2, 9, ()), (3, 5, ("sing",) * 5)]
    episodes = play(sampler, wanted, workers=workers)
    said = [[turn.action for turn in episode.turns] for episode in episodes]
    assert said == [["stay", *["go"] * 4], ["stay", *["go"] * 3], ["go", "go"], ["sing"] * 5]
    assert [e.end_reason for e in episodes] == ["success", "budget", "success", "budget"]
    assert [turn.valid for turn in episodes[3].turns] == [False] * 5
    assert episodes[0].turns[-1].reward == 1
    assert len(sampler.prompts) == 3 + 2 + 2  # nothing was generated for what was decided
    assert sampler.transcripts == {}


def test_a_prefix_is_in_the_policys_own_words_and_none_of_it_is_sampled():
    sampler = scripted()
    own, given = play(sampler, [(4, 9, ()), (4, 9, ("go", "go"))])
    assert given.token_ids == own.token_ids
    assert [bool(turn.action_ids) for turn in given.turns] == [False, False, True, True]
    first = sum(len(turn.observation_ids) for turn in given.turns[:3])
    assert not any(given.action_mask[:first])
    assert sum(given.action_mask) == sum(len(turn.action_ids) for turn in own.turns[2:])
    assert given.token_ids[:first] in sampler.prompts


def test_a_game_may_end_within_its_prefix():
    sampler = scripted()
    won, lost = play(sampler, [(2, 9, ("go",) * 4), (2, 9, ("fall", "go"))])
    assert (won.end_reason, len(won.turns)) == (EndReason.SUCCESS, 2)
    assert (lost.end_reason, len(lost.turns)) == (EndReason.FAILURE, 1)
    assert sampler.prompts == sampler.dropped == []


def test_a_prefix_that_does_not_fit_the_context_ends_there():
    (episode,) = play(scripted(), [(8, 99, ("stay",) * 90)], context_tokens=200)
    assert episode.end_reason is EndReason.CONTEXT
    assert len(episode.token_ids) + 8 < 200
    assert not any(turn.action_ids for turn in episode.turns)


def test_a_live_sampler_goes_on_as_from_its_own_turns():
    # Greedy, so that the draws do not matter: handed its own first turns, a policy ends as it did.
    policy = tiny.policy()
    sampler = LiveSampler(policy, rows=4, context_tokens=512)
    (own,) = play(sampler, [(5, 4, ())], temperature=0.0)
    said = tuple(turn.action for turn in own.turns)
    ids = tuple(CHAT.answer(action) for action in said)
    given = play(sampler, [(5, 4, said[:n]) for n in range(4)], temperature=0.0)
    for n, episode in enumerate(given):
        # Only where the policy's words were those of the chat is it the same transcript.
        if all(turn.action_ids == i for turn, i in zip(own.turns[:n], ids, strict=False)):
            assert episode.token_ids == own.token_ids


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_continuations_are_weighed_as_the_update_weighs_them(temperature):
    policy = tiny.policy()
    beginning = CHAT.opening("You are at place 3.")
    continuations = [CHAT.answer(text) for text in ("go", "stay", "go left right wait", "Nothing happens.")]
    found = continuation_logprobs(policy, beginning, continuations, temperature=temperature)
    for ids, total in zip(continuations, found, strict=True):
        row = torch.tensor([[*beginning, *ids]])
        picked = torch.arange(row.shape[1])[None] >= len(beginning)
        with torch.no_grad():
            logprobs, _ = token_logprobs(policy, row, picked, temperature=temperature)
        assert total == pytest.approx(float(logprobs.sum()), abs=1e-4)


def test_a_continuation_of_one_token_needs_no_second_forward():
    policy = tiny.policy()
    beginning = CHAT.opening("You are at place 3.")
    whole = continuation_logprobs(policy, beginning, [(i,) for i in range(len(CHAT.tokenizer))])
    assert sum(torch.tensor(whole).exp()) == pytest.approx(1, abs=1e-5)
    assert continuation_logprobs(policy, beginning, []) == []
