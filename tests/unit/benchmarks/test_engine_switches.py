"""The program that tries an engine's switches, with an engine made of paper, and its small checkpoints."""

import json
import textwrap

import pytest
from safetensors import safe_open

import engine_switches as program
import engine_tables
from served import tiny
from unit.benchmarks.test_engine import VLLM

MORE = """
    def sleep(self, level):
        self.asleep = True

    def wake_up(self, tags=None):
        self.asleep = False

    def collective_rpc(self, method):
        assert method == "reload_weights", method
        import os

        if PLACE == "both" or PLACE == "plugin" and os.environ.get("GEMMILL_VLLM") != "0":
            raise RuntimeError("no weights there")
"""


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """Writes the package vllm; weights can or cannot be loaded again. No checkpoint is made."""

    def write(after: str = "", *, no_reloads: str = "") -> None:
        folder = tmp_path / "site"
        (folder / "vllm" / "lora").mkdir(parents=True)
        code = VLLM.replace("params, use_tqdm)", "params, use_tqdm, lora_request=None)")
        more = MORE.replace("PLACE", repr(no_reloads))
        (folder / "vllm" / "__init__.py").write_text(code + more + textwrap.dedent(after))
        (folder / "vllm" / "lora" / "__init__.py").write_text("")
        (folder / "vllm" / "lora" / "request.py").write_text(
            "class LoRARequest:\n    def __init__(self, *given): pass\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(folder))

    monkeypatch.setattr(program, "written", lambda kind, folder, device: folder)
    return write


def test_each_switch_of_each_kind_has_an_outcome(paper, tmp_path, capsys):
    paper()
    given = ["fp8-channel", "sparse-2-4", "--commit", "abc", "--out-dir", str(tmp_path), "--device", "cpu"]
    assert program.main(given) == 0
    rows = {row["kind"]: row for row in json.loads((tmp_path / "switches-engine.json").read_text())["rows"]}
    assert rows["sparse-2-4"]["not_run"].startswith("vLLM 0.33 has no scheme")
    row = rows["fp8-channel"]
    assert set(row["switches"]) == set(program.SWITCHES) and not any(row["failures"].values())
    assert row["switches"]["compiled"]["with"] == "vLLM" and row["switches"]["sleep"]["with"] == "itself before"
    assert row["switches"]["lora"]["agreement"]["positions"] == 4 * 699
    assert row["switches"]["invariant"]["agreement"]["equal_in_batches_of"] == {"7": 131, "64": 131}
    assert program.outcome(row, "invariant") == "refused, 262 of 262"
    assert "fp8-channel: compiled refused, 396 of 396, sleep refused" in capsys.readouterr().out
    assert program.outcome(rows["sparse-2-4"], "sleep") == "not run"


@pytest.mark.parametrize(
    ("no_reloads", "cell", "sentence"),
    [
        ("plugin", "broke", "gemmill: RuntimeError: no weights there"),
        ("both", "vLLM cannot", "vLLM ends so, with or without the plugin: gemmill: RuntimeError: no weights there"),
    ],
)
def test_a_switch_that_breaks_is_named_and_ends_its_pair(paper, tmp_path, no_reloads, cell, sentence):
    """vLLM without the plugin is asked for the same."""
    paper(no_reloads=no_reloads)
    given = ["int8", "--pairs", "as it comes", "--out-dir", str(tmp_path), "--device", "cpu"]
    assert program.main(given) == 0
    (row,) = json.loads((tmp_path / "switches-engine.json").read_text())["rows"]
    assert row["switches"]["reload"]["failed"] == "gemmill: RuntimeError: no weights there"
    assert program.outcome(row, "reload") == cell and program.outcome(row, "deep sleep") == "not run"
    assert program.sentences(row) == [sentence]
    assert program.outcome(row, "sleep") == "refused, 396 of 396"


def test_where_vllm_alone_ends_the_plugins_engine_goes_on(paper, tmp_path):
    paper(
        """
def generate(self, prompts, params, use_tqdm, lora_request=None, plain=LLM.generate):
    if prompts[0]["prompt_token_ids"][99:] and os.environ["GEMMILL_VLLM"] == "0":
        raise RuntimeError("0 keys for 131 places")
    return plain(self, prompts, params, use_tqdm)
LLM.generate = generate
"""
    )
    given = ["int8", "--pairs", "as it comes", "--out-dir", str(tmp_path), "--device", "cpu"]
    assert program.main(given) == 0
    (row,) = json.loads((tmp_path / "switches-engine.json").read_text())["rows"]
    assert row["switches"]["compiled"]["engine_failed"] == "engine: RuntimeError: 0 keys for 131 places"
    assert program.outcome(row, "compiled") == "refused, vLLM alone failed; decoded and scored 128 of 128"
    assert program.outcome(row, "sleep") == "refused, 396 of 396" and set(row["switches"]) == set(program.PLAIN)


def test_a_row_that_others_change_is_counted_and_vllm_is_asked_for_invariance(paper, tmp_path):
    paper(
        """
def generate(self, prompts, params, use_tqdm, lora_request=None, plain=LLM.generate):
    made = plain(self, prompts, params, use_tqdm)
    if len(prompts) == 64 and os.environ["GEMMILL_VLLM"] == "1" and os.environ["VLLM_BATCH_INVARIANT"] == "1":
        for output in made:
            output.outputs[0].logprobs[3][output.outputs[0].token_ids[3]].logprob = -0.5000001
    return made
LLM.generate = generate
"""
    )
    given = ["int8", "--pairs", "batch invariant", "--out-dir", str(tmp_path), "--device", "cpu"]
    assert program.main(given) == 0
    (row,) = json.loads((tmp_path / "switches-engine.json").read_text())["rows"]
    assert set(row["switches"]) == {"invariant"}
    found = row["switches"]["invariant"]
    assert found["agreement"]["equal_in_batches_of"] == {"7": 131, "64": 130}
    assert found["engine_agreement"]["equal_in_batches_of"] == {"7": 131, "64": 131}
    assert program.outcome(row, "invariant") == "refused, 261 of 262" and program.outcome(row, "sleep") == "not run"


def test_an_unknown_pair_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.parse(["int8", "--pairs", "mixed,cold"])
    assert "no pair 'cold': expected some of as it comes, mixed, batch invariant" in capsys.readouterr().err


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.parse(["fp9"])
    assert "no kind fp9: expected some of fp8-tensor, fp8-channel, " in capsys.readouterr().err


def test_checkpoints_are_those_of_their_kinds(tmp_path):
    folder = tiny.written(tiny.KINDS["int8-zero-points"], tmp_path)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["input_activations"]["symmetric"] is False
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert str(weights.get_tensor("model.layers.1.mlp.down_proj.weight").dtype) == "torch.int8"
    assert tiny.written(tiny.KINDS["turboquant"], tmp_path).name == "dense-6"
    latents = tiny.written(tiny.KINDS["latents"], tmp_path)
    with safe_open(latents / "model.safetensors", "pt") as weights:
        assert weights.get_slice("model.layers.1.self_attn.kv_a_proj_with_mqa.weight").get_shape() == [576, 1024]


@pytest.mark.parametrize(("kind", "names", "shape"), [("int8", 4, [256, 8]), ("latents", 1, [1024, 8])])
def test_an_adapter_is_for_projections_that_the_kind_has(tmp_path, kind, names, shape):
    folder = tiny.adapter(tiny.KINDS[kind], tmp_path)
    targets = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
    with safe_open(folder / "adapter_model.safetensors", "pt") as factors:
        name = "k_proj" if kind == "int8" else "o_proj"
        found = factors.get_slice(f"base_model.model.model.layers.0.self_attn.{name}.lora_B.weight").get_shape()
    assert len(targets) == names and found == shape


def test_vllm_alone_has_no_cache_of_the_plugins(tmp_path):
    options = program.parse(["latents", "--device", "cpu"])
    asked = [
        program.arguments(tiny.KINDS["latents"], tmp_path, options, program.PLAIN, name)
        for name in ("engine", "gemmill")
    ]
    assert "kv_cache_dtype" not in asked[0] and asked[1] == asked[0] | tiny.KINDS["latents"].with_plugin


def record_of(commit: str, *rows: dict, ranks: int = 1) -> tuple[str, dict]:
    settings, environment = {"ranks": ranks}, {"gpu": "NVIDIA H200"}
    made = {"commit": commit, "date": "2026-11-27", "settings": settings, "environment": environment, "rows": [*rows]}
    return f"benchmarks/results/{commit}.json.xz", made


def row_of(kind: str, switch: str, equal: int) -> dict:
    pair = next(name for name, tried in program.PAIRS.items() if switch in tried)
    report = {"served": [{"layer": kind}], "left": []}
    agreement = {"most_likely_equal": equal, "positions": 9}
    return {
        "layers": tiny.KINDS[kind].layers,
        "switches": {switch: {"agreement": agreement}},
        "failures": {},
        "served": {pair: {"report": report}},
    }


def test_a_run_adds_what_those_before_it_have_not_tried():
    """Cells of one kind stand in one row, those of pairs of ranks in another; kinds without a run are named."""
    compiled, again = row_of("int8", "compiled", 8), row_of("int8", "compiled", 3)
    runs = [
        record_of("aaaaaaa1", compiled),
        record_of("bbbbbbb2", again),
        record_of("ccccccc3", row_of("int8", "lora", 7)),
    ]
    runs.append(record_of("ddddddd4", compiled, ranks=2))
    made = engine_tables.switches(runs)
    cells = ["not run"] * len(program.SWITCHES)
    first, lora = list(program.SWITCHES).index("compiled"), list(program.SWITCHES).index("lora")
    pair = ["served, 8 of 9" if i == first else cell for i, cell in enumerate(cells)]
    one = ["served, 7 of 9" if i == lora else cell for i, cell in enumerate(pair)]
    name = tiny.KINDS["int8"].layers
    assert made.splitlines()[2:4] == [
        f"| {name}, aaaaaaa, ccccccc | {' | '.join(one)} |",
        f"| {name}, ddddddd | {' | '.join(pair)} |",
    ]
    *_, last = made.splitlines()
    assert last.endswith(": not run.") and tiny.KINDS["turboquant"].layers in last and f"{name};" not in last


def test_a_kind_with_drafts_asks_for_its_own_checkpoint_as_the_draft_model(paper, tmp_path):
    options = program.parse(["turboquant-drafts", "--device", "cpu"])
    asked = program.arguments(tiny.KINDS["turboquant-drafts"], tmp_path, options, program.PLAIN, "engine")
    assert asked["speculative_config"] == {
        "method": "draft_model",
        "model": asked["model"],
        "num_speculative_tokens": 3,
    }
    assert "speculative_config" not in program.arguments(
        tiny.KINDS["turboquant"], tmp_path, options, program.PLAIN, "engine"
    )
