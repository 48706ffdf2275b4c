"""Workloads from files and from model configs, and the sentences for unreadable ones."""

import json
import re

import pytest

from gemmill.tuner.models import Layer, ModelError, layers_of, named_models, read_model
from gemmill.tuner.shapes import ShapesError, read_misses, read_shapes
from gemms import MeasuredOp, Workload, gemm

FP8 = (MeasuredOp.FP8,)


def workload(m: int, n: int, k: int, op: MeasuredOp = MeasuredOp.FP8) -> Workload:
    return gemm(op=op, m=m, n=n, k=k)


def test_json_with_lists_of_m(tmp_path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text('[{"m": [1, 16], "n": 64, "k": 128}, {"op": "int8", "m": 3, "n": 64, "k": 128}]')
    assert read_shapes(path, FP8) == [
        workload(1, 64, 128),
        workload(16, 64, 128),
        workload(3, 64, 128, MeasuredOp.INT8),
    ]


def test_rows_without_m_or_op_take_the_callers(tmp_path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text('[{"n": 64, "k": 128}]')
    found = read_shapes(path, (MeasuredOp.FP8, MeasuredOp.INT8), (1, 2))
    assert found == [workload(m, 64, 128, op) for op in (MeasuredOp.FP8, MeasuredOp.INT8) for m in (1, 2)]


def test_csv_and_repeated_rows(tmp_path) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text("M, N, K, op\n1, 64, 128, int8_azp\n2,64,128,\n1,64,128,int8_azp\n")
    assert read_shapes(path, FP8) == [workload(1, 64, 128, MeasuredOp.INT8_AZP), workload(2, 64, 128)]


def test_json_lines(tmp_path) -> None:
    path = tmp_path / "misses.jsonl"
    path.write_text('{"op": "fp8", "m": 1, "n": 2, "k": 3, "trust": "nearest"}\n\n')
    assert read_shapes(path, (MeasuredOp.INT8,)) == [workload(1, 2, 3)]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "x.json",
            '[{"m": 1, "n": 64, "k": 128}, {"m": 0, "n": 64, "k": 128}]',
            "x.json, row 2 has m = 0, expected a whole number from 1",
        ),
        ("x.json", '[{"m": 1, "n": "64", "k": 128}]', "x.json, row 1 has n = '64', expected a whole number"),
        ("x.json", '[{"m": 1, "n": [64], "k": 128}]', "row 1 has n = [64], expected a whole number"),
        ("x.json", '[{"m": 1, "k": 128}]', "x.json, row 1 has no 'n': a row is for example"),
        ("x.json", "[[1, 2, 3]]", "x.json, row 1 is [1, 2, 3], expected an object such as"),
        ("x.json", '{"m": 1}', "x.json holds dict, expected a list of rows such as"),
        ("x.json", "[", "x.json is not JSON: "),
        ("x.json", "[]", "x.json has no rows: a row is for example"),
        (
            "x.json",
            '[{"op": "fp9", "m": 1, "n": 64, "k": 128}]',
            "row 1 has op = 'fp9', expected one of fp8, int8, int8_azp, fp8_groups, fp8_groups_32",
        ),
        ("x.csv", "m,n,k\n1,64,128\n1,64,1.5\n", "x.csv, row 2 has k = '1.5', expected a whole number"),
        ("x.csv", "a,b\n1,2\n", "x.csv begins with a, b: expected a header with m, n, k and perhaps op"),
        ("x.jsonl", '{"m": 1, "n": 64, "k": 128}\nno\n', "x.jsonl, line 2 is not JSON: "),
    ],
)
def test_bad_rows_are_named(name: str, text: str, sentence: str, tmp_path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ShapesError, match=re.escape(sentence)):
        read_shapes(tmp_path / name, FP8)


def test_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(
        ShapesError, match=r"none\.json cannot be read \(No such file or directory\): --shapes takes a JSON"
    ):
        read_shapes(tmp_path / "none.json", FP8)


def test_a_line_that_is_no_miss_takes_no_other_with_it(tmp_path) -> None:
    path = tmp_path / "m.jsonl"
    good = '{"op": "fp8", "m": 3, "n": 64, "k": 128, "trust": "model", "call": "x"}'
    path.write_bytes(
        b"\n".join(
            [
                good.encode(),
                good.replace("128", "0").encode(),
                good.encode()[:30],
                b"\xff\x00",
                b"[" * 100_000,
                b"[1]",
                good.replace("fp8", "fp9").encode(),
                b"",
                good.replace("3", "5").encode(),
            ]
        )
    )
    found, unusable = read_misses(path, FP8)
    assert found == [workload(3, 64, 128), workload(5, 64, 128)]
    assert [re.search(r"line (\d)", text)[1] for text in unusable] == ["2", "3", "4", "5", "6", "7"]
    assert unusable[0] == f"{path}, line 2 has k = 0, expected a whole number from 1 to 2147483647"
    assert all(len(text) < 900 for text in unusable)


def test_misses_of_which_nothing_is_left(tmp_path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("\n")
    with pytest.raises(ShapesError, match=r"m\.jsonl has no lines: no call was recorded that a table lacks"):
        read_misses(path, FP8)
    path.write_text("no\nnot\n")
    with pytest.raises(ShapesError, match=r"m\.jsonl, line 1 is not JSON"):
        read_misses(path, FP8)
    with pytest.raises(
        ShapesError,
        match=r"cannot be read \(No such file or directory\): --misses takes the file that GEMMILL_RECORD_MISSES names$",
    ):
        read_misses(tmp_path / "none", FP8)


def sizes(name: str, ranks: int = 1) -> dict[str, tuple[int, int]]:
    return {layer.name: (layer.n, layer.k) for layer in layers_of(named_models()[name], ranks)}


def test_dense_model() -> None:
    assert sizes("llama-3-8b") == {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
    }
    assert sizes("llama-3-8b", 2)["qkv"] == (3072, 4096) and sizes("llama-3-8b", 2)["down"] == (4096, 7168)


def test_key_value_heads_are_copied_to_more_ranks() -> None:
    assert sizes("llama-3-8b", 16)["qkv"] == ((2 + 2) * 128, 4096)


def test_width_of_heads_may_be_given() -> None:
    assert sizes("qwen-3-32b")["o"] == (5120, 64 * 128)


def test_latent_attention() -> None:
    """DeepSeek-V3's published sizes, whole and in eight parts."""
    assert sizes("deepseek-v3") == {
        "qkv_a": (2112, 7168),
        "q_b": (24576, 1536),
        "kv_b": (32768, 512),
        "o": (7168, 16384),
        "gate_up": (36864, 7168),
        "down": (7168, 18432),
        "shared_gate_up": (4096, 7168),
        "shared_down": (7168, 2048),
    }
    eighth = sizes("deepseek-v3", 8)
    assert (eighth["qkv_a"], eighth["q_b"], eighth["o"]) == ((2112, 7168), (3072, 1536), (7168, 2048))
    assert sizes("deepseek-v2-lite")["q"] == (16 * 192, 2048) and "q_b" not in sizes("deepseek-v2-lite")


def test_experts_leave_attention_and_the_shared_one() -> None:
    config = {
        "architectures": ["Qwen2MoeForCausalLM"],
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "shared_expert_intermediate_size": 5632,
        "intermediate_size": 5632,
    }
    assert layers_of(config) == [
        Layer(name="qkv", n=6144, k=2048),
        Layer(name="o", n=2048, k=2048),
        Layer(name="shared_gate_up", n=11264, k=2048),
        Layer(name="shared_down", n=2048, k=5632),
    ]


def test_every_named_model_has_layers() -> None:
    for name, config in named_models().items():
        assert len(layers_of(config)) >= 4, name


def test_config_file(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(named_models()["mistral-7b"]))
    for path in (tmp_path, tmp_path / "config.json"):
        assert layers_of(read_model(str(path))) == layers_of(named_models()["mistral-7b"])


def test_language_part_of_a_larger_model(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "x", "text_config": named_models()["llama-3-8b"]}))
    assert layers_of(read_model(str(path))) == layers_of(named_models()["llama-3-8b"])


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architecture 'GPT2LMHeadModel' is not one whose layers gemmill knows (LlamaForCausalLM, ",
        ),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "with hidden_size, intermediate_size, num_attention_heads, num_key_value_heads; or list",
        ),
        ({}, "architecture 'none: the config has no `architectures`' is not one"),
        (
            {"architectures": ["LlamaForCausalLM"], "hidden_size": 64},
            "a config of LlamaForCausalLM needs `num_attention_heads`, a positive whole number: it is missing",
        ),
        (
            {"architectures": ["LlamaForCausalLM"], "hidden_size": "64"},
            "a config of LlamaForCausalLM needs `hidden_size`, a positive whole number: it is '64'",
        ),
    ],
)
def test_configs_that_say_too_little(config, sentence: str) -> None:
    with pytest.raises(ModelError, match=re.escape(sentence)):
        layers_of(config)


def test_ranks_that_do_not_divide() -> None:
    with pytest.raises(ModelError, match="num_attention_heads = 32 of LlamaForCausalLM is not divided by 3 ranks"):
        layers_of(named_models()["llama-3-8b"], 3)


def test_model_that_is_not_there(tmp_path) -> None:
    with pytest.raises(
        ModelError, match=r"no model '/none': it is neither a readable config\.json nor one of llama-3-8b, "
    ):
        read_model("/none")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"expected `object`, got `array`; name a Hugging Face config\.json"):
        read_model(str(tmp_path))
