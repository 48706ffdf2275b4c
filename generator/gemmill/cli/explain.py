"""`gemmill explain`: which variant a call gets, and why not the others."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmill.cli import options as o
from gemmill.cli.exits import UsageError
from gemmill.cli.output import HOW_TO_MEASURE, console, print_json, short, table
from gemmill.cli.questions import Panels, take
from gemmill.questions import NONE
from gemmill.registry import questions

if TYPE_CHECKING:
    from gemmill.runtime.select import Choice, Evidence

NEAREST = 5
"""Variants that the output lists one by one."""
MOST_REASONS = 5
"""Reasons that the output lists one by one."""


def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="The op, by its name.")],
    build: o.BuildOption = None,
    everything: Annotated[bool, typer.Option("--all", help="List every other variant with its reason.")] = False,
    as_json: o.JsonOption = False,
    invariant: Annotated[
        bool,
        typer.Option("--batch-invariant", help="Keep one order of sums for every number of rows, and print its cost."),
    ] = False,
    **told: Any,
) -> None:
    """Print which variant a call gets, and why.

    With the measured row that it rests on, the five that come nearest, and how many others which rule rejected.
    Allocates nothing: reads only shapes, strides and dtypes.

    Examples:

        gemmill explain cutlass_scaled_mm -m 16 -n 4096 -k 4096

        gemmill explain cutlass_scaled_mm -m 512 -n 4096 -k 4100 --dtype s8 --bias --lda 4112

        gemmill explain cutlass_scaled_mm -m 16 -n 2048 -k 16384 --batch-invariant

        gemmill explain cutlass_scaled_mm_azp -m 16 -n 4096 -k 4096 --dtype s8 --azp token --json

        gemmill explain act_and_mul_per_block_quant -m 16 --hidden 14336 --activation gelu --group 64 --ue8m0
    """
    question = {name: None if value == NONE else value for name, value in told.items()}
    import gemmill
    from gemmill.numerics.cases import cases_of_op
    from gemmill.registry import REGISTRY
    from gemmill.runtime.checks import check
    from gemmill.runtime.choosing import Trust
    from gemmill.runtime.holding import holds_here
    from gemmill.runtime.operands import of_arguments
    from gemmill.runtime.schemas import BY_NAME
    from gemmill.runtime.select import evidence_of, passed_over
    from gemmill.runtime.serving import serving_of

    if as_json and everything:
        raise UsageError("--all with --json: that lists every other variant anyway, leave --all out")
    if op not in BY_NAME:
        raise UsageError(f"no op {op!r} to explain: there are {', '.join(BY_NAME)}")
    for option in REGISTRY.ops[op][0].questions:
        if option.required and question[option.name] is None:
            raise UsageError(f"Missing option '{option.flags}'.")
    try:
        given = cases_of_op(op).asked(op, question)
    except ValueError as error:
        raise UsageError(str(error)) from None
    loaded = gemmill.load(build)
    try:
        with gemmill.batch_invariant(invariant or holds_here()):
            choice = gemmill.explain(op, *given)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None
    needs = choice.entry and REGISTRY.choices[choice.entry.family].needs(choice.entry.config)
    of_parts = needs.family if needs else None
    evidence = None if choice.measured is None else evidence_of(choice, loaded.tuned)
    if as_json:
        print_json(_as_json(op, choice, evidence, of_parts))
        return
    passed = None
    if choice.trust is Trust.MODEL and loaded is not None:
        schema = BY_NAME[op]
        judged = check(schema, of_arguments(schema, given))
        passed = passed_over(serving_of(schema).asked(judged), loaded.tuned)
    _print_choice(choice, evidence, passed, everything, of_parts)


take(explain, questions().values())
COMMAND = Panels


def _as_json(op: str, choice: "Choice", evidence: "Evidence | None", of_parts: str | None) -> dict[str, Any]:
    """The choice for scripts: every other variant with its reason."""
    return {
        "op": op,
        "chosen": choice.entry and choice.entry.name,
        "trust": choice.trust.name.lower(),
        "launches": of_parts,
        "measured": evidence,
        "order": choice.held and str(choice.held.order),
        "order_cost": choice.cost,
        "order_loss": choice.held and choice.held.loss,
        "refused": choice.refused,
        "rejected": [{"name": other.name, "reason": other.reason} for other in choice.trace],
    }


def _of_order(choice: "Choice") -> str:
    """The order of K that a batch-invariant call keeps, and its expected cost."""
    held = choice.held
    if held is None:
        return ""
    if not held.over:
        return f"batch invariance holds the order: {held.order}; no other variant takes such calls, so it costs nothing"
    here = f"{choice.cost - 1:z.1%} at this call, " if choice.cost is not None else ""
    worst = f", {held.worst:z.1%} at worst (at {' x '.join(map(str, held.worst_at))})" if held.worst_at else ""
    return (
        f"batch invariance holds the order: {held.order}; expected to cost {here}{held.loss:z.1%} in the mean over "
        f"{held.over}{worst}"
    )


def _print_choice(
    choice: "Choice", evidence: "Evidence | None", passed: "Evidence | None", everything: bool, of_parts: str | None
) -> None:
    out = console()
    chosen = f"{choice.entry.name} ({choice.trust.name.lower()})" if choice.entry else "no variant takes this call"
    out.print(choice.refused or chosen)
    if of_parts is not None:
        out.print(f"runs its parts: launches variants that the family {of_parts} chooses, then a kernel of its own")
    if choice.held is not None:
        out.print(_of_order(choice))
    if evidence is not None:
        row = evidence.row
        sizes = " x ".join(map(str, (choice.measured or row.sizes).values()))
        runner_up = f"; {row.margin:z.1%} slower: {row.variants[1]}" if row.margin is not None else ""
        out.print(f"measured: {row.op} {sizes}, {row.us[0]:.2f} us{runner_up}")
        out.print(f"on {evidence.source.gpu}, {evidence.source.date[:10]}, in {evidence.table}")
    elif choice.trust.name == "MODEL" and choice.entry is not None:
        if passed is None:
            out.print(f"by the model, since nothing near was measured: {HOW_TO_MEASURE}")
        elif (
            set(passed.row.variants) & {other.name for other in choice.trace}
            or choice.entry.name in passed.row.variants
        ):
            sizes = " x ".join(map(str, passed.row.sizes.values()))
            out.print(
                f"by the model, which expects it to be faster here than the fastest at {passed.row.op} {sizes}: {HOW_TO_MEASURE}"
            )
        else:
            out.print(
                f"by the model: measured, winner not built: {passed.row.variants[0]}, {passed.row.us[0]:.2f} us on "
                f"{passed.source.gpu}; `gemmill build --select default` builds what tables name"
            )
    fits = sorted((other for other in choice.trace if other.us is not None), key=lambda other: other.us or 0.0)
    shown = choice.trace if everything else fits[:NEAREST]
    if shown:
        title = "not chosen" if everything else f"the nearest of {len(fits)} that fit too"
        out.print(table(title, ["variant", "why not"], [(short(other.name), other.reason) for other in shown]))
    reasons = Counter(other.reason for other in choice.trace if other.us is None)
    if reasons and not everything:
        rows = [(count, reason) for reason, count in reasons.most_common(MOST_REASONS)]
        if rest := reasons.total() - sum(count for count, _ in rows):
            rows.append((rest, f"{len(reasons) - MOST_REASONS} other reasons, which --all lists"))
        out.print(table("rejected", ["variants", "why"], rows, right=["variants"]))
