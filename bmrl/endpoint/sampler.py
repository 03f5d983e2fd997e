"""What a rollout speaks to in the place of a policy.

The rollout is the one that local policies are played with. Its tokens are characters here: which tokens the server
makes of them is the server's own affair, and what it says of their number counts for the cost alone.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from bmrl.chat import opening_text, parse_action
from bmrl.endpoint.answers import Answer, Fault, no_answer, read
from bmrl.endpoint.settings import Cost, Endpoint
from bmrl.errors import BmrlError
from bmrl.types import Completion

if TYPE_CHECKING:
    import httpx

LONGEST_WAIT_S = 60.0  # between two tries, unless the server asks for more
TICK_S = 0.25  # how often the rollout is asked whether it was interrupted
TEMPLATE_TOKENS = 64  # what a chat template may add around a message; a guess on the safe side


@dataclass(frozen=True, slots=True)
class Texts:
    """How a rollout speaks to a server: the code points of texts stand for tokens.

    Attributes:
        rules: what the agent is told before its first observation.
    """

    rules: str
    stop_ids: frozenset[int] = frozenset()

    def opening(self, observation: str) -> tuple[int, ...]:
        return _ids(opening_text(self.rules, observation))

    def following(self, observation: str, *, stopped: bool) -> tuple[int, ...]:
        return _ids(observation)

    def answer(self, action: str) -> tuple[int, ...]:
        raise ValueError("a served model is asked for its own turns only: plays with a prefix cannot be served")

    def text(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def parse_action(self, text: str, *, stopped: bool) -> str:
        return parse_action(text, stopped=stopped)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


class EndpointSampler:
    """Asks the server for the actions of many episodes at once; a row is a conversation.

    After a fault that cannot be helped, or when what may be spent is spent, no request is sent any more. What is under
    way still counts; then ``step`` raises.

    Args:
        say: told each kind of trouble once.
    """

    def __init__(self, endpoint: Endpoint, say: Callable[[str], None]) -> None:
        self.endpoint = endpoint
        self.rows = endpoint.concurrency
        self._began = time.monotonic()
        self._cost = Cost()
        self._say = say
        self._said: set[str] = set()
        self._answered = False
        self._halted: BmrlError | None = None
        self._talks: dict[int, list[dict[str, str]]] = {}
        self._bounds: dict[int, int] = {}  # most tokens that a row's next request may take
        self._waiting: deque[tuple[int, int, int]] = deque()  # row, most tokens of the answer, seed
        self._asked: dict[int, asyncio.Task[Answer]] = {}
        self._jitter = np.random.default_rng()  # unlike in every process: clients must not come back all at once
        self._runner = asyncio.Runner()
        self._http: httpx.AsyncClient | None = None

    @property
    def cost(self) -> Cost:
        """What was spent so far."""
        return self._cost.plus({"wall_s": time.monotonic() - self._began})

    def begin(self, row: int, added: Sequence[int], draws: NDArray[np.float64]) -> None:
        """A turn of a row; as of ``sampler.LiveSampler``. The first number becomes the seed of the request."""
        text = "".join(map(chr, added))
        self._talks.setdefault(row, []).append({"role": "user", "content": text})
        # No token is shorter than a byte.
        bound = self._bounds.get(row, 0) + len(text.encode()) + TEMPLATE_TOKENS
        self._bounds[row] = bound + len(draws)
        self._waiting.append((row, len(draws), int(draws[0] * 2**31)))

    def drop(self, row: int) -> None:
        """Forgets a row."""
        self._talks.pop(row, None)
        self._bounds.pop(row, None)

    def step(self, *, temperature: float, stop_ids: frozenset[int]) -> list[tuple[int, Completion | None]]:
        """Waits until something is answered, or a moment.

        Raises:
            BmrlError: nothing is under way any more, and nothing may be asked.
        """
        return self._runner.run(self._step(temperature))

    def close(self) -> None:
        """Gives up what is under way."""
        self._runner.run(self._close())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

    async def _step(self, temperature: float) -> list[tuple[int, Completion | None]]:
        while self._waiting and self._halted is None and self._affordable(self._waiting[0][0]):
            row, most, seed = self._waiting.popleft()
            body = {
                "model": self.endpoint.model,
                "messages": list(self._talks[row]),
                "temperature": temperature,
                "max_tokens": most,
                "seed": seed,
                **self.endpoint.fields,
            }
            body = {name: value for name, value in body.items() if value is not None}
            self._asked[row] = asyncio.create_task(self._ask(body))
        if not self._asked:
            raise self._halted or self._too_dear(self._waiting[0][0])
        await asyncio.wait(self._asked.values(), timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
        completed = []
        for row, task in sorted(self._asked.items()):
            if task.done():
                del self._asked[row]
                if (error := task.exception()) is None:
                    completed.append((row, self._taken(row, task.result())))
                elif isinstance(error, BmrlError):
                    self._halted = self._halted or error
                else:
                    raise error
        return completed

    def _taken(self, row: int, answer: Answer) -> Completion | None:
        """Books an answer; None if the conversation did not fit into the server's context."""
        if answer.too_long:
            self.drop(row)
            return None
        self._answered = True
        cost, prompt, said = self._cost, answer.prompt_tokens, answer.completion_tokens
        cost.cut_off += not answer.stopped
        cost.empty += not answer.text.strip()
        if prompt is None or said is None:
            cost.uncounted += 1
            if self.endpoint.max_tokens is not None:
                self._halted = BmrlError("--max-tokens: the server does not count tokens; limit --max-requests instead")
        else:
            cost.prompt_tokens += prompt
            cost.completion_tokens += said
            self._bounds[row] = prompt + said
        self._talks[row].append({"role": "assistant", "content": answer.text})
        return Completion(_ids(answer.text), (), answer.stopped)

    def _affordable(self, row: int) -> bool:
        return self.endpoint.max_tokens is None or self._at_most(row) <= self.endpoint.max_tokens

    def _at_most(self, row: int) -> int:
        """Tokens spent if all that is under way, and this row's request, took as many as they may."""
        bounds = sum(self._bounds[other] for other in {*self._asked, row})
        return self._cost.prompt_tokens + self._cost.completion_tokens + bounds

    def _too_dear(self, row: int) -> BmrlError:
        spent = self._cost.prompt_tokens + self._cost.completion_tokens
        return BmrlError(
            f"--max-tokens {self.endpoint.max_tokens:,}: {spent:,} are spent, the next request may take "
            f"{self._bounds[row]:,}"
        )

    async def _ask(self, body: Mapping[str, Any]) -> Answer:
        """One answer; tries again where that may help.

        Raises:
            BmrlError: it does not, or there is no budget for it.
        """
        endpoint, cost = self.endpoint, self._cost
        tries = 0
        while True:
            if endpoint.max_requests is not None and cost.requests >= endpoint.max_requests:
                raise BmrlError(f"--max-requests {endpoint.max_requests:,}: they are spent")
            cost.requests += 1
            cost.retried += tries > 0
            try:
                return await self._post(body)
            except Fault as fault:
                helps = fault.transient or (fault.passing and self._answered)
                wait = fault.wait_s
                if wait is None:
                    # Between half of it and one and a half times.
                    mean = endpoint.first_wait_s * 2**tries
                    wait = min(mean * (0.5 + self._jitter.random()), LONGEST_WAIT_S)
                if not helps or tries == endpoint.retries:
                    after = f" {tries + 1} times" if helps and tries else ""
                    raise BmrlError(f"{endpoint.url}: {fault.problem}{after}; {fault.hint}") from fault
                kind = fault.problem.partition(" (")[0]
                if kind not in self._said:
                    self._said.add(kind)
                    self._say(f"{endpoint.url}: {fault.problem}; trying again, at most {endpoint.retries} times each")
            tries += 1
            await asyncio.sleep(wait)

    async def _post(self, body: Mapping[str, Any]) -> Answer:
        import httpx

        endpoint = self.endpoint
        if self._http is None:
            self._http = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else None,
                limits=httpx.Limits(max_connections=endpoint.concurrency),
                timeout=None,  # the one below is for the whole of an answer, however slowly it drips
            )
        try:
            async with asyncio.timeout(endpoint.timeout_s):
                response = await self._http.post(f"{endpoint.url}/chat/completions", json=body)
        except (TimeoutError, httpx.RequestError) as error:
            raise no_answer(error, endpoint.timeout_s) from error
        return read(response.status_code, response.headers, response.content, secret=endpoint.key)
