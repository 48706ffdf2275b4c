"""The options of `gemmill explain` for a block-scaled GEMM's call."""

from gemmill.questions import size, switch, word

TITLE = "Block-scaled GEMMs"
QUESTIONS = (
    size("m", "Rows of a and out"),
    size("n", "Rows of the weights, columns of out"),
    size("k", "Columns of a and of the weights"),
    word("out", "Dtype of out and bias (bf16)", "bf16", "f16"),
    switch("bias", "Give a bias"),
    word("format", "Of the weights of an op that is told (nvfp4)", "nvfp4", "mxfp4", "mxfp6", "mxfp8"),
    switch(
        "prepacked", "Weights packed for a kernel, or in a checkpoint's order", "--prepacked/--checkpoint", default=True
    ),
)

MEASURED = dict.fromkeys(
    (
        "nvfp4_bf16",
        "mxfp4_bf16",
        "mxfp6_bf16",
        "mxfp8_bf16",
        "mxfp4_e4m3",
        "nvfp4_e4m3",
        "nvfp4",
        "mxfp4",
        "mxfp8",
        "mxfp8_mxfp6",
        "mxfp8_mxfp4",
    ),
    ("m", "n", "k"),
)
"""The names of classes of calls that `sweep.py` measures, with their sizes."""
