"""The lowest versions that pyproject.toml admits, a requirement per line: what ``make test-lowest`` installs.

Of the extras, those of ``dev``: the tests of the others (Spark, Ray, MLflow) are skipped.
"""

import re
import tomllib
from pathlib import Path

# Tools that only read the code: whatever version runs, the package is the same.
TOOLS = {"build", "check-wheel-contents", "mypy", "ruff", "twine"}


def lowest_versions() -> list[str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *_of_extra("dev", project["optional-dependencies"])]
    bounds = [re.match(r"([\w.-]+)(\[[\w,]+\])?>=([\d.]+)", requirement) for requirement in requirements]
    return [f"{found[1]}{found[2] or ''}=={found[3]}" for found in bounds if found and found[1] not in TOOLS]


def _of_extra(name: str, extras: dict[str, list[str]]) -> list[str]:
    """The requirements of an extra, and of the extras that it names."""
    found: list[str] = []
    for requirement in extras[name]:
        named = re.fullmatch(r"tierank\[([\w,]+)\]", requirement)
        found += [one for extra in named[1].split(",") for one in _of_extra(extra, extras)] if named else [requirement]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    print("\n".join(lowest_versions()))
