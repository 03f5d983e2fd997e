"""Players for a diagnosis: scripted policies that go on from given beginnings on a road."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scripted import Guide, Road, Scripted

from bmrl.diagnose import Settings, World, diagnose
from bmrl.seeds import python_stream
from bmrl.types import EndReason, Episode, Play, Turn


@dataclass
class Walker:
    """Plays a scripted policy; it can say its probabilities exactly, or has to be sampled."""

    policy: Scripted
    exact: bool = False
    road: Road = field(default_factory=Road)
    turns: int = 0  # its own, to see that nothing is played in vain

    def play(self, plays: Sequence[Play], *, greedy: bool = False) -> list[Episode]:
        return [self._play(play, greedy) for play in plays]

    def _play(self, play: Play, greedy: bool) -> Episode:
        rng = python_stream(play.seed, self.policy.name, play.step, play.group, play.episode)
        seen, turns = self.road.reset(play.task), []
        while len(turns) < play.budget:
            if len(turns) < len(play.prefix):
                action = play.prefix[len(turns)]
            else:
                self.turns += 1
                chances = self.policy.probabilities(seen)
                action = max(chances, key=chances.get) if greedy else self.policy.act(seen, rng.random())
            valid = action in self.road.admissible
            step = self.road.step(action)
            turns.append(Turn(seen, (), action, action, (), (), valid, step.reward))
            seen = step.observation
            if step.won:
                return play.ended(EndReason.SUCCESS, tuple(turns), seen)
        return play.ended(EndReason.BUDGET, tuple(turns), seen)

    def mass(self, episodes: Sequence[Episode], commands: Sequence[Sequence[str]]) -> list[list[float]] | None:
        if not self.exact:
            return None
        seen = [self.policy.probabilities(episode.turns[-1].observation) for episode in episodes]
        return [[chances.get(c, 0.0) for c in wanted] for chances, wanted in zip(seen, commands, strict=True)]


def world(*, games: int = 60, seed: int = 0, **changes) -> World:
    road = Road(games, seed=seed)
    tasks = road.tasks("valid_seen")
    found = {"judge": None, "expert": lambda opening, rng: Guide(opening)} | changes
    return World("road", road, "valid_seen", road.split_hash("valid_seen"), tasks, **found)


def diagnosed(a: Scripted, b: Scripted, *, seed: int = 0, games: int = 60, exact: bool = False, **settings):
    """The result of a diagnosis on a sample of roads."""
    chosen = {"budgets": (2, 4, 8, 16), "seeds": (seed,), "states": 30, "samples": 4} | settings
    players = [Walker(policy, exact) for policy in (a, b)]
    return diagnose(*players, world(games=games, seed=seed), Settings(**chosen)).result
