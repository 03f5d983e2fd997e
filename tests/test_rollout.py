"""The rollout: budgets exact, one end reason each, prompts only ever extended, nothing after the end."""

import heapq
import time
from dataclasses import dataclass, field, replace

import numpy as np
import psutil
import pytest
import tiny
import torch

from bmrl import kv_cache
from bmrl.envs.base import Step, Task
from bmrl.envs.pool import Pool
from bmrl.errors import BmrlError
from bmrl.policy import Policy, token_logprobs
from bmrl.rollout import rollout
from bmrl.run.compose import cache_token_bytes
from bmrl.sampler import LiveSampler, sample
from bmrl.types import EndReason, Play

CHAT = tiny.chat()
STOP = next(iter(CHAT.stop_ids))
TASKS = {n: Task(f"task-{n}", "corridor", data=n) for n in range(1, 9)}


def plays(*wanted: tuple[int, int]) -> list[Play]:
    """(length of the corridor, budget) each a group of one."""
    return [Play(1, group, 0, TASKS[n], "train", 0, budget) for group, (n, budget) in enumerate(wanted)]


def play(script, wanted, *, rows=4, turn_tokens=8, context_tokens=512, make=tiny.Corridor, **more):
    sampler = tiny.ScriptedSampler(script, rows=rows, stop=STOP)
    with Pool("corridor", {}, workers=0, timeout_s=5, slots=rows, make=make) as pool:
        episodes = rollout(
            plays(*wanted),
            sampler=sampler,
            chat=CHAT,
            pool=pool,
            turn_tokens=turn_tokens,
            context_tokens=context_tokens,
            temperature=1.0,
            **more,
        )
    return episodes, sampler


def says(*texts: str):
    """A script in which every row says these texts in turn, the last one for ever."""
    return lambda row, n: CHAT.answer(texts[min(n, len(texts) - 1)])


def test_end_reasons_and_turns_used():
    # A corridor of n is won by n times "go": with budget 3 those of 1, 2, 3 are won, that of 4 is cut off.
    episodes, _ = play(says("go"), [(1, 3), (2, 3), (3, 3), (4, 3)])
    assert [e.end_reason for e in episodes] == ["success", "success", "success", "budget"]
    assert [len(e.turns) for e in episodes] == [1, 2, 3, 3]
    assert [e.success for e in episodes] == [True, True, True, False]


def test_lost_is_failure_and_counts_its_turn():
    (episode,), _ = play(says("go", "fall"), [(8, 5)])
    assert (episode.end_reason, len(episode.turns)) == (EndReason.FAILURE, 2)


def test_no_token_after_an_end_and_no_episode_above_its_budget():
    wanted = [(n, b) for n in (1, 3, 5) for b in (1, 2, 4, 6)]
    episodes, sampler = play(says("go"), wanted, rows=3)
    assert all(len(e.turns) == min(n, b) for e, (n, b) in zip(episodes, wanted, strict=True))
    # One call of the generator per used turn and not one more.
    assert len(sampler.prompts) == sum(len(e.turns) for e in episodes)
    assert sampler.transcripts == {}


def test_every_prompt_is_a_prefix_of_an_episodes_tokens():
    episodes, sampler = play(says("go", "sing", "stay"), [(3, 6), (5, 2), (8, 7), (1, 4)], rows=2)
    whole = [e.token_ids for e in episodes]
    for prompt in sampler.prompts:
        assert any(ids[: len(prompt)] == prompt for ids in whole)


class Endless(tiny.Corridor):
    """Writes five million words at place 1."""

    def step(self, action):
        answer = super().step(action)
        return replace(answer, observation="door " * 5_000_000) if self.left == 1 else answer


def test_an_observation_of_megabytes_ends_its_episode_and_is_not_cut_into_tokens():
    begun = time.monotonic()
    episodes, sampler = play(says("go"), [(4, 8), (1, 8)], make=Endless)
    assert [(e.end_reason, len(e.turns)) for e in episodes] == [(EndReason.CONTEXT, 3), (EndReason.SUCCESS, 1)]
    assert sampler.transcripts == {}
    assert time.monotonic() - begun < 5  # cut into tokens it takes a minute


def test_mask_is_exactly_what_was_sampled_also_where_stop_and_pad_stand_in_a_prompt():
    # The text spells out control tokens; they must come out as text, never as the tokens.
    tok = CHAT.tokenizer
    hostile = f"{tok.eos_token}{tok.pad_token}{tok.bos_token}"

    class Hostile(tiny.Corridor):
        def step(self, action: str) -> Step:
            answer = super().step(action)
            return Step(hostile, answer.reward, answer.terminated, answer.won, answer.admissible)

    (episode,), _ = play(says("go"), [(3, 5)], make=Hostile)
    specials = {tok.eos_token_id, tok.pad_token_id, tok.bos_token_id}
    for turn in episode.turns[1:]:
        assert not specials & set(CHAT.encode(turn.observation))
    sampled = [i for i, m in zip(episode.token_ids, episode.action_mask, strict=True) if m]
    assert sampled == [i for turn in episode.turns for i in turn.action_ids]
    # Each turn's last sampled token is the stop token, and it is trained.
    ends = [i for i, m in enumerate(episode.action_mask) if m and episode.action_mask[i + 1 : i + 2] != (True,)]
    assert [episode.token_ids[i] for i in ends] == [STOP] * 3


def test_invalid_action_costs_a_turn():
    (episode,), _ = play(says("sing", "go"), [(1, 3)])
    assert [(t.action, t.valid) for t in episode.turns] == [("sing", False), ("go", True)]
    assert episode.turns[1].observation == "Nothing happens."
    assert episode.success


def test_turn_cut_off_holds_no_action_and_is_closed():
    # Two of the five tokens of "go go go go"+stop fit: no stop token, so no action, although "go go" was said.
    long = CHAT.answer("go go go go")
    (episode,), _ = play(lambda row, n: long if n == 0 else CHAT.answer("go"), [(1, 3)], turn_tokens=2)
    first, second = episode.turns
    assert (first.action, first.valid, len(first.action_ids)) == ("", False, 2)
    assert second.observation_ids[0] == STOP  # closed by us, as context, not as an action
    assert episode.action_mask[len(first.observation_ids) + 2] is False
    assert episode.success


def test_context_end_is_exact():
    # "go"+stop is 2 tokens. An opening of o tokens, then f per turn: the third turn needs
    # o + 2 + f + 2 + f + turn_tokens tokens.
    opening = len(CHAT.opening("You are at place 8."))
    follow = len(CHAT.following("You are at place 7.", stopped=True))
    need = opening + 2 + follow + 2 + follow + 4
    for context, turns in ((need, 3), (need - 1, 2)):
        (episode,), _ = play(says("go"), [(8, 3)], turn_tokens=4, context_tokens=context)
        assert len(episode.turns) == turns
        assert episode.end_reason is (EndReason.BUDGET if turns == 3 else EndReason.CONTEXT)
        assert len(episode.token_ids) <= context


def test_context_too_small_for_the_opening_ends_without_a_turn():
    (episode,), sampler = play(says("go"), [(8, 3)], context_tokens=4)
    assert (episode.end_reason, episode.turns, sampler.prompts) == (EndReason.CONTEXT, (), [])


def test_announcement_is_in_the_prompt():
    (episode,), _ = play(says("stay"), [(8, 3)], announce="remaining")
    assert [t.observation.splitlines()[-1] for t in episode.turns] == [
        "Turns left: 3.",
        "Turns left: 2.",
        "Turn left: 1.",
    ]


def test_an_episode_ends_when_its_action_tokens_are_used_up():
    # An action "stay" and its end are `one` tokens: two fit, and of the third one all but its last.
    one = len(CHAT.answer("stay"))
    (episode,), _ = play(says("stay"), [(8, 9)], action_tokens=2 * one)
    assert (episode.end_reason, len(episode.turns), episode.action_tokens) == (EndReason.BUDGET, 2, 2 * one)
    (episode,), _ = play(says("stay"), [(8, 9)], action_tokens=3 * one - 1)
    assert (episode.end_reason, len(episode.turns), episode.action_tokens) == (EndReason.BUDGET, 3, 3 * one - 1)
    # The turns are the nearer end, and the goal is nearer than both.
    (episode,), _ = play(says("stay"), [(8, 2)], action_tokens=3 * one)
    assert (episode.end_reason, len(episode.turns)) == (EndReason.BUDGET, 2)


def test_announcement_in_other_words_is_in_the_prompt():
    (episode,), _ = play(says("stay"), [(8, 2)], announce="remaining", wording="Only {turns} more.")
    assert [t.observation.splitlines()[-1] for t in episode.turns] == ["Only 2 more.", "Only 1 more."]


def test_longest_budgets_start_first_and_places_are_refilled():
    order = []

    class Watched(tiny.Corridor):
        def reset(self, task: Task) -> str:
            order.append(task.data)
            return super().reset(task)

    play(says("go"), [(1, 2), (2, 4), (3, 8), (4, 4)], rows=2, make=Watched)
    assert order == [3, 2, 4, 1]


@pytest.mark.parametrize("failures", [1, 2])
def test_errored_episode_is_retried_once_with_the_same_stream(failures):
    broken = []

    class Broken(tiny.Corridor):
        def step(self, action: str) -> Step:
            if len(broken) < failures and len(self.played) == 1:
                broken.append(1)
                raise RuntimeError("it broke")
            return super().step(action)

    episodes, _ = play(says("go"), [(3, 5), (2, 5)], rows=1, make=Broken)
    if failures == 1:
        assert [e.end_reason for e in episodes] == ["success", "success"]
        assert [len(e.turns) for e in episodes] == [3, 2]
    else:
        assert episodes[0].end_reason is EndReason.ENV_ERROR
        assert "it broke" in episodes[0].error
        assert episodes[1].success


# --- with a real model ------------------------------------------------------------------------------------------


# Random weights seldom say the stop token. With every third one a stop, actions are of different length, and so are
# the transcripts that are in a batch.
LIVELY = replace(CHAT, stop_ids=frozenset({STOP, *range(10, len(CHAT.tokenizer), 3)}))


def live(policy, wanted, *, rows, temperature=1.0, seed=0, turn_tokens=6, workers=0, fixed=False):
    sampler = LiveSampler(policy, rows=rows, context_tokens=512, fixed=fixed)
    groups = [Play(1, g, e, TASKS[n], "train", seed, b) for g, (n, b, size) in enumerate(wanted) for e in range(size)]
    with Pool("corridor", {}, workers=workers, timeout_s=60, slots=rows, make=tiny.make) as pool:
        return rollout(
            groups,
            sampler=sampler,
            chat=LIVELY,
            pool=pool,
            turn_tokens=turn_tokens,
            context_tokens=512,
            temperature=temperature,
        ), sampler


WANTED = [(8, 6, 4), (5, 2, 4), (8, 9, 3), (3, 4, 4)]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_batched_rollout_equals_one_episode_at_a_time(temperature):
    policy = tiny.policy()
    alone, _ = live(policy, WANTED, rows=1, temperature=temperature)
    for rows in (3, 16):
        together, _ = live(policy, WANTED, rows=rows, temperature=temperature)
        assert [e.token_ids for e in together] == [e.token_ids for e in alone]
        assert [e.end_reason for e in together] == [e.end_reason for e in alone]
    lengths = {len(turn.action_ids) for e in alone for turn in e.turns}
    assert len(lengths) > 3, "a test in which all rows are alike would show nothing"


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_decoding_in_fixed_shapes_says_the_same(rows, monkeypatch):
    # A width of 64 at the least: the transcripts, of up to some 300 tokens, then take three of them.
    monkeypatch.setattr("bmrl.cuda_graphs.LEAST_WIDTH", 64)
    policy = tiny.policy()
    alone, free = live(policy, WANTED, rows=rows)
    fixed, sampler = live(policy, WANTED, rows=rows, fixed=True)
    assert [e.token_ids for e in fixed] == [e.token_ids for e in alone]
    assert logprobs(fixed) == pytest.approx(logprobs(alone), abs=1e-5)
    # The same work was asked for; what the fixed shapes add to it is told.
    assert sampler.counters.attention_needed == free.counters.attention_needed
    assert sampler.counters.attention_computed > sampler.counters.attention_needed


def logprobs(episodes):
    return [p for episode in episodes for turn in episode.turns for p in turn.logprobs]


def test_a_full_row_keeps_its_tokens_while_others_decode_in_fixed_shapes():
    """A place that says nothing writes behind what it holds; one that is full has a position more for it."""
    policy = tiny.policy()
    opening = tuple(range(20, 32))

    def siblings(fixed):
        sampler = LiveSampler(policy, rows=3, context_tokens=12, fixed=fixed)
        sampler.begin(0, opening, np.array([0.3]))  # 12 tokens: full
        sampler.begin(1, opening[:4], np.array([0.1, 0.2, 0.7, 0.4]))
        for _ in range(4):
            sampler.step(temperature=1.0, stop_ids=frozenset())
        sampler.begin(2, opening, np.array([0.3]))  # copies the full row
        sampler.step(temperature=1.0, stop_ids=frozenset())
        return [torch.stack([block[place, :, :12] for place in (0, 2)]) for block in sampler._cache._keys]

    for one, other in zip(siblings(True), siblings(False), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_row_that_copies_all_it_begins_with_while_no_other_says_anything():
    sampler = LiveSampler(tiny.policy(), rows=2, context_tokens=64)
    first = said(sampler, (20, 21, 22), np.array([0.3]))
    sampler.begin(1, (20, 21, 22), np.array([0.3]))
    ((_, second),) = sampler.step(temperature=1.0, stop_ids=frozenset())
    assert second.token_ids == first.token_ids
    assert (sampler.counters.prefill_tokens, sampler.counters.decode_tokens) == (3, 2)


def test_without_a_card_to_capture_decoding_goes_on_in_one_line():
    policy = tiny.policy()
    sampler = LiveSampler(policy, rows=2, context_tokens=64, fixed=True)
    assert sampler._fixed is not None
    sampler._fixed._graphs = True  # as on a card, whose capture then fails
    plain = LiveSampler(policy, rows=2, context_tokens=64)
    draws = np.array([0.2, 0.9, 0.5])
    with pytest.warns(UserWarning, match="decoding goes on without CUDA graphs: [^\n]+$") as told:
        found = said(sampler, (20, 21, 22), draws)
    assert len(told) == 1
    assert found.token_ids == said(plain, (20, 21, 22), draws).token_ids


@dataclass(frozen=True, slots=True)
class Cramped(Policy):
    """Has memory for so many tokens at once; ``refused`` tells how many it was asked for beyond that."""

    most: int = 0
    refused: list[int] = field(default_factory=list)

    def hidden(self, **inputs):
        if (tokens := inputs["input_ids"].numel()) > self.most:
            self.refused.append(tokens)
            raise torch.OutOfMemoryError("out of memory")
        return Policy.hidden(self, **inputs)


def cramped(policy, most):
    return Cramped(policy.model, policy.causal, policy.tokenizer, policy.device, policy.name, most=most)


def test_the_same_tokens_however_the_work_is_done(monkeypatch):
    policy = tiny.policy()
    alone, _ = live(policy, WANTED, rows=1)
    whole, sampler = live(policy, WANTED, rows=64)
    ways = {"64 rows": whole}
    small = cramped(policy, 40)
    ways["memory for 40 tokens at once"], _ = live(small, WANTED, rows=64)
    assert small.refused
    small = cramped(policy, 15)  # all 16 places at once are refused
    ways["fixed shapes that do not fit"], _ = live(small, WANTED, rows=16, fixed=True)
    assert 16 in small.refused
    ways["workers"], _ = live(policy, WANTED, rows=16, workers=2)
    with monkeypatch.context() as patch:
        patch.setattr("bmrl.sampler.SHARED", 1)
        ways["beginnings shared"], shared = live(policy, WANTED, rows=16)
    with monkeypatch.context() as patch:
        patch.setattr("bmrl.sampler.FORWARD_TOKENS", 20)
        small = cramped(policy, 20)
        ways["20 tokens at once"], _ = live(small, WANTED, rows=16)
        assert not small.refused
    with monkeypatch.context() as patch:
        patch.setattr("bmrl.sampler.layout", lambda *given, together: kv_cache.layout(*given, together=True))
        ways["attention together"], padded = live(policy, WANTED, rows=16)
    for way, episodes in ways.items():
        assert [e.token_ids for e in episodes] == [e.token_ids for e in alone], way
    # Each way was another one. The second and the third opening differ from the first in the number of the place.
    first = CHAT.opening("You are at place 8.")
    number = first.index(CHAT.encode(" 8")[-1])
    assert sampler.counters.prefill_tokens - shared.counters.prefill_tokens == 2 * number
    assert sampler.counters.attention_computed == sampler.counters.attention_needed
    assert padded.counters.attention_computed > padded.counters.attention_needed


@pytest.mark.parametrize("vocabulary", [3, 256, 1000, 5000])
def test_a_token_is_where_the_cumulative_distribution_passes_the_draw(vocabulary):
    draw = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(400, vocabulary, generator=draw)
    logits[::2, ::3] = -torch.inf
    uniforms = np.random.default_rng(0).random(400)
    uniforms[:4] = 0.0, 0.0, 1 - 2**-53, 1 - 2**-53
    exact = torch.softmax(logits.double(), -1).cumsum(-1)
    picks, logprobs = sample(logits, uniforms, 1.0)
    for row, pick in enumerate(picks):
        below = exact[row, pick - 1].item() if pick else 0.0
        assert below - 1e-6 <= uniforms[row] <= exact[row, pick].item() + 1e-6
    assert all(logprob > -np.inf for logprob in logprobs), "a token that cannot be"
    torch.testing.assert_close(torch.tensor(logprobs), logits.log_softmax(-1)[torch.arange(400), picks])


@pytest.mark.parametrize("rows", [2, 3, 16])
def test_no_place_ever_waits(rows):
    # Each place plays one episode after the other, a token a step, those of the queue in its order: the steps are
    # those of the place that is busy longest.
    episodes, sampler = live(tiny.policy(), WANTED, rows=rows)
    busy = [0] * rows
    for episode in sorted(episodes, key=lambda e: -e.budget):
        heapq.heapreplace(busy, busy[0] + episode.action_tokens)
    assert sampler.counters.steps == max(busy)


class Watched(Pool):
    """Writes down how many tokens were sampled between a question to an environment and its answer."""

    def __init__(self, sampler, workers):
        super().__init__("corridor", {}, workers=0, timeout_s=5, slots=sampler.rows, make=tiny.make)
        self.workers, self.sampler = workers, sampler  # it plays here, but as if in workers
        self.since, self.waits = {}, []

    def step(self, slot, action):
        super().step(slot, action)
        self.since[slot] = self.sampler.counters.steps

    def collect(self, slots):
        self.waits += [self.sampler.counters.steps - self.since.pop(slot) for slot in slots if slot in self.since]
        return super().collect(slots)


@pytest.mark.parametrize(("workers", "waits"), [(0, {0}), (2, {0, 1})])
def test_others_decode_while_an_environment_steps(workers, waits):
    sampler = LiveSampler(tiny.policy(), rows=16, context_tokens=512)
    pool = Watched(sampler, workers)
    groups = [Play(1, g, e, TASKS[n], "train", 0, b) for g, (n, b, size) in enumerate(WANTED) for e in range(size)]
    rollout(groups, sampler=sampler, chat=LIVELY, pool=pool, turn_tokens=6, context_tokens=512, temperature=1.0)
    # Nobody waits without workers, in which nothing would go on meanwhile; with them an answer has time for one
    # token of the others, unless all wait.
    assert set(pool.waits) == waits
    if workers:
        assert pool.waits.count(1) > 3 * pool.waits.count(0)


def test_memory_that_does_not_hold_one_row_is_one_line():
    with pytest.raises(BmrlError, match=r"not enough memory to read .* lower rollout\.kv_cache_gb"):
        live(cramped(tiny.policy(), 5), WANTED, rows=4)


def test_neighbours_attend_together_and_what_that_pads_is_counted():
    # Rows at places 0 and 1 have one token each after 2 and 4, that at 3 has no neighbour, that at 4 brings two.
    segments = [
        kv_cache.Segment(0, 2, 1),
        kv_cache.Segment(1, 4, 1),
        kv_cache.Segment(3, 1, 1),
        kv_cache.Segment(4, 0, 2),
    ]
    plan = kv_cache.layout(segments, torch.device("cpu"), together=True)
    assert [(p.at, p.place, p.rows, p.count, p.width) for p in plan.pieces] == [
        (0, 0, 2, 1, 5),
        (2, 3, 1, 1, 2),
        (3, 4, 1, 2, 2),
    ]
    no = -torch.inf
    masks = [plan.mask(piece, 1, torch.float32, None) for piece in plan.pieces]
    assert masks[0].squeeze().tolist() == [[0, 0, 0, no, no], [0] * 5]
    assert masks[1] is None
    assert masks[2].squeeze().tolist() == [[0, no], [0, 0]]
    # Two heads on one key: the second one's queries come after the first one's. A window of one: only oneself.
    assert plan.mask(plan.pieces[2], 2, torch.float32, None).squeeze().tolist() == [[0, no], [0, 0]] * 2
    assert plan.mask(plan.pieces[0], 1, torch.float32, 1).squeeze().tolist() == [[no, no, 0, no, no], [no] * 4 + [0]]
    assert plan.mask(plan.pieces[2], 1, torch.float32, 2).squeeze().tolist() == [[0, no], [0, 0]]
    # 3 + 5 + 2 + 2 x 2 pairs, and 2 x 5 + 2 + 4 with the first row's padding.
    assert (plan.needed, plan.computed) == (14, 16)
    assert plan.positions.tolist() == [2, 4, 1, 0, 1] and plan.places.tolist() == [0, 1, 3, 4, 4]


def test_a_row_in_a_turn_too_long_or_beyond_the_last_is_refused():
    sampler = LiveSampler(tiny.policy(), rows=2, context_tokens=8)
    sampler.begin(0, [1, 2, 3, 4, 5], np.zeros(4))  # the fourth one sampled is not stored: 5 + 3 tokens
    with pytest.raises(ValueError, match="in a turn already"):
        sampler.begin(0, [1], np.zeros(1))
    with pytest.raises(ValueError, match="longer than the 8 tokens"):
        sampler.begin(1, [1, 2, 3, 4, 5], np.zeros(5))
    with pytest.raises(ValueError, match="row 2 of a sampler made for 2"):
        sampler.begin(2, [1], np.zeros(1))


def test_of_the_cache_only_what_is_written_takes_memory():
    before = psutil.Process().memory_info().rss
    # 2 x 2 layers x 64 rows x 2 heads x 100,000 tokens x 8 x 4 bytes: 1.6 GB if it were all there.
    sampler = LiveSampler(tiny.policy(), rows=64, context_tokens=100_000)
    said(sampler, CHAT.opening("You are at place 3."), np.linspace(0.1, 0.9, 4))
    assert psutil.Process().memory_info().rss - before < 100e6


def test_the_cache_takes_what_was_predicted():
    policy = tiny.policy()
    sampler = LiveSampler(policy, rows=3, context_tokens=32)
    said(sampler, CHAT.opening("You are at place 3."), np.array([0.5]))
    blocks = [*sampler._cache._keys, *sampler._cache._values]
    # Keys and values of two layers of two heads of width 8 in float32.
    assert cache_token_bytes(policy) == 2 * 2 * 2 * 8 * 4
    assert sum(block.nbytes for block in blocks) == 3 * 32 * cache_token_bytes(policy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sampling_leaves_the_model_as_it_was(dtype):
    policy = tiny.policy()
    for name, parameter in policy.model.named_parameters():
        if "lora_" not in name:  # adapters stay in float32
            parameter.data = parameter.data.to(dtype)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    live(policy, WANTED, rows=4)
    assert all(torch.equal(p, before[name]) for name, p in policy.model.named_parameters())


def test_seed_decides_and_episodes_of_a_group_differ():
    policy = tiny.policy()
    first, _ = live(policy, WANTED, rows=16)
    again, _ = live(policy, WANTED, rows=16)
    other, _ = live(policy, WANTED, rows=16, seed=1)
    assert [e.token_ids for e in first] == [e.token_ids for e in again]
    assert [e.token_ids for e in first] != [e.token_ids for e in other]
    assert first[0].token_ids != first[1].token_ids


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_sampler_and_update_speak_of_the_same_distribution(temperature):
    policy = tiny.policy()
    episodes, _ = live(policy, WANTED, rows=5, temperature=temperature)
    for episode in episodes:
        ids = torch.tensor([episode.token_ids])
        mask = torch.tensor([episode.action_mask])
        with torch.no_grad():
            ours, _ = token_logprobs(policy, ids, mask, temperature=temperature)
        sampled = torch.tensor([p for turn in episode.turns for p in turn.logprobs])
        assert (ours - sampled).abs().max() < 1e-5


def test_a_groups_opening_is_read_once_and_no_token_twice():
    policy = tiny.policy()
    episodes, sampler = live(policy, [(8, 3, 8)], rows=8)
    opening = len(episodes[0].turns[0].observation_ids)
    # Each later turn reads what it adds, and the last sampled token before it, which was not yet in the cache.
    added = sum(len(t.observation_ids) + 1 for e in episodes for t in e.turns[1:])
    assert sampler.counters.prefill_tokens == opening + added
    assert sampler.counters.decode_tokens == sum(e.action_tokens for e in episodes)


def test_changed_adapter_changes_what_the_sampler_says_module_by_module():
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    prompt = CHAT.opening("You are at place 3.")

    def logprob(policy) -> float:
        return said(LiveSampler(policy, rows=1, context_tokens=512), prompt, np.array([0.5])).logprobs[0]

    for name in names:
        policy = tiny.policy()
        before = logprob(policy)
        with torch.no_grad():
            touched = [p for n, p in policy.trainable.items() if f".{name}." in n]
            for parameter in touched:
                parameter.add_(0.3)
        assert touched and logprob(policy) != before, name


def said(sampler, prompt, draws):
    """The action of row 0."""
    sampler.begin(0, prompt, draws)
    while not (completed := sampler.step(temperature=1.0, stop_ids=CHAT.stop_ids)):
        pass
    return completed[0][1]


def test_same_prompt_after_an_update_equals_a_cold_sampler():
    policy = tiny.policy()
    warm = LiveSampler(policy, rows=1, context_tokens=512)
    prompt, draws = CHAT.opening("You are at place 3."), np.linspace(0.1, 0.9, 4)
    before = said(warm, prompt, draws)
    warm.drop(0)
    tiny.shake(policy, seed=9)
    again = said(warm, prompt, draws)
    assert again == said(LiveSampler(policy, rows=1, context_tokens=512), prompt, draws)
    assert again != before
