"""The tables of docs/engine.md, made of benchmarks/results/engine-*.json, packed or not, which benchmarks/engine.py writes.

    python benchmarks/engine_tables.py

Writes the page between its marks: of each result tokens per second and agreement of outputs; of each
switches-engine-*.json.xz of benchmarks/engine_switches.py who serves with which switch. A test compares the page
with the results.
"""

import argparse
import json
import lzma
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine import ENGINE, OTHER, PREFILL_BATCH, PREFILL_LENGTH
from engine_switches import SWITCHES, outcome, sentences
from gemmill.writing import write_whole
from harness.stored import read_result
from served.side import SUBJECT

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "engine.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- made by benchmarks/engine_tables.py -->", "<!-- end -->"
SWITCHES_BEGIN, SWITCHES_END = "<!-- table of switches, by benchmarks/engine_tables.py -->", "<!-- end: switches -->"
NOTHING = (
    "No result has been committed yet: `benchmarks/engine.py --name engine-GPU-DATE` writes one on a machine with vLLM."
)

Json = dict[str, Any]


def tables(results: Sequence[tuple[str, Json]]) -> str:
    """Markdown of all tables. Each result has its path in the repository."""
    return "\n\n".join(part for source, record in results for part in _parts(source, record)) or NOTHING


def _parts(source: str, record: Json) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    settings = record["settings"]
    mode = "without CUDA graphs and torch.compile" if settings["eager"] else "with CUDA graphs and torch.compile"
    yield (
        f"[JSON](../{source}): {versions}; prompts of {settings['length']} tokens, {settings['tokens']} new ones, medians of "
        f"{settings['rounds']} rounds, {mode}."
    )
    for lines in (_rates(record), _steps(record), _agreement(record)):
        if text := "\n".join(lines):
            yield text


def _run(record: Json) -> str:
    """Device, date and commit, as heads of tables have them."""
    return f"{record['environment']['gpu']}, {record['date'][:10]}, {(record['commit'] or 'no commit')[:7]}"


def _rates(record: Json) -> Iterator[str]:
    batches = list(dict.fromkeys(batch for row in record["rows"] for batch in row.get("decode_tokens_per_s", {})))
    yield (
        f"| {_run(record)}: tokens per second with gemmill (ratio to vLLM without it), more is better: decode at batch | "
        f"{' | '.join([*batches, f'prefill of {PREFILL_BATCH} x {PREFILL_LENGTH}'])} |"
    )
    yield "| --- |" + " --- |" * (len(batches) + 1)
    for row in record["rows"]:
        decoded = row.get("decode_tokens_per_s", {})
        found = [*map(decoded.get, batches), row.get("prefill_tokens_per_s")]
        yield f"| {row['model']} | {' | '.join(map(_rate, found))} |"
        if OTHER in row["sides"]:
            cells = " | ".join(_rate(rates, OTHER) for rates in found)
            yield f"| {row['model']}, vLLM with {_settings(record)} | {cells} |"
    for row in record["rows"]:
        for side, why in row["failures"].items():
            yield f"| {row['model']}: {side} failed: {_cell(why)} |" + " - |" * (len(batches) + 1)


def _settings(record: Json) -> str:
    return " ".join(f"{name}={value}" for name, value in record["settings"]["other"])


def _steps(record: Json) -> Iterator[str]:
    """Of each side and batch the time of a decode step, and its part in which no kernel ran."""
    rows = [
        (f"{row['model']}, {who}", row["sides"][side]["step_kernels"])
        for row in record["rows"]
        for side, who in ((ENGINE, "vLLM"), (SUBJECT, "gemmill"), (OTHER, f"vLLM with {_settings(record)}"))
        if "step_kernels" in row["sides"].get(side, ())
    ]
    if rows:
        batches = list(dict.fromkeys(batch for _, of_batch in rows for batch in of_batch))
        yield f"| {_run(record)}: us of a decode step on the GPU (without a kernel), less is better, at batch | {' | '.join(batches)} |"
        yield "| --- |" + " --- |" * len(batches)
        for name, of_batch in rows:
            yield f"| {name} | {' | '.join(_step(of_batch.get(batch)) for batch in batches)} |"


def _step(found: Json | None) -> str:
    return "-" if found is None or found["step_us"] is None else f"{found['step_us']:.0f} ({found['idle_us']:.0f})"


def _rate(found: Json | None, side: str = SUBJECT) -> str:
    """Median and ratio. Where the side has none, vLLM's median alone."""
    if found is None:
        return "-"
    median, ratio = found["median"].get(side), found["ratio"].get(side)
    if median is None or ratio is None:
        return f"- (vLLM {_number(found['median'].get(ENGINE))})"
    return f"{_number(median)} ({ratio:.2f})"


def _number(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:200]


def _agreement(record: Json) -> Iterator[str]:
    """Each cell has positions with the same most likely token, of how many, and differences of log-probabilities."""
    sides = {ENGINE: "vLLM", SUBJECT: "gemmill", OTHER: f"vLLM with {_settings(record)}"}
    sides = {name: sides[name] for name in sides if any(name in row["sides"] for row in record["rows"])}
    compared = [name for name in sides if name != ENGINE]
    heads = [f"{sides[name]} and vLLM" for name in compared]
    heads += [f"{who}, decoded and scored" for who in sides.values()]
    yield f"| {_run(record)}: most likely token equal, more is better (difference of log-probability: median, largest) | {' | '.join(heads)} |"
    yield "| --- |" + " --- |" * len(heads)
    for row in record["rows"]:
        cells = [_agreed(row.get("agreement", {}).get(name), "most_likely_equal") for name in compared]
        cells += [_agreed(row["sides"].get(name, {}).get("with_itself"), "most_likely") for name in sides]
        yield f"| {row['model']} | {' | '.join(cells)} |"


def _agreed(found: Json | None, equal: str) -> str:
    if found is None:
        return "-"
    differences = ", ".join(f"{found[f'log_probability_{part}']:.2g}" for part in ("median", "largest"))
    return f"{found[equal]} of {found['positions']} ({differences})"


def switches(results: Sequence[tuple[str, Json]]) -> str:
    """Markdown of who serves each kind of layers with each switch."""
    return "\n".join(line for source, record in results for line in _switches(source, record)).strip() or "No result."


def _switches(source: str, record: Json) -> Iterator[str]:
    ranks = record["settings"]["ranks"]
    of_ranks = f", {ranks} ranks of tensor parallelism" if ranks > 1 else ""
    yield f"| {_run(record)}{of_ranks} ([JSON](../{source})): layers | {' | '.join(SWITCHES.values())} |"
    yield "| --- |" + " --- |" * len(SWITCHES)
    for row in record["rows"]:
        cells = [outcome(row, switch) for switch in SWITCHES]
        if len(set(cells)) > 1 or cells[0] not in ("not run", "vLLM cannot"):
            yield f"| {row['layers']} | {' | '.join(cells)} |"
    yield ""
    for row in record["rows"]:
        for why in sentences(row):
            yield f"- {row['layers']}: {_cell(why)}."
    yield ""


def page(text: str, results: Sequence[tuple[str, Json]], tried: Sequence[tuple[str, Json]] | None = None) -> str:
    """The page with new tables. Raises ValueError where a mark is missing."""
    text = _between(text, BEGIN, END, tables(results))
    return text if tried is None else _between(text, SWITCHES_BEGIN, SWITCHES_END, switches(tried))


def _between(text: str, begin: str, end: str, body: str) -> str:
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"the page lacks {begin} or {end}: put the tables between them")
    return f"{before}{begin}\n\n{body}\n\n{end}{after}"


def committed() -> list[tuple[str, Json]]:
    """The committed results, by their names."""
    found = {path: read_result(path) for path in RESULTS.glob("engine-*.json")} | _packed("engine-*.json.xz")
    return [(path.relative_to(ROOT).as_posix(), found[path]) for path in sorted(found)]


def tried() -> list[tuple[str, Json]]:
    """The results of switches, by their names."""
    found = _packed("switches-engine-*.json.xz")
    return [(path.relative_to(ROOT).as_posix(), found[path]) for path in sorted(found)]


def _packed(pattern: str) -> dict[Path, Json]:
    return {path: json.loads(lzma.decompress(path.read_bytes())) for path in RESULTS.glob(pattern)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page. Returns the exit status."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(
        arguments
    )
    write_whole(PAGE, page(PAGE.read_text(encoding="utf-8"), committed(), tried()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
