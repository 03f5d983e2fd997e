"""From episodes to a gradient: who is trained on, and that memory knobs never change it."""

import weakref
from dataclasses import replace

import pytest
import tiny
import torch

from bmrl.batch import Row, collate, make_rows, micro_batches
from bmrl.credit import Credit, Prices
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.policy import add_reference, reference, token_logprobs, with_adapter
from bmrl.recipe import load as load_recipe
from bmrl.run.train import update_settings
from bmrl.trainer import Player, Update, rollout_metrics, train_step, update_policy
from bmrl.types import EndReason, Episode, Play, Turn

CHAT = tiny.chat()
STOP = next(iter(CHAT.stop_ids))
UPDATE = Update(
    temperature=0.7,
    micro_batch_tokens=10_000,
    max_grad_norm=1e9,
    max_logprob_gap=1e-5,
)


def turn(words: str = "go", *, valid: bool = True) -> Turn:
    ids = CHAT.answer(words)
    return Turn(
        "You are at place 1.", CHAT.opening("You are at place 1."), words, words, ids, (-1.0,) * len(ids), valid, 0.0
    )


def episode(reason=EndReason.BUDGET, *turns: Turn, number: int = 0) -> Episode:
    return Episode(1, 0, number, "task", "train", 0, 8, reason, turns or (turn(),))


def rows_of(groups, truncation=None, aggregation="constant"):
    rewards = [[Prices().of_turns(e) for e in group] for group in groups]
    return make_rows(
        groups,
        rewards,
        credit=Credit("grpo"),
        truncation=truncation or {},
        aggregation=aggregation,
        constant=10,
    )


def sampled_rows(policy, temperature=0.7):
    """Rows with the sampler's true log-probabilities, of very different lengths."""
    groups = [
        [episode(EndReason.SUCCESS, *[turn("go")] * n), episode(EndReason.BUDGET, *[turn("go left wait")] * (n + 2))]
        for n in (1, 4, 2)
    ]
    rows = []
    for row in rows_of(groups):
        ids, mask = torch.tensor([row.token_ids]), torch.tensor([row.action_mask])
        with torch.no_grad():
            logprobs, _ = token_logprobs(policy, ids, mask, temperature=temperature)
        rows.append(replace(row, logprobs=tuple(logprobs.tolist())))
    return rows


def gradient(policy, rows, update=UPDATE):
    """The gradient that one update computes; the weights do not move."""
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=0.0)
    metrics = update_policy(policy, optimizer, rows, update, poll=lambda: None)
    return torch.cat([p.grad.flatten().clone() for p in policy.trainable.values()]), metrics


def test_shaped_reward():
    # solved: 1; two of three actions refused: 2 * -0.1; three turns: 3 * -0.01
    e = episode(EndReason.SUCCESS, turn(valid=False), turn(valid=False), turn())
    prices = Prices(success=1.0, invalid_action=-0.1, turn=-0.01)
    assert prices.of_turns(e) == pytest.approx([-0.11, -0.11, 0.99])


def test_advantage_and_weight_of_rows():
    # One group: rewards 1, 0. Another without signal gives no rows but counts: 4 scored episodes, constant 10.
    groups = [[episode(EndReason.SUCCESS), episode()], [episode(), episode()]]
    rows = rows_of(groups)
    assert [r.advantages[0] for r in rows] == [1.0, -1.0]
    assert [r.weight for r in rows] == pytest.approx([1 / 40, 1 / 40])


def test_group_of_equal_rewards_gives_no_rows():
    assert rows_of([[episode()] * 4, [episode(EndReason.SUCCESS)] * 4]) == []


@pytest.mark.parametrize("reason", [EndReason.TIMEOUT, EndReason.ENV_ERROR])
def test_errored_episodes_are_neither_scored_nor_in_the_baseline(reason):
    # Baseline over 1, 0 only: with the error scored 0 it would be over 1, 0, 0 and the advantages sqrt(2), ...
    rows = rows_of([[episode(EndReason.SUCCESS), episode(), episode(reason)]])
    assert [r.advantages[0] for r in rows] == [1.0, -1.0]


def test_truncation_mask_and_drop():
    group = [episode(EndReason.SUCCESS), episode(EndReason.BUDGET), episode(EndReason.CONTEXT)]
    # mask: baseline over 1, 0, 0: mean 1/3, std sqrt(2)/3: sqrt(2) and -1/sqrt(2); the third gives no gradient
    rows = rows_of([group], {EndReason.CONTEXT: "mask"})
    assert [r.advantages[0] for r in rows] == pytest.approx([2**0.5, -(2**-0.5)])
    rows = rows_of([group], {EndReason.CONTEXT: "drop"})
    assert [r.advantages[0] for r in rows] == [1.0, -1.0]


def test_micro_batches_hold_every_row_once_within_the_bound():
    policy = tiny.policy()
    rows = sampled_rows(policy)
    longest = max(len(r.token_ids) for r in rows)
    for tokens in (1, longest, 2 * longest, 10_000):
        for packed in (True, False):
            pieces = micro_batches(rows, tokens=tokens, packed=packed)
            assert sorted(map(id, rows)) == sorted(id(r) for piece in pieces for r in piece)
            for piece in pieces:
                lengths = [len(r.token_ids) for r in piece]
                assert len(piece) == 1 or (sum(lengths) if packed else len(piece) * max(lengths)) <= tokens


@pytest.mark.parametrize(
    ("packed", "expected"),
    [
        # End to end 9 and 1 fill ten tokens, 6 and 4 as well, 5 and 2 stay.
        (True, [[9, 1], [6, 4], [5, 2]]),
        # Padded, a second row beside 9 or 6 would be 18 or 12; 5 and 4 are 10; 2 and 1 are 4.
        (False, [[9], [6], [5, 4], [2, 1]]),
    ],
)
def test_micro_batches_are_filled_by_what_the_model_computes_on(packed, expected):
    rows = [Row((1,) * n, (False,) * n, (), (), 0.0) for n in (1, 4, 9, 2, 6, 5)]
    pieces = micro_batches(rows, tokens=10, packed=packed)
    assert [[len(row.token_ids) for row in piece] for piece in pieces] == expected


def test_gradient_is_the_same_for_micro_batches_of_1_2_4():
    policy = tiny.policy()
    rows = sampled_rows(policy)
    longest = max(len(r.token_ids) for r in rows)
    whole, _ = gradient(policy, rows)
    for count in (1, 2, 4):
        part, _ = gradient(policy, rows, replace(UPDATE, micro_batch_tokens=count * longest))
        assert (part - whole).norm() < 1e-5 * whole.norm()
    assert whole.norm() > 0


def test_gradient_is_the_same_with_checkpointing():
    policy = tiny.policy()
    rows = sampled_rows(policy)
    plain, _ = gradient(policy, rows)
    policy.causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    kept, _ = gradient(policy, rows)
    assert (plain - kept).norm() < 1e-5 * plain.norm() and plain.norm() > 0


def test_ratio_is_exactly_one_before_the_first_update_and_the_gap_to_the_sampler_small():
    policy = tiny.policy()
    for temperature in (0.7, 1.3):
        _, metrics = gradient(policy, sampled_rows(policy, temperature), replace(UPDATE, temperature=temperature))
        assert metrics["ratio_mean"] == 1.0
        assert metrics["clip_share"] == 0.0
        assert metrics["logprob_gap"] < 1e-5


def test_a_sampler_that_is_not_the_policy_is_skipped_and_nothing_moves():
    policy = tiny.policy()
    rows = sampled_rows(policy)
    tiny.shake(policy, seed=5)  # the policy moved on; the rows are the old one's
    before = [p.detach().clone() for p in policy.trainable.values()]
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=1.0)
    metrics = update_policy(policy, optimizer, rows, UPDATE, poll=lambda: None)
    assert (metrics["skipped_gap"], metrics["skipped_nonfinite"]) == (1.0, 0.0)
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(before, policy.trainable.values(), strict=True))


NAN = float("nan")


@pytest.mark.parametrize(
    "wrong", [{"advantages": NAN}, {"weight": NAN}, {"advantages": float("inf")}, {"logprobs": NAN}]
)
@pytest.mark.parametrize("tokens", [1, 10_000])
def test_a_step_that_is_not_finite_is_skipped_and_neither_weights_nor_optimizer_move(wrong, tokens):
    policy = tiny.policy()
    *rows, shortest = sorted(sampled_rows(policy), key=lambda row: -len(row.token_ids))
    wrong = {key: (value,) * len(shortest.logprobs) if key != "weight" else value for key, value in wrong.items()}
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=1.0)
    update = replace(UPDATE, micro_batch_tokens=tokens, epochs=2)
    update_policy(policy, optimizer, [*rows, shortest], replace(update, epochs=1), poll=lambda: None)
    rows, shortest = sampled_rows(policy)[:-1], shortest  # of the policy as it is now, but for the last micro-batch
    before = [p.detach().clone() for p in policy.trainable.values()]
    state = [{k: v.clone() for k, v in slots.items()} for slots in optimizer.state.values()]
    update = replace(update, max_logprob_gap=1e9)
    metrics = update_policy(policy, optimizer, [*rows, replace(shortest, **wrong)], update, poll=lambda: None)
    assert (metrics["skipped_nonfinite"], metrics["skipped_gap"]) == (1.0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.trainable.values(), strict=True))
    assert all(p.grad is None for p in policy.trainable.values())
    after = list(optimizer.state.values())
    assert all(torch.equal(old[k], new[k]) for old, new in zip(state, after, strict=True) for k in old)


def test_a_later_epoch_that_is_not_finite_ends_the_update_after_those_before_it():
    policy, rows, epochs = tiny.policy(), None, []
    rows = sampled_rows(policy)
    alone = tiny.policy()
    update_policy(alone, torch.optim.SGD(alone.trainable.values(), lr=0.1), rows, UPDATE, poll=lambda: None)

    def broken(module, args, output):
        if module.training:
            epochs.append(1)
        return output * NAN if len(epochs) > 1 else output

    policy.causal.get_decoder().norm.register_forward_hook(broken)
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=0.1)
    metrics = update_policy(policy, optimizer, rows, replace(UPDATE, epochs=3), poll=lambda: None)
    assert metrics["skipped_nonfinite"] == 1.0 and len(epochs) == 2  # the third was not tried
    pairs = zip(alone.trainable.values(), policy.trainable.values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_second_epoch_moves_the_ratio_off_one():
    policy = tiny.policy()
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=0.1)
    metrics = update_policy(policy, optimizer, sampled_rows(policy), replace(UPDATE, epochs=2), poll=lambda: None)
    assert metrics["ratio_mean"] != 1.0


def test_gradient_of_the_logits_is_zero_where_nothing_was_sampled():
    policy = tiny.policy()
    rows = sampled_rows(policy)
    batch = collate(rows, policy.device, packed=True)
    held = {}

    def keep(module, args, output):
        output.retain_grad()
        held["states"] = output

    handle = policy.causal.get_decoder().norm.register_forward_hook(keep)
    logprobs, _ = token_logprobs(policy, batch.ids, batch.mask, lengths=batch.lengths)
    handle.remove()
    (batch.weights * batch.advantages * logprobs).sum().backward()
    used = held["states"].grad.abs().sum(-1) > 0  # (rows, time): the state that predicts the next token
    assert torch.equal(used[:, :-1], batch.mask[:, 1:])
    assert not used[:, -1].any()


def test_update_raises_what_did_well_and_lowers_the_rest():
    policy = tiny.policy()
    rows = sampled_rows(policy)
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=0.05)
    update_policy(policy, optimizer, rows, UPDATE, poll=lambda: None)
    for row in rows:
        ids, mask = torch.tensor([row.token_ids]), torch.tensor([row.action_mask])
        with torch.no_grad():
            after, _ = token_logprobs(policy, ids, mask, temperature=0.7)
        change = float(after.sum()) - sum(row.logprobs)
        assert change * row.advantages[0] > 0


def test_kl_is_zero_when_training_starts_from_an_adapter(tmp_path):
    started = tiny.policy()
    started.model.save_pretrained(tmp_path)
    policy = with_adapter(tiny.policy(adapter=False), tmp_path, rank=4)
    add_reference(policy, tmp_path)
    assert len(policy.trainable) == len(started.trainable)
    rows = sampled_rows(policy)
    _, metrics = gradient(policy, rows, replace(UPDATE, kl_coef=0.1))
    assert metrics["kl"] == 0.0
    # Against the bare model, the wrong reference, it would not be.
    ids, mask = torch.tensor([rows[0].token_ids]), torch.tensor([rows[0].action_mask])
    with torch.no_grad():
        with policy.model.disable_adapter():
            bare, _ = token_logprobs(policy, ids, mask)
        with reference(policy):
            anchor, _ = token_logprobs(policy, ids, mask)
    assert (bare - anchor).abs().max() > 1e-3


def test_kl_grows_once_the_policy_has_moved_and_its_reference_stays(tmp_path):
    tiny.policy().model.save_pretrained(tmp_path)
    policy = with_adapter(tiny.policy(adapter=False), tmp_path)
    add_reference(policy, tmp_path)
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters() if ".reference." in n}
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=0.01)
    kls = [
        update_policy(policy, optimizer, sampled_rows(policy), replace(UPDATE, kl_coef=0.1), poll=lambda: None)["kl"]
        for _ in range(3)
    ]
    assert kls[0] == 0.0 < kls[1] < kls[2]
    after = {n: p for n, p in policy.model.named_parameters() if ".reference." in n}
    assert before and all(torch.equal(before[n], after[n]) for n in before)


def test_rollout_metrics():
    # Two episodes of budget 8, one of 4; turns 1, 3, 2; one invalid action of six.
    a = episode(EndReason.SUCCESS, turn())
    b = episode(EndReason.BUDGET, turn(), turn(valid=False), turn())
    c = replace(episode(EndReason.CONTEXT, turn(), turn()), budget=4)
    metrics = rollout_metrics([a, b, c])
    assert metrics["success"] == pytest.approx(1 / 3)
    assert (metrics["success_at_8"], metrics["success_at_4"]) == (0.5, 0.0)
    assert metrics["turns_mean"] == 2.0
    assert metrics["invalid_share"] == pytest.approx(1 / 6)
    assert metrics["end_success"] == metrics["end_budget"] == metrics["end_context"] == pytest.approx(1 / 3)
    assert metrics["step_turns"] == 6
    cut = {key: value for key, value in metrics.items() if "_at_" in key and key.startswith("end_")}
    assert {key: value for key, value in cut.items() if value} == {"end_budget_at_8": 0.5, "end_context_at_4": 1.0}
    assert len(cut) == 6


def test_the_cache_of_the_rollout_is_gone_when_the_update_begins(monkeypatch):
    made, found = [], []

    class Watched(Player):
        def sampler(self):
            sampler = Player.sampler(self)
            made.append(weakref.ref(sampler))
            return sampler

    monkeypatch.setattr("bmrl.trainer.update_policy", lambda *_, **__: found.append(made[0]()) or {})
    group = [Play(1, 0, n, Task("task-8", "corridor", data=8), "train", 0, 2 + 2 * n) for n in range(4)]
    with Pool("corridor", {}, workers=0, timeout_s=5, slots=4, make=tiny.make) as pool:
        player = Watched(tiny.policy(), CHAT, pool, 4, 3, 512, "none")
        train_step(
            [group],
            player,
            None,
            replace(UPDATE, prices=Prices(turn=-0.1)),  # unequal numbers of turns: the group has a signal
            max_error_share=0.0,
            on_episode=lambda _: None,
            poll=lambda: None,
        )
    assert found == [None]


def test_settings_left_out_are_those_of_a_recipe_that_leaves_them_out(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("name: r\nbudget: {train: {kind: fixed, turns: 4}}\ntrain: {steps: 1}\n")
    assert replace(update_settings(load_recipe(path)), truncation={}) == Update()
