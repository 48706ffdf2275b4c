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
from served.tiny import KINDS

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "engine.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- made by benchmarks/engine_tables.py -->", "<!-- end -->"
SWITCHES_BEGIN, SWITCHES_END = "<!-- table of switches, by benchmarks/engine_tables.py -->", "<!-- end: switches -->"
NOTHING = (
    "No result has been committed yet: `benchmarks/engine.py --name engine-GPU-DATE` writes one on a machine with vLLM."
)

_NOT_RUN = "not run"

Json = dict[str, Any]


def tables(results: Sequence[tuple[str, Json]]) -> str:
    """Markdown of all tables: settings of each run, then tables whose rows name the run. Each result has its path in the
    repository.
    """
    if not results:
        return NOTHING
    records = [record for _, record in results]
    parts = (_runs(results), _rates(records), _steps(records), _agreement(records))
    return "\n\n".join(text for lines in parts if (text := "\n".join(lines)))


def _runs(results: Sequence[tuple[str, Json]]) -> Iterator[str]:
    yield "| run | versions | mode; prompt tokens, new ones, rounds |"
    yield "| --- | --- | --- |"
    for source, record in results:
        versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
        settings = record["settings"]
        mode = "without CUDA graphs and torch.compile" if settings["eager"] else "with CUDA graphs and torch.compile"
        how = f"{mode}; {settings['length']}, {settings['tokens']}, {settings['rounds']}"
        yield f"| [{_run(record)}](../{source}) | {versions} | {how} |"


def _run(record: Json) -> str:
    """Device, date and commit of a run."""
    return f"{record['environment']['gpu']}, {record['date'][:10]}, {_commit(record)}"


def _commit(record: Json) -> str:
    return str(record["commit"] or "no commit")[:7]


def _head(records: Sequence[Json]) -> str:
    """Devices and dates, as heads of tables have them; rows have the commits."""
    when = list(dict.fromkeys(f"{record['environment']['gpu']}, {record['date'][:10]}" for record in records))
    return f"{'; '.join(when)}; runs by their commits"


def _rows(records: Sequence[Json]) -> Iterator[tuple[Json, Json, str]]:
    """Each record and row, with the row's name."""
    for record in records:
        yield from ((record, row, f"{row['model']}, {_commit(record)}") for row in record["rows"])


def _rates(records: Sequence[Json]) -> Iterator[str]:
    rows = list(_rows(records))
    batches = list(dict.fromkeys(batch for _, row, _ in rows for batch in row.get("decode_tokens_per_s", {})))
    batches.sort(key=int)
    yield (
        f"| {_head(records)}: tokens per second with gemmill (ratio to vLLM without it), more is better: decode at batch | "
        f"{' | '.join([*batches, f'prefill of {PREFILL_BATCH} x {PREFILL_LENGTH}'])} |"
    )
    yield "| --- |" + " --- |" * (len(batches) + 1)
    for record, row, name in rows:
        decoded = row.get("decode_tokens_per_s", {})
        found = [*map(decoded.get, batches), row.get("prefill_tokens_per_s")]
        yield f"| {name} | {' | '.join(map(_rate, found))} |"
        for side, who in _sides(record).items():
            if side not in (ENGINE, SUBJECT) and side in row["sides"]:
                yield f"| {name}, {who} | {' | '.join(_rate(rates, side) for rates in found)} |"
    for _, row, name in rows:
        for side, why in row["failures"].items():
            yield f"| {name}: {side} failed: {_cell(why)} |" + " - |" * (len(batches) + 1)


def _sides(record: Json) -> dict[str, str]:
    """The engines that a record may have, by their names, in words."""
    other = " ".join(f"{name}={value}" for name, value in record["settings"]["other"])
    alone = "GEMMILL_VLLM=0"
    also = {
        name: f"{'vLLM' if alone in name.split(';') else 'gemmill'} with "
        + " ".join(part for part in name.split(";") if part != alone)
        for name in record["settings"].get("also", ())
    }
    return {ENGINE: "vLLM", SUBJECT: "gemmill", OTHER: f"vLLM with {other}"} | also


def _steps(records: Sequence[Json]) -> Iterator[str]:
    """Of each side and batch the time of a decode step, and its part in which no kernel ran."""
    steps = [
        (record, f"{name}, {who}", row["sides"][side]["step_kernels"])
        for record, row, name in _rows(records)
        for side, who in _sides(record).items()
        if "step_kernels" in row["sides"].get(side, ())
    ]
    if steps:
        batches = sorted({batch for _, _, of_batch in steps for batch in of_batch}, key=int)
        head = _head([record for record, _, _ in steps])
        yield f"| {head}: us of a decode step on the GPU (without a kernel), less is better, at batch | {' | '.join(batches)} |"
        yield "| --- |" + " --- |" * len(batches)
        for _, name, of_batch in steps:
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


def _agreement(records: Sequence[Json]) -> Iterator[str]:
    """Each cell has positions with the same most likely token, of how many, and differences of log-probabilities."""
    found = [(name, dict(_agreements(record, row))) for record, row, name in _rows(records)]
    heads = sorted(
        dict.fromkeys(head for _, cells in found for head in cells), key=lambda head: head.endswith("scored")
    )
    yield (
        f"| {_head(records)}: most likely token equal, more is better (difference of log-probability: median, largest) "
        f"| {' | '.join(heads)} |"
    )
    yield "| --- |" + " --- |" * len(heads)
    for name, cells in found:
        yield f"| {name} | {' | '.join(cells.get(head, '-') for head in heads)} |"


def _agreements(record: Json, row: Json) -> Iterator[tuple[str, str]]:
    """The cells of a row, by their heads."""
    for side, who in _sides(record).items():
        if any(side in other["sides"] for other in record["rows"]):
            if side != ENGINE:
                yield f"{who} and vLLM", _agreed(row.get("agreement", {}).get(side), "most_likely_equal")
            yield f"{who}, decoded and scored", _agreed(row["sides"].get(side, {}).get("with_itself"), "most_likely")


def _agreed(found: Json | None, equal: str) -> str:
    if found is None:
        return "-"
    differences = ", ".join(f"{found[f'log_probability_{part}']:.2g}" for part in ("median", "largest"))
    return f"{found[equal]} of {found['positions']} ({differences})"


def switches(results: Sequence[tuple[str, Json]]) -> str:
    """Markdown of who serves each kind of layers with each switch, and why others stay with the engine."""
    if not results:
        return "No result."
    return "\n".join([*_switches(results), "", *_reasons(results)]).strip()


def _switches(results: Sequence[tuple[str, Json]]) -> Iterator[str]:
    links = ", ".join(f"[{_commit(record)}](../{source}){_ranks(record)}" for source, record in results)
    yield f"| {_head([record for _, record in results])} ({links}): layers | {' | '.join(SWITCHES.values())} |"
    yield "| --- |" + " --- |" * len(SWITCHES)
    for name, cells in _cells(results).items():
        if len(set(cells)) > 1 or cells[0] not in (_NOT_RUN, "vLLM cannot"):
            yield f"| {name} | {' | '.join(cells)} |"


def _cells(results: Sequence[tuple[str, Json]]) -> dict[str, list[str]]:
    """The cells of each kind of layers, by its words and the commits of its runs. A run adds to those before it in the
    list, of as many ranks, what they have not tried."""
    found: dict[tuple[str, int], tuple[list[str], list[str]]] = {}
    for record, row in _rows_of_layers(results):
        cells = [outcome(row, switch) for switch in SWITCHES]
        commits, before = found.setdefault((row["layers"], record["settings"]["ranks"]), ([], [_NOT_RUN] * len(cells)))
        if any(was == _NOT_RUN != cell for was, cell in zip(before, cells, strict=True)):
            commits.append(_commit(record))
        before[:] = [cell if was == _NOT_RUN else was for was, cell in zip(before, cells, strict=True)]
    return {", ".join([layers, *commits]): cells for (layers, _), (commits, cells) in found.items()}


def _rows_of_layers(results: Sequence[tuple[str, Json]]) -> Iterator[tuple[Json, Json]]:
    for _, record in results:
        yield from ((record, row) for row in record["rows"])


def _ranks(record: Json) -> str:
    ranks = record["settings"]["ranks"]
    return f" of {ranks} ranks of tensor parallelism" if ranks > 1 else ""


def _reasons(results: Sequence[tuple[str, Json]]) -> Iterator[str]:
    """A line for each reason, with the layers that have it."""
    layers: dict[str, list[str]] = {}
    for _, row in _rows_of_layers(results):
        for why in sentences(row):
            layers.setdefault(_cell(why), []).append(row["layers"])
    run = {row["layers"] for _, row in _rows_of_layers(results)}
    layers["not run"] = [kind.layers for kind in KINDS.values() if kind.layers not in run]
    for why, names in ((why, names) for why, names in layers.items() if names):
        yield f"- {'; '.join(dict.fromkeys(names))}: {why.rstrip('.')}."


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
    """The results of switches, the latest first: a cell is of the last run that tried it."""
    found = _packed("switches-engine-*.json.xz")
    ordered = sorted(found, key=lambda path: (found[path]["date"], path), reverse=True)
    return [(path.relative_to(ROOT).as_posix(), found[path]) for path in ordered]


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
