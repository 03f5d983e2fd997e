"""The batched, budget-truncating rollout: schedule, generate, step, cut off, collect.

All episodes share one sampler. A round is one turn of every live episode: each adds its tokens and decodes one
action, and an episode whose action is complete steps its environment while others still decode. Who plays
together follows from the plays and their results alone, never from the clock.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bmrl.budgets import announcement
from bmrl.chat import Chat
from bmrl.envs.pool import Failed, Pool, Reply
from bmrl.seeds import stream
from bmrl.types import Completion, EndReason, Episode, Play, Turn

T = TypeVar("T")
# Characters. To cut megabytes into tokens takes minutes and gigabytes; that they do not fit is seen without.
LONGEST_TOKEN = 256


class Sampler(Protocol):
    """Whatever generates. See ``sampler.LiveSampler`` for what the calls mean."""

    @property
    def rows(self) -> int: ...

    def generate(
        self,
        added: dict[int, Sequence[int]],
        draws: dict[int, NDArray[np.float64]],
        *,
        temperature: float,
        stop_ids: frozenset[int],
    ) -> Iterator[tuple[int, Completion]]: ...

    def drop(self, row: int) -> None: ...


@dataclass(slots=True)
class _Live:
    """An episode in flight; ``index`` is its place among the plays."""

    index: int
    play: Play
    draws: np.random.Generator
    observation: str
    admissible: frozenset[str] | None
    tokens: int = 0
    stopped: bool = True
    turns: list[Turn] = field(default_factory=list)


@dataclass(slots=True)
class Waited:
    """Seconds the rollout spent on environments: waiting for workers, or playing them itself without workers."""

    env_s: float = 0.0


def rollout(
    plays: Sequence[Play],
    *,
    sampler: Sampler,
    chat: Chat,
    pool: Pool,
    turn_tokens: int,
    context_tokens: int,
    temperature: float,
    announce: str = "none",
    purpose: str = "rollout",
    waited: Waited | None = None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    poll: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Plays all episodes; each ends with exactly one end reason.

    Longest budgets start first, so that the tail is short; a place that becomes free is refilled before the
    next round. An episode whose environment failed is played once more from its beginning, with the same
    random stream; if it fails again it ends ``timeout`` or ``env_error``.

    Args:
        plays: what to play; (step, group, episode) keys the random stream, so it must be unique here.
        turn_tokens: most tokens of one action.
        context_tokens: most tokens of an episode; a turn that might not fit ends it ``context``.
        temperature: of sampling; 0 is greedy.
        announce: what the agent is told of its budget: ``none``, ``total`` or ``remaining``.
        purpose: keeps the streams of training and evaluation apart.
        waited: collects the time spent waiting for environments.
        on_episode: told each episode as it ends (progress).
        poll: called once a round; may raise to stop the rollout.

    Returns:
        Episodes in the order of ``plays``.
    """
    clock = waited or Waited()
    queue = deque(sorted(range(len(plays)), key=lambda i: (-plays[i].budget, i)))
    free = deque(range(sampler.rows))
    live: dict[int, _Live] = {}
    retried: set[int] = set()
    episodes: dict[int, Episode] = {}

    def end(row: int, reason: EndReason, error: str = "") -> None:
        state = live.pop(row)
        if state.turns:
            sampler.drop(row)
        free.append(row)
        if error and state.index not in retried:
            retried.add(state.index)
            queue.appendleft(state.index)
            return
        episode = state.play.ended(reason, tuple(state.turns), state.observation, error)
        episodes[state.index] = episode
        on_episode(episode)

    def timed(call: Callable[..., T], *args: object) -> T:
        began = time.perf_counter()
        result = call(*args)
        clock.env_s += time.perf_counter() - began
        return result

    while queue or live:
        poll()
        new = [free.popleft() for _ in range(min(len(free), len(queue)))]
        for row in new:
            index = queue.popleft()
            play = plays[index]
            draws = stream(play.seed, purpose, play.step, play.group, play.episode)
            live[row] = _Live(index, play, draws, "", None)
            timed(pool.reset, row, play.task)
        for answer in timed(pool.collect, new):
            if isinstance(answer, Failed):
                end(answer.slot, answer.end_reason, answer.error)
            else:
                _observe(live[answer.slot], answer)

        added: dict[int, Sequence[int]] = {}
        shown: dict[int, str] = {}
        for row, state in list(live.items()):
            told = announcement(announce, state.play.budget, len(state.turns))
            shown[row] = f"{state.observation}\n{told}" if told else state.observation
            if len(shown[row]) > LONGEST_TOKEN * context_tokens:
                end(row, EndReason.CONTEXT)
                continue
            ids = chat.following(shown[row], stopped=state.stopped) if state.turns else chat.opening(shown[row])
            if state.tokens + len(ids) + turn_tokens > context_tokens:
                end(row, EndReason.CONTEXT)
            else:
                added[row] = ids
        if not added:
            continue

        uniforms = {row: live[row].draws.random(turn_tokens) for row in added}
        for row, completion in sampler.generate(added, uniforms, temperature=temperature, stop_ids=chat.stop_ids):
            turn = _act(live[row], shown[row], tuple(added[row]), completion, chat)
            timed(pool.step, row, turn.action)
        for answer in timed(pool.collect, sorted(added)):
            if isinstance(answer, Failed):
                end(answer.slot, answer.end_reason, answer.error)
                continue
            state = live[answer.slot]
            _observe(state, answer)
            if answer.step.terminated:
                end(answer.slot, EndReason.SUCCESS if answer.step.won else EndReason.FAILURE)
            elif len(state.turns) == state.play.budget:
                end(answer.slot, EndReason.BUDGET)
    return [episodes[i] for i in range(len(plays))]


def _observe(state: _Live, answer: Reply) -> None:
    """Takes in an answer; the turn that caused it learns its reward."""
    state.observation = answer.step.observation
    state.admissible = None if answer.step.admissible is None else frozenset(answer.step.admissible)
    if state.turns:
        last = state.turns[-1]
        state.turns[-1] = Turn(
            observation=last.observation,
            observation_ids=last.observation_ids,
            text=last.text,
            action=last.action,
            action_ids=last.action_ids,
            logprobs=last.logprobs,
            valid=last.valid,
            reward=float(answer.step.reward),
        )


def _act(state: _Live, shown: str, observation_ids: tuple[int, ...], completion: Completion, chat: Chat) -> Turn:
    """Books a completed action; whether it is valid is judged by what was admissible before it."""
    text = chat.text(completion.token_ids)
    action = chat.parse_action(text, stopped=completion.stopped)
    valid = bool(action) if state.admissible is None else action in state.admissible
    turn = Turn(shown, observation_ids, text, action, completion.token_ids, completion.logprobs, valid, 0.0)
    state.turns.append(turn)
    state.stopped = completion.stopped
    state.tokens += len(observation_ids) + len(completion.token_ids)
    return turn
