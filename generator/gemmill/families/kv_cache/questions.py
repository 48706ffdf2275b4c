"""What `gemmill explain` can be told of a call of the compressed cache's ops."""

from gemmill.questions import Asked

TITLE = "Compressed KV cache"
QUESTIONS = (
    Asked(
        name="m",
        flags="-m",
        least=0,
        required=True,
        is_size=True,
        help="Rows of a transform, new tokens, or query rows",
    ),
    Asked(name="dtype", flags="--dtype", kind=str, choices=("bf16", "f16"), help="Of rows, keys or queries (bf16)"),
    Asked(
        name="head_dim", flags="--head-dim", least=1, help="Columns of a transform; elements of a cache's vector (128)"
    ),
    Asked(name="format", flags="--format", kind=str, help="Of a cache (k_eden4_v_eden4)"),
    Asked(name="batch", flags="--batch", least=0, help="Sequences that are attended over (1)"),
    Asked(name="heads", flags="--heads", least=0, help="Query heads (32)"),
    Asked(name="kv_heads", flags="--kv-heads", least=1, help="KV heads of a cache (8)"),
    Asked(name="length", flags="--length", least=0, help="Tokens of a sequence (4096)"),
    Asked(name="page", flags="--page", least=0, help="Tokens of a cache's page (64)"),
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
