"""The price of each cache format: a model's logits against those with a bf16 cache, and needles among keys, over long contexts.

    python benchmarks/cache_quality.py                                          # on a GPU 32K tokens; without one 2K, and a smaller model
    python benchmarks/cache_quality.py --model DIR --text FILE ...              # a checkpoint and its tokenizer, by transformers
    python benchmarks/cache_quality.py --tokens 256 --rows 8 --layers 1 --out-dir /tmp/dry

A model reads a context once, by exact attention. Its keys and values are stored and restored by gemmill's ops in each format, then
the model goes on for some rows of known tokens, whose own keys and values pass the format too. `kl` is the divergence of the next
token's distribution from that of a bf16 cache, in nats, the mean over rows, and `kl_error` its standard error; `same` is the share of
rows with the same likeliest token.
Without --model the weights are random, with spectra as trained ones have (`harness/decoders.py`), and so are the tokens.

A needle is a key that a query is made for, among keys of the context that have large channels, and near it keys that resemble it.
`found` is the share of queries whose largest score is still the needle's; `kept` is the needle's weight
over its exact weight, which is a half, and `error` is that of the value read, relative to its size.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import gemmill
from gemmill.families.kv_cache.packed import KEY_FORMATS, VALUE_FORMATS, preset_format
from gemmill.tuner.device import now
from harness import devices
from harness.decoders import Checkpoint, Decoder, Layers, RandomDecoder, Sizes, tokens_of
from harness.written import write_json

RESULTS = Path(__file__).resolve().parent / "results"
PAGES = sorted((RESULTS.parents[1] / "docs").glob("**/*.md"))
FORMATS = (
    "fp8",
    "fp8_scaled",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "ultraquant_4bit",
    "k_eden4_v_eden4",
    "k_turboquant_mse4_v_turboquant_mse4",
    "k_eden4_v_eden3",
    "k_eden3_v_eden3",
    "k_turboquant_mse3_v_turboquant_mse3",
    "k_turboquant_prod3_v_turboquant_mse2",
    "k_eden2_v_eden2",
)
NEEDLES, RIVALS, ALIKE, HEAD_DIM = 64, 8, 0.95, 128
"""Queries of a needle test; keys that resemble each needle, and the cosine between them; elements of a key."""
LARGE, LARGE_SIZE = 4, 8.0
"""Channels of the needle test's keys with an offset, and its size."""
WEIGHT = 0.5
"""A needle's exact weight."""
LARGEST_E4M3 = 448.0
ZIPF = 1.1
"""The exponent by which the likelihood of random tokens falls with their rank."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """The formats of keys and of values by which a cache is measured."""

    name: str
    keys: str
    values: str
    seed: int = 7
    is_scaled: bool = False
    """Whether e4m3 has a scale for each head, by which the largest element of the context is the largest code."""

    def restored(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [tokens, heads, d] (bf16) as a cache of the format hands them back."""
        return self._keys(keys), self._values(values)

    def _keys(self, x: Tensor) -> Tensor:
        packed, scales = self._memory(x, KEY_FORMATS[self.keys].size(x.shape[-1])), self._scales(x)
        told = {"format": self.keys, "seed": self.seed, "scales": scales}
        gemmill.kv_compress_keys(packed, x.bfloat16(), **told)
        return gemmill.kv_decompress_keys(packed, x.shape[-1], **told).to(x.dtype)

    def _values(self, x: Tensor) -> Tensor:
        packed, scales = self._memory(x, VALUE_FORMATS[self.values].size(x.shape[-1])), self._scales(x)
        told = {"format": self.values, "seed": self.seed, "scales": scales}
        gemmill.kv_compress_values(packed, x.bfloat16(), **told)
        return gemmill.kv_decompress_values(packed, x.shape[-1], **told).to(x.dtype)

    def _scales(self, x: Tensor) -> Tensor | None:
        return x.float().abs().amax((0, 2)).clamp(min=2.0**-20) / LARGEST_E4M3 if self.is_scaled else None

    @staticmethod
    def _memory(x: Tensor, size: int) -> Tensor:
        return torch.empty(*x.shape[:2], size, dtype=torch.uint8, device=x.device)

    def bits(self, head_dim: int) -> float:
        """Bits of an element, scalars included."""
        size = KEY_FORMATS[self.keys].size(head_dim) + VALUE_FORMATS[self.values].size(head_dim)
        return 8 * size / (2 * head_dim)


def format_of(name: str) -> Format:
    """A format by its name, or by the name of vLLM's preset; with `_scaled` behind it each head has a scale. Raises
    ValueError for another."""
    own = name.removesuffix("_scaled")
    told = own if own.startswith("k_") else preset_format(own)
    keys, found, values = told.removeprefix("k_").partition("_v_")
    if not found or keys not in KEY_FORMATS or values not in VALUE_FORMATS:
        raise ValueError(
            f"Format {name} was asked for; formats are k_K_v_V of a K of {', '.join(KEY_FORMATS)} and a V of "
            f"{', '.join(VALUE_FORMATS)}, and vLLM's presets: choose one of these."
        )
    return Format(name=name, keys=keys, values=values, is_scaled=own != name)


def in_bf16(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as a bf16 cache hands them back."""
    return keys.bfloat16().to(keys.dtype), values.bfloat16().to(values.dtype)


@torch.inference_mode()
def divergences(decoder: Decoder, tokens: Tensor, rows: int, formats: Iterable[Format]) -> list[dict[str, str | float]]:
    """How far each format moves the logits of the last `rows` of int64 tokens [tokens]: name, kl, its standard error, same, and the
    perplexity of the tokens. The first record is of bf16, with a kl of 0."""
    context, last = tokens[:-rows], tokens[-rows:]
    past = decoder.prefill(context)

    def log_of(restored: Layers, by: Format | None) -> Tensor:
        return decoder.logits(last, restored, in_bf16 if by is None else by.restored).log_softmax(-1)

    exact = log_of([in_bf16(*layer) for layer in past], None)
    told: list[dict[str, str | float]] = [_record("bf16", exact, exact, last)]
    for format in formats:
        found = log_of([format.restored(*layer) for layer in past], format)
        told.append(_record(format.name, found, exact, last))
    return told


def _record(name: str, found: Tensor, exact: Tensor, tokens: Tensor) -> dict[str, str | float]:
    """Of log probabilities [rows, vocabulary]."""
    kl = (exact.double().exp() * (exact.double() - found.double())).sum(-1)
    following = found[:-1].gather(-1, tokens[1:, None])
    return {
        "format": name,
        "kl": _short(kl.mean()),
        "kl_error": _short(kl.std() / len(kl) ** 0.5),
        "same": _short((found.argmax(-1) == exact.argmax(-1)).double().mean()),
        "perplexity": _short(following.double().mean().neg().exp()),
    }


@torch.inference_mode()
def needles(
    length: int, formats: Iterable[Format], device: torch.device, seed: int = 0
) -> list[dict[str, str | float]]:
    """How many needles among `length` keys each format still finds: name, found, kept and error.

    `error` is that of the value that a query reads, relative to the exact one's size. The first record is of bf16.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    content, values = normal(length, HEAD_DIM), normal(length, HEAD_DIM)
    count = max(min(NEEDLES, length // (RIVALS + 1)), 1)
    places = torch.randperm(length, generator=generator)[: count * (RIVALS + 1)].reshape(count, -1)
    own = content[places[:, 0]]
    other = normal(count, places.shape[1] - 1, HEAD_DIM)
    along = (other * own[:, None]).sum(-1, keepdim=True) / own.square().sum(-1)[:, None, None]
    content[places[:, 1:]] = ALIKE * own[:, None] + (1 - ALIKE**2) ** 0.5 * (other - along * own[:, None])
    channels = torch.randperm(HEAD_DIM, generator=generator)[:LARGE]
    offset = torch.zeros(HEAD_DIM)
    offset[channels] = LARGE_SIZE
    keys = (content + offset).bfloat16()
    q, values = sharpened(own, keys), values.bfloat16()
    keys, values, q, needle = (x.to(device) for x in (keys, values, q, places[:, 0]))
    exact = _read(q, keys, values)
    told = [_needle_record("bf16", exact, exact, needle)]
    for format in formats:
        found = (x[:, 0] for x in format.restored(keys[:, None], values[:, None]))
        told.append(_needle_record(format.name, _read(q, *found), exact, needle))
    return told


def sharpened(q: Tensor, keys: Tensor) -> Tensor:
    """Queries f32 along q [needles, d], so long that the exact weight of the key that q is of is WEIGHT: by bisection."""
    low, high = torch.zeros(len(q), 1), torch.full((len(q), 1), 64.0)
    scores = q @ keys.float().T * HEAD_DIM**-0.5
    nearest = scores.argmax(-1, keepdim=True)
    for _ in range(40):
        middle = (low + high) / 2
        weight = (middle * scores).softmax(-1).gather(-1, nearest)
        low, high = torch.where(weight < WEIGHT, middle, low), torch.where(weight < WEIGHT, high, middle)
    return q * (low + high) / 2


def _read(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Weights f32 [needles, length] and the values read."""
    weights = (q @ keys.float().T * HEAD_DIM**-0.5).softmax(-1)
    return weights, weights @ values.float()


def _needle_record(
    name: str, found: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor], needle: Tensor
) -> dict[str, str | float]:
    """Of weights [needles, length] and the values read by them."""
    (weights, read), (wanted_weights, wanted) = found, exact
    kept = weights.gather(-1, needle[:, None]) / wanted_weights.gather(-1, needle[:, None])
    return {
        "format": name,
        "found": _short((weights.argmax(-1) == needle).double().mean()),
        "kept": _short(kept.mean()),
        "error": _short((read - wanted).norm() / wanted.norm()),
    }


def _short(x: Tensor) -> float:
    return float(f"{float(x):.3g}")


def random_tokens(count: int, vocabulary: int, seed: int) -> Tensor:
    """int64 tokens [count] whose likelihood falls with their rank, the first quarter once more as the last: repeated text."""
    generator = torch.Generator().manual_seed(seed)
    likelihood = (torch.arange(vocabulary, device="cpu") + 1.0) ** -ZIPF
    tokens = torch.multinomial(likelihood, count, replacement=True, generator=generator)
    tokens[count - count // 4 :] = tokens[: count // 4].clone()
    return tokens


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Options; the device decides sizes that the user leaves out."""
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="A folder with a checkpoint and a tokenizer.")
    parser.add_argument(
        "--text", type=Path, nargs="*", default=PAGES, help="Files that a checkpoint reads; default: gemmill's pages."
    )
    parser.add_argument("--tokens", type=int, default=32768 if has_gpu else 2048, help="Of the context and the rows.")
    parser.add_argument("--rows", type=int, default=256 if has_gpu else 64, help="Rows whose logits are compared.")
    parser.add_argument("--layers", type=int, default=8 if has_gpu else 4, help="Of the random model.")
    parser.add_argument("--heads", type=int, default=16 if has_gpu else 4)
    parser.add_argument("--kv-heads", type=int, default=4 if has_gpu else 2)
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda" if has_gpu else "cpu"))
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="of sources in no checkout")
    return parser.parse_args(arguments)


def table_of(rows: Sequence[dict[str, str | float]]) -> str:
    """Rows of the record as a table in Markdown."""
    names = list(rows[0])
    names.insert(0, names.pop(names.index("format")))
    lines = [[f"{row[name]:.4g}" if isinstance(row[name], float) else str(row[name]) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *lines))


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write the JSON."""
    given, date = parsed(arguments), now()
    formats = [format_of(name) for name in given.formats]
    if not 1 < given.rows < given.tokens:
        raise SystemExit(
            f"{given.rows} rows of {given.tokens} tokens were asked for; rows are at least 2 and fewer: give others."
        )
    sizes = Sizes(layers=given.layers, heads=given.heads, kv_heads=given.kv_heads)
    decoder: Decoder
    if given.model is None:
        decoder, tokens = (
            RandomDecoder(sizes, given.seed, given.device),
            random_tokens(given.tokens, sizes.vocabulary, given.seed),
        )
    else:
        decoder, tokens = Checkpoint(given.model, given.device), tokens_of(given.model, given.text, given.tokens)
    found = divergences(decoder, tokens.to(given.device), given.rows, formats)
    among = needles(given.tokens, formats, given.device, given.seed)
    rows = [logits | needle for logits, needle in zip(found, among, strict=True)]
    if given.model is None:  # random tokens have no likelihood of their own
        rows = [{key: value for key, value in row.items() if key != "perplexity"} for row in rows]
    bits = {"bf16": 16.0} | {format.name: format.bits(HEAD_DIM) for format in formats}
    record = {
        "schema_version": 1,
        "program": "benchmarks/cache_quality.py",
        "date": date,
        "commit": given.commit or devices.commit_of(RESULTS.parent),
        "environment": devices.environment(),
        "model": vars(sizes) if given.model is None else given.model.name,
        "tokens": given.tokens,
        "rows_compared": given.rows,
        "seed": given.seed,
        "rows": [{"bits": bits[str(row["format"])], **row} for row in rows],
    }
    where = "h200" if given.device.type == "cuda" else "cpu"
    path = given.out_dir / f"cache-quality-{where}-{date[:10]}.json"
    write_json(record, path)
    print(table_of(record["rows"]))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
