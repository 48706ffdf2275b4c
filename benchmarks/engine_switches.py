"""Every kind of layers that docs/serving.md names, in a real vLLM with each of the engine's switches: served, refused, or not run.

    python benchmarks/engine_switches.py                                   # needs vLLM, a wheel of gemmill and a GPU
    python benchmarks/engine_switches.py fp8-channel nvfp4 --at-once 2 --out-dir /tmp/short
    python benchmarks/engine_switches.py fp8-channel --ranks 2             # a tensor-parallel pair, on two GPUs

    python benchmarks/engine_switches.py fp8-channel --pairs "batch invariant"

Each kind has a small checkpoint on disk and six engines, which start together: vLLM alone and vLLM with the plugin, once as they
come with sleep mode, once with chunked prefill, prefix caching and LoRA, and once under VLLM_BATCH_INVARIANT=1, all with torch.compile
and CUDA graphs. There a prompt's tokens and log-probabilities among 6 and 63 others are held, bit for bit, to those it has alone. Outputs of the two
engines of a pair are held together over the same prompts; after a sleep or a reload, those of one engine to its own. The engines of
all kinds of a turn share the GPU. An engine that fails is named with its error.
"""

import argparse
import datetime
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from engine import RESULTS, version
from harness import devices
from harness.written import write_json
from served.agreement import agreement, among_others, with_itself
from served.side import SUBJECT, EngineError, Side, end_engines_on_sigterm
from served.tiny import KINDS, LORA_RANK, LayerKind, adapter, written

ENGINE = "engine"
SWITCHES = {
    "compiled": "torch.compile, CUDA graphs",
    "sleep": "sleep, wake-up",
    "deep sleep": "sleep that drops weights, reload",
    "reload": "reload of weights",
    "chunked": "chunked prefill",
    "prefix": "prefix caching",
    "lora": "LoRA adapter",
    "invariant": "batch invariance",
}
"""The switches, in the order in which they are tried, and their columns."""
PLAIN, MIXED = ("compiled", "sleep", "reload", "deep sleep"), ("chunked", "prefix", "lora")
INVARIANT = ("invariant",)
PAIRS = {"as it comes": PLAIN, "mixed": MIXED, "batch invariant": INVARIANT}
"""The pairs of engines of a kind, and the switches that are tried on each."""
AMONG = {"batches": [1, 7, 64], "length": 100, "tokens": 32, "seed": 5}
"""A prompt alone, and among others. 64 of them are more than a step's tokens: some are cut into chunks."""
PROMPTS = {"prompts": 4, "length": 100, "tokens": 32, "seed": 1}
LONG = {"prompts": 4, "length": 700, "tokens": 16, "seed": 2}
CHUNK = 256
"""Tokens of a step of the engines with chunked prefill: a prompt of LONG takes three."""

Json = dict[str, Any]


def arguments(kind: LayerKind, folder: Path, options: argparse.Namespace, switches: Sequence[str], name: str) -> Json:
    """Arguments of vLLM's LLM for one engine of a pair, ENGINE or SUBJECT."""
    mixed, invariant = switches == MIXED, switches == INVARIANT
    used: Json = {"enable_sleep_mode": True}
    if mixed:
        used = {"enable_lora": True, "max_lora_rank": LORA_RANK, "max_loras": 1}
    elif invariant:
        used = {}
    model = str(written(kind, folder, options.device))
    if kind.drafts:
        used["speculative_config"] = {"method": "draft_model", "model": model, "num_speculative_tokens": kind.drafts}
    return {
        "model": model,
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": max(AMONG["batches"]) if invariant else 8,
        "max_num_batched_tokens": CHUNK if mixed else 2048,
        "enable_prefix_caching": mixed,
        "seed": 0,
        "gpu_memory_utilization": 0.02,  # the cache's size is given
        "kv_cache_memory_bytes": 1 << 28,
        "disable_log_stats": True,
        "compilation_config": {"cudagraph_capture_sizes": [1, 4, 8]},
        **used,
        **({"tensor_parallel_size": options.ranks} if options.ranks > 1 else {}),
        **kind.settings,
        **(kind.with_plugin if name == SUBJECT else {}),
    }


class Pair:
    """vLLM alone and vLLM with the plugin, with the same switches. Both start at once."""

    def __init__(
        self, kind: LayerKind, folder: Path, options: argparse.Namespace, switches: Sequence[str], stack: ExitStack
    ) -> None:
        """`folder` holds the checkpoints; the stack ends the engines."""
        self.name = next(name for name, tried in PAIRS.items() if tried == switches)
        self._switches, self._lora = switches, adapter(kind, folder)
        self._sides: dict[str, Side] = {}
        stack.callback(self.stop)
        for name in (ENGINE, SUBJECT):
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switches-")))
            asked = {"VLLM_BATCH_INVARIANT": "1"} if switches == INVARIANT else {}
            side = Side(name, arguments(kind, folder, options, switches, name), scratch / name, variables=asked)
            self._sides[name] = side
        self.failures: dict[str, str] = {}
        """Of the start."""
        self._ended_alone = ""
        self.served: Json = {}
        self.log: list[str] = []

    def stop(self) -> None:
        """Ends the engines; a second time does nothing."""
        while self._sides:
            self._sides.popitem()[1].stop()

    def tried(self) -> Iterator[tuple[str, Json]]:
        """Each switch with its outcome: `agreement` of outputs, or `failed`, with `engine_failed` where vLLM alone fails, too."""
        for name, side in self._sides.items():
            try:
                side.answer()
            except EngineError as error:
                self.failures[name] = str(error)
        mine = self._sides[SUBJECT]
        if SUBJECT in self.failures:
            yield from ((switch, {"failed": self.failures[SUBJECT]}) for switch in self._switches)
            return
        for switch in self._switches:
            try:
                found = self._try(switch)
                self.served = self.served or mine.ask("served")
            except EngineError as error:  # and its process has ended
                found = {"failed": str(error)}
                could_tell = ENGINE not in self.failures and not self._ended_alone
                if could_tell and self._alone(switch) is None:
                    found["engine_failed"] = self._ended_alone
            yield switch, found
            if "failed" in found:
                break
        self.log = mine.log_lines()

    def _try(self, switch: str) -> Json:
        found = self._answers(SUBJECT, switch)
        if switch not in ("compiled", "chunked", "lora", "invariant"):
            return {"with": "itself before", "agreement": agreement(found[0], found[-1])}
        its = self._alone(switch)
        if switch == "invariant":
            told: Json = {"with": "itself alone", "agreement": among_others(found[0])}
            return told if its is None else told | {"engine_agreement": among_others(its)}
        if its is None:
            why = self.failures.get(ENGINE, self._ended_alone)
            return {"engine_failed": why, "with_itself": with_itself(found[0])}
        return {"with": "vLLM", "agreement": agreement(its, found[0])}

    def _answers(self, name: str, switch: str) -> list[Json]:
        """An engine's answers to the requests of a switch."""
        return [self._sides[name].ask(command, **asked) for command, asked in self._requests(switch)]

    def _alone(self, switch: str) -> Json | None:
        """The first answer of vLLM without the plugin to the requests of a switch; None where it did not start or has ended."""
        if ENGINE in self.failures or self._ended_alone:
            return None
        try:
            return self._answers(ENGINE, switch)[0]
        except EngineError as error:
            self._ended_alone = str(error)
            return None

    def _requests(self, switch: str) -> list[tuple[str, Json]]:
        outputs: tuple[str, Json] = ("outputs", PROMPTS)
        match switch:
            case "compiled":
                return [outputs]
            case "chunked":
                return [("outputs", LONG)]
            case "lora":
                return [("outputs", LONG | {"lora": str(self._lora)})]
            case "invariant":
                return [("among", AMONG)]
            case "prefix":  # the second time, whole blocks of the prompts are in the cache
                return [("outputs", LONG | {"seed": LONG["seed"] + 1})] * 2
        return [
            outputs,
            ("reloaded" if switch == "reload" else "slept", {"level": 2 if switch == "deep sleep" else 1}),
            outputs,
        ]


def _row(kind: str, pairs: Sequence[Pair]) -> Json:
    row: Json = {"kind": kind, "layers": KINDS[kind].layers, "switches": {}, "failures": {}, "served": {}, "log": {}}
    for pair in pairs:
        name = pair.name
        row["switches"] |= dict(pair.tried())
        row["failures"][name], row["served"][name], row["log"][name] = pair.failures, pair.served, pair.log
    return row


def main(given: Sequence[str] | None = None) -> int:
    """Runs; returns the exit code: 1 where an engine with the plugin failed and the engine alone did not."""
    options = parse(given)
    rows: list[Json] = []
    record: Json = {
        "schema_version": 1,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": devices.environment(),
        "commit": options.commit or devices.commit_of(Path(__file__).parent),
        "versions": {name: version(name) for name in ("vllm", "gemmill", "transformers", "triton")},
        "settings": {
            "ranks": options.ranks,
            "at_once": options.at_once,
            "prompts": PROMPTS,
            "long": LONG,
            "chunk": CHUNK,
            "among": AMONG,
        },
        "rows": rows,
    }
    options.out_dir.mkdir(parents=True, exist_ok=True)
    out = options.out_dir / f"{options.name}.json"
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as scratch:
        folder = Path(scratch)
        for absent in (kind for kind in options.kinds if KINDS[kind].absent):
            rows.append({"kind": absent, "layers": KINDS[absent].layers, "not_run": KINDS[absent].absent})
        kinds = [kind for kind in options.kinds if not KINDS[kind].absent]
        for first in range(0, len(kinds), options.at_once):
            with ExitStack() as stack:
                begun = {
                    kind: [
                        Pair(KINDS[kind], folder, options, switches, stack)
                        for switches in map(PAIRS.__getitem__, options.pairs)
                    ]
                    for kind in kinds[first : first + options.at_once]
                }
                for row in stack.enter_context(ThreadPoolExecutor()).map(_row, begun, begun.values()):
                    rows.append(row)
                    print(f"{row['kind']}: {_told(row)}", flush=True)
                    write_json(record, out)
                with ThreadPoolExecutor() as ends:
                    list(ends.map(Pair.stop, chain.from_iterable(begun.values())))
    write_json(record, out)
    return int(any(set(found) == {SUBJECT} for row in rows for found in row.get("failures", {}).values()))


def _told(row: Json) -> str:
    return ", ".join(f"{switch} {outcome(row, switch)}" for switch in row["switches"])


def outcome(row: Json, switch: str) -> str:
    """A cell of the table: who served, and how many most likely tokens are equal, of how many positions; under batch invariance
    how many tokens with their log-probabilities, to the last bit."""
    found = row.get("switches", {}).get(switch)
    if found is None:
        return "not run"
    if "failed" in found:
        failures = row["failures"][_pair_of(switch)]
        if ENGINE in failures or "engine_failed" in found:
            return "vLLM cannot"
        return "failed" if SUBJECT in failures else "broke"
    told = row["served"][_pair_of(switch)] or {}
    report = told.get("report") or {}
    serves = report.get("served") or any("Gemmill" in name for name in told.get("classes", {}))
    who = "refused" if not serves else "served in part" if report["left"] else "served"
    if "agreement" not in found:
        its = found.get("with_itself")  # not in records before 2026-11-30
        decoded = f"; decoded and scored {its['most_likely']} of {its['positions']}" if its else ""
        return f"{who}, vLLM alone failed{decoded}"
    return f"{who}, {found['agreement']['most_likely_equal']} of {found['agreement']['positions']}"


def sentences(row: Json) -> list[str]:
    """Why a kind, or a part of it, was not served: each sentence once."""
    if "not_run" in row:
        return [row["not_run"]]
    left = [
        f"a {refusal['layer']} stays with the engine: {refusal['why']}"
        for told in row["served"].values()
        for refusal in ((told or {}).get("report") or {}).get("left", [])
    ]
    failed = [
        _why_failed(found, starts=ENGINE not in row["failures"][_pair_of(switch)])
        for switch, found in row["switches"].items()
        if "failed" in found
    ]
    return list(dict.fromkeys([*left, *failed]))


def _why_failed(found: Json, *, starts: bool) -> str:
    if not starts:
        return "vLLM does not start so, with or without the plugin"
    error = found["failed"].rpartition(" | ")[2]
    return f"vLLM ends so, with or without the plugin: {error}" if "engine_failed" in found else error


def _pair_of(switch: str) -> str:
    return next(name for name, tried in PAIRS.items() if switch in tried)


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Kinds: {', '.join(KINDS)}.",
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=list(KINDS))
    parser.add_argument("--at-once", type=int, default=4, metavar="N", help="kinds whose engines share the GPU")
    parser.add_argument(
        "--pairs", type=lambda text: text.split(","), default=list(PAIRS), help=f"engines, of {', '.join(PAIRS)}"
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="of tensor parallelism, on so many GPUs")
    parser.add_argument("--device", default="cuda", help="where checkpoints are quantised")
    parser.add_argument("--commit", help="of sources in no checkout")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="switches-engine", help="file name of the results, without suffix")
    options = parser.parse_args(given)
    if unknown := sorted({*options.kinds} - KINDS.keys()):
        parser.error(f"no kind {', '.join(unknown)}: expected some of {', '.join(KINDS)}")
    if unknown := [name for name in options.pairs if name not in PAIRS]:
        parser.error(f"no pair {unknown[0]!r}: expected some of {', '.join(PAIRS)}")
    return options


if __name__ == "__main__":
    end_engines_on_sigterm()
    sys.exit(main())
