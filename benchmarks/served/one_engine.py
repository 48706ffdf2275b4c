"""The process of one engine: it starts vLLM and answers the requests of `engine.py`, one at a time.

    python -m served.one_engine PIPE ARGUMENTS

PIPE is the descriptor of a connection, ARGUMENTS is JSON of vLLM's `LLM`. Requests and answers are JSON. The first answer comes
without a request, when the engine has made a token, and has the seconds from the process's start to the engine and to that token.
"""

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from served.host_calls import host_us
from served.loading import loading
from served.step_kernels import begin, end
from served.who_serves import who_serves

_KEPT = 1000
"""Tokens at either end of the vocabulary that no prompt has: special ones."""

Json = dict[str, Any]


class Engine:
    """A request to an engine."""

    def __init__(self, arguments: Json) -> None:
        from vllm import LLM

        self._llm = LLM(**arguments)
        self._vocabulary = self._llm.llm_engine.model_config.get_vocab_size()

    def outputs(self, request: Json) -> Json:
        """Greedy tokens of `prompts` prompts of `length` tokens, the same prompts scored, and the decoded tokens scored as a prompt.

        `lora` names the folder of an adapter that all of it goes through.
        """
        from vllm import SamplingParams

        prompts = self._prompts(request["prompts"], request["length"], request["seed"])
        decoding = SamplingParams(
            temperature=0, max_tokens=request["tokens"], ignore_eos=True, logprobs=1, detokenize=False
        )
        scoring = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=1, detokenize=False)
        through = _adapted(request.get("lora"))
        decoded = self._llm.generate(prompts, decoding, use_tqdm=False, **through)
        greedy = [
            [
                [token, of[token].logprob]
                for token, of in zip(x.outputs[0].token_ids, x.outputs[0].logprobs, strict=True)
            ]
            for x in decoded
        ]
        again = [
            {"prompt_token_ids": [*prompt["prompt_token_ids"], *(token for token, _ in tokens)]}
            for prompt, tokens in zip(prompts, greedy, strict=True)
        ]
        return {
            "greedy": greedy,
            "scored": [_scored(x) for x in self._llm.generate(prompts, scoring, use_tqdm=False, **through)],
            "decoded_scored": [
                _scored(x)[-request["tokens"] :] for x in self._llm.generate(again, scoring, use_tqdm=False, **through)
            ],
        }

    def among(self, request: Json) -> Json:
        """One prompt of `length` tokens in batches of `batches` prompts: its place in each, its `tokens` greedy tokens, and the
        log-probabilities of those and of its own tokens."""
        from vllm import SamplingParams

        (prompt,) = self._prompts(1, request["length"], request["seed"])
        params = SamplingParams(
            temperature=0,
            max_tokens=request["tokens"],
            ignore_eos=True,
            logprobs=1,
            prompt_logprobs=1,
            detokenize=False,
        )
        found = []
        for batch in request["batches"]:
            others = self._prompts(batch - 1, request["length"], request["seed"] + batch)
            place = random.Random(batch).randrange(batch)
            together = [*others[:place], prompt, *others[place:]]
            output = self._llm.generate(together, params, use_tqdm=False)[place]
            decoded = zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True)
            values = [[*x[:2]] for x in _scored(output)] + [[token, of[token].logprob] for token, of in decoded]
            found.append({"batch": batch, "place": place, "values": values})
        return {"batches": found}

    def seconds(self, request: Json) -> Json:
        """Of `batch` prompts of `length` tokens until each has `tokens` more; and the steps in which all of them decode, with theirs."""
        from vllm import SamplingParams

        prompts = self._prompts(request["batch"], request["length"], request["seed"])
        params = SamplingParams(temperature=0, max_tokens=request["tokens"], ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        with _recorded(self._llm.llm_engine) as ends:
            self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        steps, steps_s = decoding(ends, request["tokens"])
        return {"seconds": seconds, "steps": steps, "steps_s": steps_s}

    def slept(self, request: Json) -> Json:
        """Sleeps at `level` and wakes up. Level 2 drops the weights, so they are loaded again."""
        self._llm.sleep(level=request["level"])
        if request["level"] == 1:
            self._llm.wake_up()
        else:
            self._llm.wake_up(tags=["weights"])
            self._llm.collective_rpc("reload_weights")
            self._llm.wake_up(tags=["kv_cache"])
        return {}

    def reloaded(self, request: Json) -> Json:
        """Loads the weights again into the running engine."""
        self._llm.collective_rpc("reload_weights")
        return {}

    def served(self, request: Json) -> Json:
        """Which classes serve the layers, with the number of each, and gemmill's counts."""
        classes, report = self._llm.apply_model(who_serves)[0]
        return {"classes": classes, "report": report}

    def loaded(self, request: Json) -> Json:
        """Seconds and memory of loading the model."""
        found: Json = self._llm.apply_model(loading)[0]
        return found

    def host(self, request: Json) -> Json:
        """The host's microseconds of a call of each kind of linear layers."""
        found: Json = self._llm.apply_model(host_us)[0]
        return found

    def kernels(self, request: Json) -> Json:
        """The kernels of a decode step of `batch` prompts of `length` tokens, over `tokens` - 1 steps."""
        self.seconds(request)
        self._llm.apply_model(begin)
        self.seconds(request)
        found: Json = self._llm.apply_model(partial(end, steps=request["tokens"] - 1))[0]
        return found

    def _prompts(self, count: int, length: int, seed: int) -> list[Any]:
        draw = random.Random(seed)
        tokens = range(_KEPT, self._vocabulary - _KEPT)
        return [{"prompt_token_ids": draw.choices(tokens, k=length)} for _ in range(count)]


@contextmanager
def _recorded(engine: Any) -> Iterator[list[tuple[float, bool]]]:
    """A list that gets, for each step of vLLM's engine, when its tokens came and whether a sequence ended."""
    ends: list[tuple[float, bool]] = []
    step = engine.step

    def timed() -> Any:
        ended = step()
        ends.append((time.perf_counter(), bool(ended)))
        return ended

    engine.step = timed
    try:
        yield ends
    finally:
        engine.step = step


def decoding(ends: Sequence[tuple[float, bool]], tokens: int) -> tuple[int, float]:
    """The number of steps in which all sequences decode, and their seconds: from the first token of the sequence that begins last to
    the last token of the one that ends first.

    `ends` has each step's time and whether a sequence ended in it; each sequence gets `tokens`, one a step. The number is below one
    where the first sequence ends before the last one begins.
    """
    ended = [place for place, (_, has_ended) in enumerate(ends) if has_ended]
    begin = max(0, ended[-1] - (tokens - 1))
    return ended[0] - begin, ends[ended[0]][0] - ends[begin][0]


def _adapted(folder: str | None) -> Json:
    """Arguments of `generate` for an adapter."""
    if folder is None:
        return {}
    from vllm.lora.request import LoRARequest

    return {"lora_request": LoRARequest("adapter", 1, folder)}


def _scored(output: Any) -> list[list[Any]]:
    """Of each position but the first: the token, its log-probability and rank, the most likely token."""
    found = []
    for token, of in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
        if of:
            best = min(of, key=lambda other: of[other].rank)
            found.append([token, of[token].logprob, of[token].rank, best])
    return found


def main(pipe: str, arguments: str) -> int:
    """Answers requests until one says stop; returns the exit code."""
    begun = time.perf_counter()
    os.set_inheritable(int(pipe), False)
    connection = Connection(int(pipe))

    def answer(found: Json) -> None:
        connection.send_bytes(json.dumps(found).encode())

    try:
        engine = Engine(json.loads(arguments))
        start = time.perf_counter() - begun
        engine.seconds({"batch": 1, "length": 16, "tokens": 1, "seed": 0})
        answer({"engine_s": start, "first_token_s": time.perf_counter() - begun})
        requests: dict[str, Callable[[Json], Json]] = {
            "outputs": engine.outputs,
            "among": engine.among,
            "seconds": engine.seconds,
            "served": engine.served,
            "slept": engine.slept,
            "reloaded": engine.reloaded,
            "loaded": engine.loaded,
            "host": engine.host,
            "kernels": engine.kernels,
        }
        while (request := json.loads(connection.recv_bytes()))["do"] != "stop":
            answer(requests[request["do"]](request))
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"[:4000]})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
