"""The options of `gemmill explain` for a call of the compressed cache's ops."""

from gemmill.questions import number, size, word

TITLE = "Compressed KV cache"
QUESTIONS = (
    size("m", "Rows of a transform, new tokens, or query rows"),
    word("dtype", "Of rows, keys or queries (bf16)", "bf16", "f16"),
    number("head_dim", "Columns of a transform; elements of a cache's vector (128)", least=1),
    word("format", "Of a cache (k_eden4_v_eden4)"),
    number("batch", "Sequences that are attended over (1)", least=0),
    number("heads", "Query heads (32)", least=0),
    number("kv_heads", "KV heads of a cache (8)", least=1),
    number("length", "Tokens of a sequence (4096)", least=0),
    number("page", "Tokens of a cache's page (64)", least=0),
)

MEASURED = dict.fromkeys(
    (
        "kv_decode_4bit",
        "kv_decode_3bit",
        "kv_decode_2bit",
        "kv_slots_k8v4",
        "kv_slots_4bitnc",
        "kv_slots_k3v4nc",
        "kv_slots_3bitnc",
        "kv_slots_ultraquant",
        "kv_slots_prod3mse2",
        "kv_slots_fp8",
    ),
    ("batch", "rows", "heads", "kv_heads", "length"),
)
"""The names of classes of calls that `sweep.py` measures, with their sizes."""
