"""The program that serves a model with gemmill and without it: its own arithmetic, and its processes with an engine made of paper."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import engine as program
import engine_tables
from served import loading
from served import side as side_module
from served.agreement import agreement, with_itself
from served.models import MODELS, model_of
from served.random_weights import damping, fill
from served.side import BENCHMARKS, EngineError, Side
from unit.test_docs_tables import undated

ONE = {
    "scored": [[[5, -1.0, 2, 7], [6, -2.0, 1, 6]]],
    "greedy": [[[3, -0.5], [4, -0.25], [5, -0.125]]],
    "decoded_scored": [[[3, -0.5, 1, 3], [4, -0.5, 1, 4], [5, -0.25, 2, 8]]],
}
OTHER = {"scored": [[[5, -1.5, 2, 7], [6, -2.25, 2, 9]]], "greedy": [[[3, -0.5], [9, -0.25], [5, -0.125]]]}
VLLM = '''
"""Decodes token i as the i-th after the prompt's last, each in a millisecond of its own clock, and knows whether the plugin serves."""
import os, sys, time, torch, types

clock = [time.perf_counter()]
time.perf_counter = lambda: clock[0]

class SamplingParams(types.SimpleNamespace):
    pass

class LLM:
    def __init__(self, **arguments):
        if arguments.get("linear_backend") == "broken":
            raise ValueError("no such backend")
        if arguments.get("linear_backend") == "core":
            print("(EngineCore) ERROR [core.py] ValueError: no such head size", flush=True)
            raise RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
        if arguments.get("linear_backend") == "gone":
            print("it is gone", flush=True)
            os._exit(3)
        config = types.SimpleNamespace(get_vocab_size=lambda: 4096)
        self.llm_engine = types.SimpleNamespace(model_config=config, step=self.step)

    def step(self):
        clock[0] += 1e-3
        self.left -= 1
        return [] if self.left else ["a sequence that ended"]

    def generate(self, prompts, params, use_tqdm):
        self.left = params.max_tokens
        while self.left:
            self.llm_engine.step()
        made = []
        for prompt in prompts:
            ids = prompt["prompt_token_ids"]
            of = lambda token: {token: types.SimpleNamespace(logprob=-0.5, rank=1)}
            new = [ids[-1] + 1 + i for i in range(params.max_tokens)]
            made.append(types.SimpleNamespace(
                prompt_token_ids=ids, prompt_logprobs=[None, *map(of, ids[1:])],
                outputs=[types.SimpleNamespace(token_ids=new, logprobs=list(map(of, new)))]))
        return made

    def apply_model(self, function):
        class Layer:
            pass
        served = type("Kernel", (), {"__module__": "gemmill.x" if os.environ["GEMMILL_VLLM"] == "1" else "vllm.model_executor.kernels"})
        layer = Layer()
        layer.kernel = served()
        layer.output_size_per_partition, layer.input_size_per_partition = 64, 32
        layer.quant_method = types.SimpleNamespace(apply=lambda of, x: clock.__setitem__(0, clock[0] + 5e-6))
        layer.parameters = lambda: iter([torch.empty(1)])
        return [function(types.SimpleNamespace(modules=lambda: [layer]))]
'''


@pytest.fixture
def paper_engine(tmp_path, monkeypatch):
    """A package vllm, found before any other."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "vllm.py").write_text(VLLM)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def test_agreement_counts_positions_and_tokens():
    assert agreement(ONE, OTHER) == {
        "positions": 2,
        "most_likely_equal": 1,
        "log_probability_median": 0.375,
        "log_probability_largest": 0.5,
        "greedy_tokens": 3,
        "greedy_equal": 2,
        "greedy_equal_before_a_difference": 1,
    }
    found = with_itself(ONE)
    assert (found["positions"], found["most_likely"], found["log_probability_largest"]) == (3, 2, 0.25)


def test_ratios_are_of_the_same_round():
    found = program.figures({"engine": [1.0, 10.0, 2.0], "gemmill": [2.0, 10.0, 3.0]})
    assert found["ratio"] == {"gemmill": 1.5} and found["median"] == {"engine": 2.0, "gemmill": 3.0}


def test_a_model_is_built_in_or_a_folder(tmp_path):
    assert model_of("llama-3.1-8b-fp8", layers=2).config["num_hidden_layers"] == 2
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 3}))
    assert model_of(str(tmp_path)).config == {"num_hidden_layers": 3}
    with pytest.raises(
        ValueError, match=r"^no model 'none': expected a folder with config.json, or one of llama-3.1-8b-fp8, "
    ):
        model_of("none")
    gates = MODELS["qwen3-30b-a3b-fp8-block"].config["quantization_config"]["modules_to_not_convert"]
    assert "model.layers.47.mlp.gate" in gates


def test_random_weights_are_the_same_each_time_and_of_sane_sizes():
    def made() -> dict[str, torch.Tensor]:
        return {
            "model.layers.0.input_layernorm.weight": torch.empty(8, dtype=torch.bfloat16),
            "model.layers.0.self_attn.o_proj.weight": torch.empty(64, 512, dtype=torch.float8_e4m3fn),
            "model.layers.0.self_attn.o_proj.weight_scale": torch.empty(64, 1, dtype=torch.float32),
            "model.layers.0.mlp.down_proj.weight": torch.empty(64, 256, dtype=torch.uint8),
            "model.layers.0.mlp.down_proj.weight_scale": torch.empty(64, 32, dtype=torch.uint8),
            "model.layers.0.mlp.gate_up_proj.weight_scale": torch.empty(64, 32, dtype=torch.float8_e4m3fn),
            "model.layers.0.mlp.gate_up_proj.weight_scale_2": torch.empty(2, dtype=torch.float32),
            "model.layers.0.mlp.gate_up_proj.input_scale": torch.empty(2, dtype=torch.float32),
            "model.layers.0.mlp.experts.w13_weight": torch.empty(2, 64, 512, dtype=torch.int8),
        }

    first, second = made(), made()
    for weights in (first, second):
        fill(weights.items(), layers=32)
    assert all(torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8)) for name in first)
    codes, scales = (first[f"model.layers.0.self_attn.o_proj.weight{end}"].float() for end in ("", "_scale"))
    assert (codes * scales).std().item() == pytest.approx(0.02 / 8, rel=0.1)
    exponents = first["model.layers.0.mlp.down_proj.weight_scale"].int() - 127
    assert 0.02 / 8 / 3 / 2.5 < (2.0**exponents).mean().item() < 0.02 / 8 / 3 * 2.5
    assert damping("model.layers.3.mlp.gate_up_proj.weight", 32) == 1
    assert (
        damping("model.layers.3.mlp.experts.w2_weight_scale_inv", 32) == damping("x.o_proj.weight_scale", 32) == 1 / 8
    )


def test_loading_is_measured_with_what_is_packed_within_it(monkeypatch):
    """Memory in GiB: packing needs 3 where 1 stays, and resets the counter of the most in between."""
    clock, memory, most = [0.0], [0.0], [0.0]

    def to(seconds: float, now: float, at_most: float) -> None:
        clock[0] += seconds
        memory[0], most[0] = now, max(most[0], at_most)

    def measures(*, reset: bool = False) -> tuple[float, float]:
        if reset:
            most[0] = memory[0]
        return memory[0], most[0]

    monkeypatch.setattr(loading, "_found", {})
    monkeypatch.setattr(loading, "_memory", measures)
    monkeypatch.setattr(loading.time, "perf_counter", lambda: clock[0])
    process = loading.measured("process", lambda: to(0.5, 1.0, 3.0))

    def load() -> str:
        to(2.0, 1.5, 1.5)
        process()
        return "model"

    assert loading.measured("load", load)() == "model"
    assert loading.loading(None) == {
        "process": {"seconds": 0.5, "gib_before": 1.5, "gib_after": 1.0, "gib_most": 3.0},
        "load": {"seconds": 2.5, "gib_before": 0.0, "gib_after": 1.0, "gib_most": 3.0},
    }


def test_both_sides_are_measured_and_the_record_is_whole(paper_engine, tmp_path, capsys):
    given = [
        "llama-3.1-8b-fp8",
        "--layers",
        "2",
        "--batches",
        "1",
        "3",
        "--length",
        "8",
        "--tokens",
        "4",
        "--rounds",
        "2",
    ]
    assert (
        program.main(
            [*given, "--host", "--other", "linear_backend=triton", "--commit", "abc", "--out-dir", str(tmp_path)]
        )
        == 0
    )
    record = json.loads((tmp_path / "engine.json").read_text())
    (row,) = record["rows"]
    assert record["commit"] == "abc" and row["model"] == "llama-3.1-8b-fp8-2-layers" and not row["failures"]
    assert set(row["sides"]) == {"engine", "gemmill", "other"} and set(row["agreement"]) == {"gemmill", "other"}
    assert row["agreement"]["gemmill"]["positions"] == row["agreement"]["gemmill"]["most_likely_equal"] == 396
    assert (
        row["sides"]["gemmill"]["served"]["classes"]
        == row["sides"]["engine"]["served"]["classes"]
        == {"Layer: Kernel": 1}
    )
    assert row["sides"]["gemmill"]["host_us"] == {"Layer 64 x 32": 5.0} and row["sides"]["engine"]["loading"] == {}
    rates = {batch: found["median"]["gemmill"] for batch, found in row["decode_tokens_per_s"].items()}
    assert rates == {"1": 1000.0, "3": 3000.0} and len(row["prefill_tokens_per_s"]["rounds"]["gemmill"]) == 2
    assert "llama-3.1-8b-fp8-2-layers, batch 3, tokens/s: engine " in capsys.readouterr().out


def test_each_case_is_kept_when_it_ends(paper_engine, tmp_path, monkeypatch):
    decoding = program.decoding

    def ended(sides, batch, options):
        if batch == 3:
            raise KeyboardInterrupt
        return decoding(sides, batch, options)

    monkeypatch.setattr(program, "decoding", ended)
    given = "llama-3.1-8b-fp8 --layers 2 --batches 1 3 --length 8 --tokens 4 --rounds 1".split()
    with pytest.raises(KeyboardInterrupt):
        program.main([*given, "--out-dir", str(tmp_path)])
    (row,) = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert row["decode_tokens_per_s"].keys() == {"1"} and row["agreement"].keys() == {"gemmill"}


def test_further_engines_have_their_variables_and_settings(paper_engine, tmp_path):
    also = ["SPEED=4;linear_backend=gone", "SPEED=4;GEMMILL_VLLM=0", "SPEED=4"]
    speed = "(int(os.environ.get('SPEED', 1)) + 2 * int(os.environ['GEMMILL_VLLM']))"
    (paper_engine / "vllm.py").write_text(VLLM.replace("1e-3", f"1e-3 / {speed}"))
    given = "llama-3.1-8b-fp8 --layers 2 --batches 1 --length 8 --tokens 4 --rounds 1 --prompts 2".split()
    given += [text for side in also for text in ("--also", side)]
    assert program.main([*given, "--out-dir", str(tmp_path), "--name", "engine-x"]) == 1
    record = json.loads((tmp_path / "engine-x.json").read_text())
    (row,) = record["rows"]
    assert record["settings"]["also"] == also and row["failures"].keys() == {also[0]}  # its setting reached vLLM's LLM
    assert row["sides"].keys() == {"engine", "gemmill", *also[1:]} and row["agreement"]["SPEED=4"]["positions"] == 198
    assert row["decode_tokens_per_s"]["1"]["ratio"] == {"gemmill": 3.0, also[1]: 4.0, also[2]: 6.0}
    record["commit"] = "abc1234567"
    record["environment"]["gpu"] = "NVIDIA H200"
    told = [line for line in engine_tables.tables([("x", record)]).splitlines() if "SPEED" in line and "(" in line]
    assert [line.rpartition(" (")[0].rpartition(" | ")[0] for line in told if line.startswith("| llama")][:2] == [
        "| llama-3.1-8b-fp8-2-layers, abc1234, vLLM with SPEED=4 | 4000 (4.00)",
        "| llama-3.1-8b-fp8-2-layers, abc1234, gemmill with SPEED=4 | 6000 (6.00)",
    ]


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        ("broken", "other: ValueError: no such backend"),
        ("gone", "other: the engine's process ended; its log ends with: it is gone"),
        (
            "core",
            "other: RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {} "
            "Its own process: ValueError: no such head size",
        ),
    ],
)
def test_an_engine_that_fails_is_named_and_the_others_are_measured(paper_engine, tmp_path, backend, sentence):
    given = ["llama-3.1-8b-fp8", "--batches", "1", "--length", "8", "--tokens", "4", "--rounds", "1", "--one-at-a-time"]
    assert program.main([*given, "--other", f"linear_backend={backend}", "--out-dir", str(tmp_path)]) == 1
    (row,) = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert row["failures"] == {"other": sentence} and row["decode_tokens_per_s"]["1"]["median"].keys() == {
        "engine",
        "gemmill",
    }


def test_loading_alone_asks_for_no_token(paper_engine, tmp_path, monkeypatch, capsys):
    asked = []
    ask = Side.ask
    monkeypatch.setattr(Side, "ask", lambda self, do, **request: asked.append(do) or ask(self, do, **request))
    given = ["llama-3.1-8b-fp8", "--layers", "2", "--loading", "--out-dir", str(tmp_path)]
    assert program.main(given) == 0 and asked == ["served", "loaded"] * 2
    (row,) = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert set(row["sides"]) == {"engine", "gemmill"} and "decode_tokens_per_s" not in row
    assert "llama-3.1-8b-fp8-2-layers, gemmill: first token " in capsys.readouterr().out


def test_sequences_that_never_decode_together_are_a_failure(paper_engine, tmp_path):
    given = ["llama-3.1-8b-fp8", "--batches", "1", "--length", "8", "--tokens", "1", "--rounds", "1", "--one-at-a-time"]
    assert program.main([*given, "--out-dir", str(tmp_path)]) == 1
    (row,) = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert row["failures"] == {
        "batch 1": "engine: no step in which all 1 sequences decode: the first had its 1 tokens before the last began. "
        "Ask for more with --tokens, or for fewer sequences"
    }


def test_nothing_is_measured_where_no_engine_starts(paper_engine, tmp_path, monkeypatch, capsys):
    (paper_engine / "vllm.py").write_text(VLLM.replace('if arguments.get("linear_backend") == "broken"', "if True"))
    given = ["llama-3.1-8b-fp8", "llama-3.1-8b-int8", "--batches", "1", "--out-dir", str(tmp_path)]
    assert program.main(given) == 1
    rows = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert [set(row) for row in rows] == [{"model", "layers", "failures", "sides"}] * 2
    assert set(rows[0]["failures"]) == {"engine", "gemmill"}
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[2::3] == [
        f"{name}: no engine started, nothing is measured" for name in ("llama-3.1-8b-fp8", "llama-3.1-8b-int8")
    ]


def test_engines_of_all_models_start_before_one_is_measured(paper_engine, tmp_path, monkeypatch):
    turns = []

    class Noted(Side):
        def __init__(self, name, *given, **_):
            turns.append(f"{name} starts")
            super().__init__(name, *given)

        def ask(self, do, **request):
            turns.append(do)
            return super().ask(do, **request)

    monkeypatch.setattr(program, "Side", Noted)
    given = (
        "llama-3.1-8b-fp8 llama-3.1-8b-int8 --layers 2 --batches 1 --length 8 --tokens 4 --rounds 1 --together".split()
    )
    assert program.main([*given, "--out-dir", str(tmp_path)]) == 0
    assert turns.index("outputs") == 4 and turns[:4] == ["engine starts", "gemmill starts"] * 2
    rows = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["llama-3.1-8b-fp8-2-layers", "llama-3.1-8b-int8-2-layers"]


def recorded(paper_engine, folder: Path, monkeypatch) -> dict:
    """The program's record, in the form of a device run: two sides and another backend, and a model that fails."""
    given = "llama-3.1-8b-fp8 qwen3-30b-a3b-nvfp4 --layers 2 --batches 1 3 --length 8 --tokens 4 --rounds 2".split()
    more = [
        "--other",
        "linear_backend=triton",
        "--commit",
        "abc1234567",
        "--out-dir",
        str(folder),
        "--name",
        "engine-x",
    ]
    program.main([*given, *more])
    record = json.loads((folder / "engine-x.json").read_text())
    record |= {"date": "2026-11-24T10:00:00+00:00", "versions": {"vllm": "0.33.0", "gemmill": "1.0", "triton": None}}
    record["environment"]["gpu"] = "NVIDIA H200"
    first, second = record["rows"]
    rates = {"median": {"engine": 284.96, "gemmill": 308.2}, "ratio": {"gemmill": 1.0812}, "rounds": {}}
    first["decode_tokens_per_s"] = {"1": rates, "16": rates | {"ratio": {}, "median": {"engine": 4024.0}}}
    first["prefill_tokens_per_s"] = rates
    first["sides"]["engine"]["step_kernels"] = {"1": {"step_us": 3443.6, "idle_us": 60.2}}
    first["sides"]["gemmill"]["step_kernels"] = {"16": {"step_us": 4090.1, "idle_us": 51.0}}
    second |= {"failures": {"gemmill": "gemmill: RuntimeError: b is bf16 |\n pass f32"}, "sides": {}, "agreement": {}}
    del second["decode_tokens_per_s"], second["prefill_tokens_per_s"]
    return record


def test_the_pages_tables_have_rows_of_each_run(paper_engine, tmp_path, monkeypatch):
    record = recorded(paper_engine, tmp_path, monkeypatch)
    (tmp_path / "engine-x.json").write_text(json.dumps(record))
    record |= {"date": "2026-11-25T10:00:00+00:00", "commit": "def5678901", "rows": record["rows"][:1]}
    record["environment"]["gpu"] = "NVIDIA H100"
    (row,) = record["rows"]
    row["decode_tokens_per_s"] = {"128": row["decode_tokens_per_s"]["1"]}
    del row["prefill_tokens_per_s"], row["sides"]["other"]
    for side in row["sides"].values():
        side.pop("step_kernels", None)
    (tmp_path / "engine-y.json").write_text(json.dumps(record))
    monkeypatch.setattr(engine_tables, "ROOT", tmp_path)
    monkeypatch.setattr(engine_tables, "RESULTS", tmp_path)
    results = engine_tables.committed()
    made = engine_tables.page(f"# Page\n\n{engine_tables.BEGIN}\n\nold\n\n{engine_tables.END}\n\nmore\n", results)
    told, rates, steps, outputs = made.split("\n\n")[2:6]
    assert told.splitlines() == [
        "| run | versions | mode; prompt tokens, new ones, rounds |",
        "| --- | --- | --- |",
        "| [NVIDIA H200, 2026-11-24, abc1234](../engine-x.json) | vllm 0.33.0, gemmill 1.0 | with CUDA graphs and torch.compile; 8, 4, 2 |",
        "| [NVIDIA H100, 2026-11-25, def5678](../engine-y.json) | vllm 0.33.0, gemmill 1.0 | with CUDA graphs and torch.compile; 8, 4, 2 |",
    ]
    one, other = "llama-3.1-8b-fp8-2-layers", "qwen3-30b-a3b-nvfp4-2-layers"
    runs = "NVIDIA H200, 2026-11-24; NVIDIA H100, 2026-11-25; runs by their commits"
    assert rates.splitlines() == [
        f"| {runs}: tokens per second with gemmill (ratio to vLLM without it), more is better: decode at batch "
        "| 1 | 16 | 128 | prefill of 8 x 4096 |",
        "| --- | --- | --- | --- | --- |",
        f"| {one}, abc1234 | 308 (1.08) | - (vLLM 4024) | - | 308 (1.08) |",
        f"| {one}, abc1234, vLLM with linear_backend=triton | - (vLLM 285) | - (vLLM 4024) | - | - (vLLM 285) |",
        f"| {other}, abc1234 | - | - | - | - |",
        f"| {one}, def5678 | - | - | 308 (1.08) | - |",
        f"| {other}, abc1234: gemmill failed: gemmill: RuntimeError: b is bf16 / pass f32 | - | - | - | - |",
    ]
    assert steps.splitlines() == [
        "| NVIDIA H200, 2026-11-24; runs by their commits: us of a decode step on the GPU (without a kernel), less is better, "
        "at batch | 1 | 16 |",
        "| --- | --- | --- |",
        f"| {one}, abc1234, vLLM | 3444 (60) | - |",
        f"| {one}, abc1234, gemmill | - | 4090 (51) |",
    ]
    triton = "vLLM with linear_backend=triton"
    heads = " | ".join(
        (
            "gemmill and vLLM",
            f"{triton} and vLLM",
            *(f"{name}, decoded and scored" for name in ("vLLM", "gemmill", triton)),
        )
    )
    assert outputs.splitlines() == [
        f"| {runs}: most likely token equal, more is better (difference of log-probability: median, largest) | {heads} |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| {one}, abc1234 | 396 of 396 (0, 0) | 396 of 396 (0, 0) | 128 of 128 (0, 0) | 128 of 128 (0, 0) | 128 of 128 (0, 0) |",
        f"| {other}, abc1234 | - | - | - | - | - |",
        f"| {one}, def5678 | 396 of 396 (0, 0) | - | 128 of 128 (0, 0) | 128 of 128 (0, 0) | - |",
    ]
    assert undated("docs/engine.md", made) == []
    assert made.endswith(f"\n\n{engine_tables.END}\n\nmore\n") and "old" not in made
    assert engine_tables.page(made, results) == made and engine_tables.NOTHING in engine_tables.page(made, [])
    with pytest.raises(
        ValueError, match=r"^the page lacks <!-- made by benchmarks/engine_tables.py --> or <!-- end -->: put the "
    ):
        engine_tables.page("# Page\n", results)


def test_the_page_has_the_results_that_are_there():
    page = engine_tables.PAGE.read_text()
    assert engine_tables.page(page, engine_tables.committed(), engine_tables.tried()) == page, (
        "benchmarks/engine_tables.py writes it"
    )


def test_a_side_that_ends_while_it_is_asked_says_so(paper_engine, tmp_path):
    side = Side("engine", {}, tmp_path / "side")
    side.answer()
    side._process.kill()
    with pytest.raises(EngineError, match=r"^engine: the engine's process ended"):
        side.ask("served")
    side.stop()


STARTING = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_side_that_still_starts_ends_at_once_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "starting.py").write_text(STARTING)
    monkeypatch.setattr(side_module, "_END_SECONDS", "no time: a wait for it raises TypeError")
    side = Side("engine", {}, tmp_path / "side", program="starting")
    log = tmp_path / "side/log"
    until(lambda: log.read_text().endswith("\n"))
    side.stop()
    until(lambda: not is_running(int(log.read_text())))


def until(happened: Callable[[], bool]) -> None:
    """Waits for it, for a minute at most, which no machine needs."""
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.01)
    pytest.fail("it has not happened")


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


ENDED = """
import sys, time
from pathlib import Path
from served.side import Side, end_engines_on_sigterm
from contextlib import ExitStack
end_engines_on_sigterm()
with ExitStack() as stack:
    side = Side("engine", {}, Path(sys.argv[1]) / "side", program="starting")
    stack.callback(side.stop)
    side.answer()
"""


def test_sigterm_ends_the_engines_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{BENCHMARKS}")
    (tmp_path / "starting.py").write_text(STARTING)
    program = subprocess.Popen([sys.executable, "-c", ENDED, str(tmp_path)])
    log = tmp_path / "side/log"
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    program.terminate()
    assert program.wait(60) == 128 + signal.SIGTERM
    until(lambda: not is_running(int(log.read_text())))


def test_the_load_format_is_registered_once(monkeypatch):
    formats: dict[str, type] = {}

    def register(name):
        return lambda loader: formats.setdefault(name, loader)

    class Loader:
        def load_model(self) -> str:
            return "model"

    parent = "vllm.model_executor.model_loader"
    loaders, base, utils = (ModuleType(name) for name in (parent, f"{parent}.base_loader", f"{parent}.utils"))
    loaders._LOAD_FORMAT_TO_MODEL_LOADER, loaders.register_model_loader = formats, register
    loaders.base_loader, loaders.utils = base, utils
    base.BaseModelLoader = Loader
    base.process_weights_after_loading = utils.process_weights_after_loading = lambda: "processed"
    for module in (loaders, base, utils, ModuleType("vllm"), ModuleType("vllm.model_executor")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(loading, "_found", {})
    from served import random_weights

    random_weights.register()
    random_weights.register()
    (loader,) = formats.values()
    model = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    loader().load_weights(model, SimpleNamespace(hf_config=SimpleNamespace(num_hidden_layers=2)))
    assert model.weight.float().std().item() < 0.1 and Path(random_weights.__file__).is_file()
    assert base.process_weights_after_loading is utils.process_weights_after_loading, "plugins look for one in both"
    assert (utils.process_weights_after_loading(), Loader().load_model()) == ("processed", "model")
    found = loading.loading(None)
    assert found.keys() == {"process_weights_after_loading", "load_model"} and "profile" not in found["load_model"]
    monkeypatch.setenv(loading.PROFILES, "1")
    Loader().load_model()
    functions = {row["function"].split()[-1]: row for row in loading.loading(None)["load_model"]["profile"]}
    assert functions["load_model"]["calls"] == 1 and functions["load_model"]["s"] >= functions["load_model"]["own_s"]


def test_a_setting_needs_a_value(capsys):
    with pytest.raises(SystemExit):
        program.parse(["llama-3.1-8b-fp8", "--other", "triton"])
    assert "'triton': expected a setting and its value, as linear_backend=triton" in capsys.readouterr().err


def test_a_setting_of_the_third_engine_may_be_an_object() -> None:
    given = [
        "llama-3.1-8b-fp8",
        "--other",
        "linear_backend=triton",
        "--other",
        'compilation_config={"custom_ops": ["+quant_fp8"]}',
    ]
    other = dict(program.parse(given).other)
    assert other == {"linear_backend": "triton", "compilation_config": {"custom_ops": ["+quant_fp8"]}}
    joined = program._joined({"seed": 0, "compilation_config": {"cudagraph_capture_sizes": [1]}}, other)
    assert joined["compilation_config"] == {"cudagraph_capture_sizes": [1], "custom_ops": ["+quant_fp8"]}
    assert joined["linear_backend"] == "triton" and joined["seed"] == 0


def test_a_setting_of_broken_json_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        program.parse(["llama-3.1-8b-fp8", "--other", "compilation_config={custom_ops"])
    assert "its value is no JSON" in capsys.readouterr().err
