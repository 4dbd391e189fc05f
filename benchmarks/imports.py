"""The graph of imports between the modules of tierank, and their sizes.

``python -m benchmarks.imports`` prints a table; ``--dot`` prints the graph for Graphviz.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "tierank"


def top_module(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def graph() -> tuple[dict[str, set[str]], Counter[str], Counter[str]]:
    """The other modules that each module imports, its number of files, and of lines."""
    edges: dict[str, set[str]] = defaultdict(set)
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        module, text = top_module(path), path.read_text(encoding="utf-8")
        files[module] += 1
        lines[module] += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tierank."):
                edges[module].add(str(node.module).split(".")[1])
        edges[module].discard(module)
    return edges, files, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dot", action="store_true", help="the graph for Graphviz")
    edges, files, lines = graph()
    if parser.parse_args().dot:
        print("digraph tierank {\n  rankdir=BT;")
        print("\n".join(f"  {one} -> {other};" for one in sorted(edges) for other in sorted(edges[one])))
        print("}")
        return
    print("| module | files | lines | imports |\n|---|---:|---:|---|")
    for module in sorted(files, key=lambda name: len(edges[name])):
        print(f"| {module} | {files[module]} | {lines[module]} | {', '.join(sorted(edges[module]))} |")
    print(f"\n{sum(files.values())} files, {sum(lines.values())} lines")


if __name__ == "__main__":
    main()
