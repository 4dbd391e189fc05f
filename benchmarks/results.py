"""The tables of docs/results.md and docs/paper.md, made from the files in docs/results.

    python -m benchmarks.results add ohsumed-default RUN    add the results of a run of `tierank cv` to docs/results
    python -m benchmarks.results                            write all tables of the two pages again

A file contains means, spreads over seeds, differences with their tests, settings, versions and CPU time; no scores, and
no paths. Tables are between `<!-- table: NAME -->` and `<!-- end -->`. Words after NAME make other tables:
`<!-- table: NAME differences ndcg@10 -->` has differences to the baseline in these metrics, and
`<!-- table: NAME paper urank uboost -->` the NDCG of these systems beside that of the paper.
"""

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

from tierank import Run

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES, FILES = (DOCS / "results.md", DOCS / "paper.md"), DOCS / "results"
_MARK = {"better": r"\*+", "worse": r"\*-"}


def add(name: str, run: Run) -> None:
    """Store the results of a run."""
    found = run.to_dict()
    found["data"] = {**found["data"], "source": None}
    FILES.mkdir(exist_ok=True)
    (FILES / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def tabulate(found: dict[str, Any]) -> str:
    """Means, spreads and marks."""
    comparison, metrics = found["comparison"], found["metrics"]
    best = {m: max(values[m]["mean"] for values in comparison["systems"].values()) for m in metrics}
    rows = []
    for system, values in comparison["systems"].items():
        cells = []
        for metric in metrics:
            mean, spread = values[metric]["mean"], found["spread"][system][metric]
            text = f"{mean:.3f}" + ("" if spread is None else f" ± {spread:.3f}")
            text = f"**{text}**" if math.isclose(mean, best[metric], abs_tol=1e-12) else text
            contrast = comparison["contrasts"].get(system, {}).get(metric)
            cells.append(text + ("" if contrast is None else _MARK.get(contrast["verdict"], "")))
        seconds = found["cpu_seconds"][system]
        rows.append([system, *cells, "-" if seconds is None else f"{seconds:.1f}"])
    lines = [[f"{comparison['baseline']} is the baseline", *metrics, "CPU s/run"], ["---"] * (len(metrics) + 2)]
    seeds = f"seed{'s' * (len(found['seeds']) > 1)} {', '.join(map(str, found['seeds']))}"
    words = f"{found['created'][:10]}, {seeds}, {comparison['n_queries']:,} queries, rule {comparison['rule']['name']}."
    return "\n".join([*map(_row, [*lines, *rows]), "", words])


def tabulate_paper(found: dict[str, Any], systems: list[str]) -> str:
    """Ours, the paper's and the difference with its verdict, in NDCG."""
    metrics = [metric for metric in found["metrics"] if metric.startswith("ndcg")]
    rows = [["", "", *metrics], ["---"] * (len(metrics) + 2)]
    for system in systems:
        means, spreads, beside = found["comparison"]["systems"][system], found["spread"][system], []
        for metric in metrics:
            one, spread = found["beside_paper"][system][metric], spreads[metric]
            beside.append(
                (
                    f"{means[metric]['mean']:.3f}" + (f" ± {spread:.3f}" if spread else ""),
                    f"{one['printed']['value']:.3f}" + r"\*" * one["printed"]["is_marked"],
                    f"{one['difference']:+.3f} {one['verdict']}".rstrip(),
                )
            )
        names = ((system, "ours"), ("", "paper"), ("", "difference"))
        rows += [[*name, *cells] for name, cells in zip(names, zip(*beside, strict=True), strict=True)]
    return "\n".join(map(_row, rows))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tabulate_differences(found: dict[str, Any], metrics: list[str]) -> str:
    """Differences to the baseline with intervals and p-values."""
    comparison = found["comparison"]
    lines = [
        f"| minus {comparison['baseline']} | metric | difference | 95% interval | p | Holm's p |",
        "|" + "---|" * 6,
    ]
    for system, contrasts in comparison["contrasts"].items():
        for metric in metrics:
            c = contrasts[metric]
            numbers = (
                f"{c['difference']:+.4f} | {c['low']:+.4f} to {c['high']:+.4f} | {_p(c['p'])} | {_p(c['adjusted_p'])}"
            )
            lines.append(f"| {system} | {metric} | {numbers} |")
    return "\n".join(lines)


def _p(p: float) -> str:
    return "< .0001" if p < 0.0001 else f"{p:.4f}"


def fill(text: str) -> str:
    """The page with all its tables written again."""

    def table(match: re.Match[str]) -> str:
        name, *asked = match[1].split()
        found = json.loads((FILES / f"{name}.json").read_text())
        kind, *words = asked or ["means"]
        if kind == "means":
            body = tabulate(found)
        else:
            body = {"differences": tabulate_differences, "paper": tabulate_paper}[kind](found, words)
        return f"<!-- table: {match[1]} -->\n{body}\n<!-- end -->"

    return re.sub(r"<!-- table: ([^>]*?) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["add"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("run", nargs="?")
    parser.add_argument("--baseline", help="what the others are compared to")
    options = parser.parse_args()
    if options.action == "add":
        add(options.name, Run.open(options.run).judged_by(baseline=options.baseline))
    for page in PAGES:
        page.write_text(fill(page.read_text()))


if __name__ == "__main__":
    main()
