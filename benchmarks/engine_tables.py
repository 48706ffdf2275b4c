"""The tables of docs/engine.md, of what benchmarks/engine.py has written to benchmarks/results/engine-*.json.

    python benchmarks/engine_tables.py

Writes what stands between the marks of the page: of each result tokens per second, agreement of outputs, and who serves; of each
switches-engine-*.json.xz of benchmarks/engine_switches.py who serves with which switch. A test holds the page to the results that are
there.
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
DESCRIBE = ("Config", "Enum", "Type", "Activation", "Backend", "Manager")
"""Ends of the names of classes that describe a layer and serve nothing."""

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
    for lines in (_rates(record), _agreement(record), _served(record)):
        yield "\n".join(lines)


def _run(record: Json) -> str:
    """Device, date and commit, as heads of tables have them."""
    return f"{record['environment']['gpu']}, {record['date'][:10]}, {(record['commit'] or 'no commit')[:7]}"


def _rates(record: Json) -> Iterator[str]:
    yield f"| {_run(record)}: tokens per second | vLLM | with gemmill | ratio |"
    yield "| --- | --- | --- | --- |"
    for row in record["rows"]:
        found = [(f"decode at batch {batch}", rates) for batch, rates in row.get("decode_tokens_per_s", {}).items()]
        if "prefill_tokens_per_s" in row:
            found.append((f"prefill of {PREFILL_BATCH} x {PREFILL_LENGTH}", row["prefill_tokens_per_s"]))
        for what, rates in found:
            medians = [_number(rates["median"].get(name)) for name in (ENGINE, SUBJECT)]
            ratio = rates["ratio"].get(SUBJECT)
            yield f"| {row['model']}, {what} | {' | '.join(medians)} | {'-' if ratio is None else f'{ratio:.2f}'} |"
        for side, why in row["failures"].items():
            yield f"| {row['model']}: {side} failed | {_cell(why)} | - | - |"


def _number(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:200]


def _agreement(record: Json) -> Iterator[str]:
    other = " ".join(f"{name}={value}" for name, value in record["settings"]["other"])
    names = {SUBJECT: "gemmill and vLLM", OTHER: f"vLLM with {other} and vLLM"}
    yield f"| {_run(record)}: outputs of | positions | most likely token equal | difference of log-probability: median | largest |"
    yield "| --- | --- | --- | --- | --- |"
    for row in record["rows"]:
        for name, found in row.get("agreement", {}).items():
            differences = (f"{found[f'log_probability_{part}']:.2g}" for part in ("median", "largest"))
            counts = f"{found['positions']} | {found['most_likely_equal']}"
            yield f"| {row['model']}: {names[name]} | {counts} | {' | '.join(differences)} |"
        for name, side in row["sides"].items():
            if (found := side.get("with_itself")) is not None:
                differences = (f"{found[f'log_probability_{part}']:.2g}" for part in ("median", "largest"))
                who = {ENGINE: "vLLM", SUBJECT: "gemmill", OTHER: f"vLLM with {other}"}[name]
                what = f"{row['model']}: {who}, decoded and scored"
                yield f"| {what} | {found['positions']} | {found['most_likely']} | {' | '.join(differences)} |"


def _served(record: Json) -> Iterator[str]:
    yield f"| {_run(record)}: model | layers and who serves them with gemmill |"
    yield "| --- | --- |"
    for row in record["rows"]:
        classes = row["sides"].get(SUBJECT, {}).get("served", {}).get("classes", {})
        told = ", ".join(
            f"{count} of `{name}`" for name, count in sorted(classes.items()) if not name.endswith(DESCRIBE)
        )
        yield f"| {row['model']} | {told or 'none'} |"


def switches(results: Sequence[tuple[str, Json]]) -> str:
    """Markdown of who serves each kind of layers with each switch."""
    return "\n".join(line for source, record in results for line in _switches(source, record)).strip() or "No result."


def _switches(source: str, record: Json) -> Iterator[str]:
    ranks = record["settings"]["ranks"]
    of_ranks = f", {ranks} ranks of tensor parallelism" if ranks > 1 else ""
    yield f"| {_run(record)}{of_ranks} ([JSON](../{source})): layers | {' | '.join(SWITCHES.values())} |"
    yield "| --- |" + " --- |" * len(SWITCHES)
    for row in record["rows"]:
        yield f"| {row['layers']} | {' | '.join(outcome(row, switch) for switch in SWITCHES)} |"
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
    """The results that are there, by their names."""
    return [(path.relative_to(ROOT).as_posix(), read_result(path)) for path in sorted(RESULTS.glob("engine-*.json"))]


def tried() -> list[tuple[str, Json]]:
    """The results of switches, by their names."""
    return [
        (path.relative_to(ROOT).as_posix(), json.loads(lzma.decompress(path.read_bytes())))
        for path in sorted(RESULTS.glob("switches-engine-*.json.xz"))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page. Returns the exit status."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(
        arguments
    )
    write_whole(PAGE, page(PAGE.read_text(encoding="utf-8"), committed(), tried()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
