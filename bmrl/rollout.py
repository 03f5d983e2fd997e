"""The batched, budget-truncating rollout: schedule, generate, step, cut off, collect.

All episodes share one sampler, which gives one token at a time to each that is in a turn. An episode whose action
is complete steps its environment and goes on with its next turn while others still decode; one that ends leaves its
place to the next in the queue. Who is in a batch follows from the plays and their results alone, never from the
clock: an environment's answer is taken in a fixed number of tokens after it was asked for.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bmrl.budgets import announcement
from bmrl.envs.pool import Failed, Pool, Reply
from bmrl.seeds import stream
from bmrl.types import Completion, EndReason, Episode, Play, Turn

T = TypeVar("T")
# Characters. To cut megabytes into tokens takes minutes and gigabytes; that they do not fit is seen without.
LONGEST_TOKEN = 256
# Tokens that the others decode between a question to an environment in a worker process and its answer.
LAG = 1


class Sampler(Protocol):
    """Whatever generates. See ``sampler.LiveSampler`` for what the calls mean."""

    @property
    def rows(self) -> int: ...

    def begin(self, row: int, added: Sequence[int], draws: NDArray[np.float64]) -> None: ...

    def step(self, *, temperature: float, stop_ids: frozenset[int]) -> Sequence[tuple[int, Completion | None]]:
        """What was completed; None where it turned out that the turn does not fit into the context."""
        ...

    def drop(self, row: int) -> None: ...


class Speech(Protocol):
    """Text <-> ids of whatever generates. See ``chat.Chat`` for what the calls mean."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def opening(self, observation: str) -> tuple[int, ...]: ...

    def following(self, observation: str, *, stopped: bool) -> tuple[int, ...]: ...

    def answer(self, action: str) -> tuple[int, ...]: ...

    def text(self, token_ids: tuple[int, ...]) -> str: ...

    def parse_action(self, text: str, *, stopped: bool) -> str: ...


@dataclass(slots=True)
class _Live:
    """An episode in flight.

    Attributes:
        index: its place among the plays.
        shown, added: what the turn under way showed, as text and as ids.
        acted: tokens sampled so far.
        unread: ids of turns decided beforehand, which the sampler has not been given yet.
    """

    index: int
    play: Play
    draws: np.random.Generator
    observation: str = ""
    admissible: frozenset[str] | None = None
    distance: int | None = None
    shown: str = ""
    added: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()
    begun: bool = False
    tokens: int = 0
    acted: int = 0
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
    chat: Speech,
    pool: Pool,
    turn_tokens: int,
    context_tokens: int,
    temperature: float,
    announce: str = "none",
    wording: str | None = None,
    action_tokens: int | None = None,
    purpose: str = "rollout",
    waited: Waited | None = None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    poll: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Plays all episodes; each ends with exactly one end reason.

    Longest budgets start first, so that the tail is short; a place that becomes free is refilled before the
    next token. An episode whose environment failed is played once more from its beginning, with the same
    random stream; if it fails again it ends ``timeout`` or ``env_error``.

    Args:
        plays: what to play; (step, group, episode) keys the random stream, so it must be unique here.
        turn_tokens: most tokens of one action.
        context_tokens: most tokens of an episode; a turn that might not fit ends it ``context``.
        temperature: of sampling; 0 is greedy.
        announce: what the agent is told of its budget: ``none``, ``total`` or ``remaining``.
        wording: in which words, see ``announcement``.
        action_tokens: most tokens of an episode's actions, all together; without bound when None. The last turn is cut
            off there, sent as it is, and the episode ends ``budget``.
        purpose: keeps the streams of training and evaluation apart.
        waited: collects the time spent waiting for environments.
        on_episode: told each episode as it ends (progress).
        poll: called once a token; may raise to stop the rollout.

    Returns:
        Episodes in the order of ``plays``.
    """
    clock = waited or Waited()
    queue = deque(sorted(range(len(plays)), key=lambda i: (-plays[i].budget, i)))
    free = deque(range(sampler.rows))
    live: dict[int, _Live] = {}
    asked: deque[tuple[int, int]] = deque()  # rows that wait for their environment, and since which token
    deciding: set[int] = set()  # rows in a turn
    retried: set[int] = set()
    episodes: dict[int, Episode] = {}
    lag = LAG if pool.workers else 0
    tokens = 0

    def end(row: int, reason: EndReason, error: str = "") -> None:
        state = live.pop(row)
        if state.begun:
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
        while free and queue:
            row, index = free.popleft(), queue.popleft()
            play = plays[index]
            live[row] = _Live(index, play, stream(play.seed, purpose, play.step, play.group, play.episode))
            timed(pool.reset, row, play.task)
            asked.append((row, tokens))

        due = []
        while asked and (tokens - asked[0][1] >= lag or not deciding):
            due.append(asked.popleft()[0])
        for answer in timed(pool.collect, due):
            row, state = answer.slot, live[answer.slot]
            reason = _taken(state, answer, action_tokens)
            if reason is None:
                told = announcement(announce, state.play.budget, len(state.turns), wording)
                state.shown = f"{state.observation}\n{told}" if told else state.observation
                if len(state.shown) > LONGEST_TOKEN * context_tokens:
                    reason = EndReason.CONTEXT
            room = turn_tokens if action_tokens is None else min(turn_tokens, action_tokens - state.acted)
            if reason is None:
                state.added = tuple(
                    chat.following(state.shown, stopped=state.stopped) if state.turns else chat.opening(state.shown)
                )
                if state.tokens + len(state.added) + room > context_tokens:
                    reason = EndReason.CONTEXT
            if reason is not None:
                end(row, reason, answer.error if isinstance(answer, Failed) else "")
            elif len(state.turns) < len(state.play.prefix):
                timed(pool.step, row, _decided(state, chat).action)
                asked.append((row, tokens))
            else:
                sampler.begin(row, (*state.unread, *state.added), state.draws.random(turn_tokens)[:room])
                state.begun, state.unread = True, ()
                deciding.add(row)
        due_now = bool(asked) and tokens - asked[0][1] >= lag  # in a prefix, with environments that answer at once
        if (free and queue) or due_now or not deciding:
            continue  # before the next token, whoever can play does

        completed = sampler.step(temperature=temperature, stop_ids=chat.stop_ids)
        tokens += 1
        for row, completion in completed:
            deciding.remove(row)
            if completion is None:
                end(row, EndReason.CONTEXT)
                continue
            turn = _act(live[row], completion, chat)
            timed(pool.step, row, turn.action)
            asked.append((row, tokens))
    return [episodes[i] for i in range(len(plays))]


def _taken(state: _Live, answer: Reply | Failed, action_tokens: int | None) -> EndReason | None:
    """Takes in an answer of its environment; the reason if the episode is over with it."""
    if isinstance(answer, Failed):
        return answer.end_reason
    _observe(state, answer)
    if answer.step.terminated and state.turns:
        return EndReason.SUCCESS if answer.step.won else EndReason.FAILURE
    spent = len(state.turns) == state.play.budget or (action_tokens is not None and state.acted >= action_tokens)
    return EndReason.BUDGET if spent else None


def _observe(state: _Live, answer: Reply) -> None:
    """Takes in an answer; the turn that caused it learns its reward."""
    state.observation = answer.step.observation
    state.admissible = None if answer.step.admissible is None else frozenset(answer.step.admissible)
    state.distance = answer.step.distance
    if state.turns:
        state.turns[-1] = replace(state.turns[-1], reward=float(answer.step.reward))


def _decided(state: _Live, chat: Speech) -> Turn:
    """Books the next command of the prefix as a turn of which nothing was sampled."""
    action = state.play.prefix[len(state.turns)]
    valid = bool(action) if state.admissible is None else action in state.admissible
    ids = (*state.added, *chat.answer(action))
    turn = Turn(state.shown, ids, action, action, (), (), valid, 0.0, state.distance)
    state.turns.append(turn)
    state.unread += ids
    state.stopped = True
    state.tokens += len(ids)
    return turn


def _act(state: _Live, completion: Completion, chat: Speech) -> Turn:
    """Books a completed action; whether it is valid is judged by what was admissible before it."""
    text = chat.text(completion.token_ids)
    action = chat.parse_action(text, stopped=completion.stopped)
    valid = bool(action) if state.admissible is None else action in state.admissible
    turn = Turn(
        state.shown, state.added, text, action, completion.token_ids, completion.logprobs, valid, 0.0, state.distance
    )
    state.turns.append(turn)
    state.stopped = completion.stopped
    state.tokens += len(state.added) + len(completion.token_ids)
    state.acted += len(completion.token_ids)
    return turn
