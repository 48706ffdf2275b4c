"""A model in vLLM with gemmill's plugin and without it: tokens per second, prefill, start, and how far the outputs agree.

    python benchmarks/engine.py llama-3.1-8b-fp8 qwen3-30b-a3b-nvfp4
    python benchmarks/engine.py /models/Llama-3.1-8B-FP8 --other linear_backend=triton
    python benchmarks/engine.py llama-3.1-8b-fp8 --layers 2 --batches 1 16 --rounds 1 --out-dir /tmp/short

A model is a folder with weights, a folder with config.json alone (weights are random), or one of those named below. The engines of a
model start together, each in a process with caches of its own, and are measured in turns, in another order each round, so that a
ratio is of one run. --other adds an engine without gemmill and with a setting of vLLM's: how far two of vLLM's own backends agree
says how far gemmill's has to. --also adds one with gemmill and other settings or variables of the environment. Needs vLLM, an
installed wheel of gemmill and a GPU with memory for a copy of the model for each engine.
"""

import argparse
import datetime
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from harness import devices
from harness.written import write_json
from served.agreement import agreement, with_itself
from served.loading import PROFILES
from served.models import MODELS, Model, has_weights, model_of
from served.random_weights import LOAD_FORMAT
from served.side import SUBJECT, EngineError, Side, end_engines_on_sigterm

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA_VERSION = 2
"""In version 1, a decode rate was of all tokens but each sequence's first, by the time of all tokens less the time of one."""
ENGINE, OTHER = "engine", "other"
PREFILL_BATCH, PREFILL_LENGTH = 8, 4096
JUDGED = {"prompts": 4, "length": 100, "tokens": 32, "seed": 1}
"""Prompts whose outputs are held together: 396 scored positions, with --prompts more."""

STEP_TOKENS, MOST_PROMPTS = 8192, 16
"""Tokens of an engine's step; the most prompts that it answers before times are taken."""
FEW, MORE_ROUNDS = 16, 4
"""Below so many sequences a step takes about as long as the host needs, and times lie apart: so many times the rounds."""
MOST_FIRST, NEAR = 4, 1.25
"""Rounds that come first at most; times of one engine that are as long, as a ratio."""

Json = dict[str, Any]


class EngineTimeError(ValueError):
    """Steps that say nothing of an engine."""


def arguments(model: Model, given: str, options: argparse.Namespace, folder: Path) -> Json:
    """Of vLLM's LLM. A model without weights is written to `folder`."""
    is_random = given in MODELS or options.layers or not has_weights(given)
    graphs = sorted({1, 2, 4, 8, 16, 32, *options.batches})
    return {
        "model": str(model.written(folder) if is_random else given),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": max(PREFILL_LENGTH, options.length + options.tokens) + 64,
        "max_num_seqs": max(*options.batches, PREFILL_BATCH),
        "max_num_batched_tokens": STEP_TOKENS,
        "enable_prefix_caching": options.prefix_caching,
        "seed": 0,
        "gpu_memory_utilization": 0.05,  # the cache's size is given
        "kv_cache_memory_bytes": int(options.cache_gib * 2**30),
        "enforce_eager": options.eager,
        "disable_log_stats": True,
        **({"load_format": LOAD_FORMAT} if is_random else {}),
        **({} if options.eager else {"compilation_config": {"cudagraph_capture_sizes": graphs}}),
        **model.settings,
    }


def timed(
    sides: Sequence[Side], rounds: int, turn: int, *, same: bool = False, **request: Any
) -> list[dict[str, Json]]:
    """The seconds and steps of each engine, round by round; each round has its own prompts unless all have the same.

    One round more comes first, and others until each engine takes as long as in the round before: an engine may compile kernels when
    it meets a number of rows.
    """
    found: list[dict[str, Json]] = []
    for number in range(rounds + MOST_FIRST):
        answers = {
            side.name: side.ask("seconds", seed=turn + number * (not same), **request)
            for side in random.Random(turn + number).sample(list(sides), len(sides))
        }
        if (
            len(found) == 1
            and number < MOST_FIRST
            and any(_is_faster(answers[name], found[0][name]) for name in answers)
        ):
            found.clear()
        found.append(answers)
        if len(found) > rounds:
            break
    return found[1:]


def answer_few(sides: Sequence[Side], options: argparse.Namespace) -> None:
    """Each engine answers one prompt, two, and so on, up to those of a step. Prompts come while it works, so a step may have any number
    of them; kernels for as many rows are compiled before times are taken, where an engine compiles at the first use."""
    for batch in range(1, min(max(options.batches), STEP_TOKENS // options.length, MOST_PROMPTS) + 1):
        for side in sides:
            side.ask("seconds", seed=batch, batch=batch, length=options.length, tokens=1)


def _is_faster(answer: Json, before: Json) -> bool:
    return float(answer["seconds"]) * NEAR < before["seconds"]


def decoding(sides: Sequence[Side], batch: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens per second of each engine, by rounds: of the steps in which all sequences decode.

    Raises EngineTimeError where there is no such step.
    """
    prompts = {"same": options.prefix_caching, "batch": batch, "length": options.length, "tokens": options.tokens}
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    rounds = options.rounds * (MORE_ROUNDS if batch < FEW else 1)
    for answers in timed(sides, rounds, 1000 * batch, **prompts):
        for name, found in rates.items():
            if (steps := answers[name]["steps"]) < 1 or answers[name]["steps_s"] <= 0:
                raise EngineTimeError(
                    f"{name}: no step in which all {batch} sequences decode: the first had its {options.tokens} tokens before the "
                    "last began. Ask for more with --tokens, or for fewer sequences"
                )
            found.append(round(batch * steps / answers[name]["steps_s"], 1))
    return rates


def figures(rates: dict[str, list[float]]) -> Json:
    """Medians, and those of the rounds' ratios to the engine alone. More is better."""
    ratios = {
        name: round(median(mine / its for mine, its in zip(found, rates[ENGINE], strict=True)), 4)
        for name, found in rates.items()
        if name != ENGINE and ENGINE in rates
    }
    return {"median": {name: median(found) for name, found in rates.items()}, "ratio": ratios, "rounds": rates}


def started(model: Model, given: str, options: argparse.Namespace, stack: ExitStack) -> tuple[Json, list[Side]]:
    """The record of one model, without figures, and its engines, which start. They end with the stack."""
    row: Json = {"model": model.name, "layers": model.config["num_hidden_layers"], "failures": {}, "sides": {}}
    settings: dict[str, Json] = {ENGINE: {}, SUBJECT: {}} | ({OTHER: dict(options.other)} if options.other else {})
    settings |= {name: dict(setting) for name, setting in options.also}
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engines-")))
    sides = []
    for number, (name, setting) in enumerate(settings.items()):
        variables = {of: str(value) for of, value in setting.items() if of.isupper()}
        of_vllm = {of: value for of, value in setting.items() if of not in variables}
        given_arguments = _joined(arguments(model, given, options, folder / "model"), of_vllm)
        variables |= {PROFILES: "1"} if options.profile_loading else {}
        side = Side(
            name, given_arguments, folder / str(number), variables=variables, is_served=name not in (ENGINE, OTHER)
        )
        stack.callback(side.stop)
        sides.append(side)
        if options.one_at_a_time:
            _first_answer(side, row)
    return row, sides


def _joined(arguments: Json, setting: Json) -> Json:
    """The arguments with a setting; of two objects, both ones' fields."""
    both = {
        name: arguments[name] | value
        for name, value in setting.items()
        if isinstance(value, dict) and name in arguments
    }
    return arguments | setting | both


def measured(row: Json, sides: Sequence[Side], options: argparse.Namespace, write: Callable[[], None]) -> Json:
    """The record with figures, which `write` keeps after each case. An engine that fails is left out, with its error; where all do,
    nothing is measured."""
    if not options.one_at_a_time:
        for side in sides:
            _first_answer(side, row)
    sides = [side for side in sides if side.name in row["sides"]]
    if not sides:
        print(f"{row['model']}: no engine started, nothing is measured", file=sys.stderr, flush=True)
        return row
    try:
        _measure(sides, options, row, write)
    except EngineError as error:
        row["failures"]["while measuring"] = str(error)
    for side in sides:
        row["sides"][side.name]["log"] = side.log_lines()
    return row


def _first_answer(side: Side, row: Json) -> None:
    try:
        row["sides"][side.name] = {name: round(value, 2) for name, value in side.answer().items()}
    except EngineError as error:
        row["failures"][side.name] = str(error)
        print(error, file=sys.stderr, flush=True)


def _measure(sides: Sequence[Side], options: argparse.Namespace, row: Json, write: Callable[[], None]) -> None:
    judged = JUDGED | {"prompts": options.prompts}
    outputs = {} if options.loading else {side.name: side.ask("outputs", **judged) for side in sides}
    for side in sides:
        row["sides"][side.name]["served"] = side.ask("served")
        if side.name in outputs:
            row["sides"][side.name]["with_itself"] = with_itself(outputs[side.name])
        row["sides"][side.name]["loading"] = found = side.ask("loaded")
        for function in found.get("load_model", {}).get("profile", [])[:40]:
            print(
                f"{side.name}: {function['s']:8.3f} s, {function['own_s']:7.3f} s alone, {function['calls']:7} calls: "
                f"{function['function']}",
                flush=True,
            )
        if options.host:
            row["sides"][side.name]["host_us"] = side.ask("host")
    if options.loading:
        _told_loading(row)
        return
    if options.host:
        for name, of in ((side.name, row["sides"][side.name]["host_us"]) for side in sides):
            print(f"{row['model']}, us of the host, {name}: {of}", flush=True)
    row["agreement"] = {
        name: agreement(outputs[ENGINE], found)
        for name, found in outputs.items()
        if name != ENGINE and ENGINE in outputs
    }
    if options.kernels:
        for side in sides:
            row["sides"][side.name]["step_kernels"] = {
                str(batch): _step_kernels(row["model"], side, batch, options) for batch in options.batches
            }
    answer_few(sides, options)
    row["decode_tokens_per_s"] = {}
    for batch in options.batches:
        try:
            row["decode_tokens_per_s"][str(batch)] = found = figures(decoding(sides, batch, options))
        except EngineTimeError as error:
            row["failures"][f"batch {batch}"] = str(error)
            print(error, file=sys.stderr, flush=True)
        else:
            _told(f"{row['model']}, batch {batch}, tokens/s", found)
        write()
    prompts = {"batch": PREFILL_BATCH, "length": PREFILL_LENGTH, "tokens": 1}
    rounds = timed(sides, options.rounds, 7, **prompts)
    tokens = PREFILL_BATCH * PREFILL_LENGTH
    rates = {side.name: [round(tokens / of[side.name]["seconds"], 1) for of in rounds] for side in sides}
    row["prefill_tokens_per_s"] = figures(rates)
    _told(f"{row['model']}, prefill of {PREFILL_BATCH} x {PREFILL_LENGTH}, tokens/s", row["prefill_tokens_per_s"])


def _told_loading(row: Json) -> None:
    for name, side in row["sides"].items():
        of = ", ".join(f"{what} {found['seconds']} s" for what, found in side["loading"].items())
        print(f"{row['model']}, {name}: first token {side['first_token_s']} s; {of}", flush=True)


def _step_kernels(model: str, side: Side, batch: int, options: argparse.Namespace) -> Json:
    seed = 1000 * batch
    found = side.ask("kernels", batch=batch, length=options.length, tokens=options.tokens, seed=seed)
    step = f"{found['step_us']:.0f} us, of which idle {found['idle_us']:.0f}" if found["step_us"] else "not found"
    print(f"{model}, batch {batch}, a decode step of {side.name}: {step}", flush=True)
    for kernel in found["kernels"][:12]:
        print(
            f"  {kernel['own_us']:8.1f} us, {kernel['launches']:5} launches: {kernel['name'][:120]}",
            flush=True,
        )
    return found


def _told(subject: str, found: Json) -> None:
    times = ", ".join(f"{name} {value:.0f}" for name, value in found["median"].items())
    ratios = ", ".join(f"{name} / {ENGINE} {value:.3f}" for name, value in found["ratio"].items())
    print(f"{subject}: {times}; {ratios}", flush=True)


def main(given: Sequence[str] | None = None) -> int:
    """Runs; returns the exit code: 1 where an engine failed."""
    options = parse(given)
    rows = []
    record: Json = {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": devices.environment(),
        "commit": options.commit or devices.commit_of(Path(__file__).parent),
        "versions": {name: version(name) for name in ("vllm", "gemmill", "transformers", "triton")},
        "variables": {
            name: value  # but for folders, which are the machine's
            for name, value in os.environ.items()
            if name.startswith(("VLLM_", "GEMMILL_")) and not value.startswith("/")
        },
        "settings": {
            name: getattr(options, name)
            for name in (
                *("batches", "length", "tokens", "rounds", "eager", "other", "one_at_a_time", "together"),
                *("prefix_caching", "profile_loading", "prompts"),
            )
        }
        | {"also": [name for name, _ in options.also]},
        "rows": rows,
    }

    def write() -> None:
        write_json(record, options.out_dir / f"{options.name}.json")

    with ExitStack() as all_of_them:
        early = {name: started(model, name, options, all_of_them) for name, model in options.models if options.together}
        for name, model in options.models:
            with ExitStack() as stack:
                row, sides = early.get(name) or started(model, name, options, stack)
                rows.append(row)
                measured(row, sides, options, write)
            for other, found in row.get("agreement", {}).items():
                print(f"{model.name}, {other} and {ENGINE}: {found}", flush=True)
            write()
    return int(any(row["failures"] for row in rows))


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Models: {', '.join(MODELS)}.",
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--layers", type=int, default=0, help="the first so many, of random weights")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256], metavar="N")
    parser.add_argument("--length", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="that each sequence gets")
    parser.add_argument("--rounds", type=int, default=3, help="kept, fourfold below 16 sequences; one more comes first")
    parser.add_argument("--cache-gib", type=float, default=24, help="of the KV cache of each engine")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs and torch.compile")
    parser.add_argument(
        "--host", action="store_true", help="time the host's part of a call of each kind of linear layers"
    )
    parser.add_argument(
        "--profile-loading", action="store_true", help="record Python's functions while a model loads, which slows them"
    )
    parser.add_argument(
        "--prefix-caching",
        action="store_true",
        help="decode the same prompts in each round: long ones are computed once",
    )
    parser.add_argument("--loading", action="store_true", help="load the models and time no more than that")
    parser.add_argument("--kernels", action="store_true", help="record the kernels of a decode step at each batch")
    starts = parser.add_mutually_exclusive_group()
    starts.add_argument(
        "--one-at-a-time", action="store_true", help="start engines one after another, to time the start"
    )
    starts.add_argument(
        "--together", action="store_true", help="start the engines of all models at once, if the GPU has the memory"
    )
    parser.add_argument(
        "--other",
        action="append",
        default=[],
        type=_setting,
        metavar="SETTING=VALUE",
        help="of vLLM's LLM, objects as JSON",
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        type=_side,
        metavar="NAME=VALUE[;NAME=VALUE]",
        help="one engine more, with gemmill: variables of the environment in capitals, else settings of vLLM's LLM; "
        "GEMMILL_VLLM=0 among them makes it vLLM alone",
    )
    parser.add_argument(
        "--prompts",
        type=int,
        default=JUDGED["prompts"],
        help="whose outputs are held together, 99 scored positions each",
    )
    parser.add_argument("--commit", help="of sources in no checkout")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="engine", help="file name of the results, without suffix")
    options = parser.parse_args(given)
    try:
        options.models = [(name, model_of(name, options.layers)) for name in options.models]
    except ValueError as error:
        parser.error(str(error))
    return options


def _side(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """An engine's name, which is what was given, and its settings."""
    return text, [_setting(part) for part in text.split(";")]


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a setting and its value, as linear_backend=triton")
    if not value.startswith(("{", "[")):
        return name, value
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: its value is no JSON, {error}") from None


if __name__ == "__main__":
    end_engines_on_sigterm()
    sys.exit(main())
