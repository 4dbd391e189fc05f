"""The lowest versions that pyproject.toml admits, a requirement per line: what ``make test-lowest`` installs.

Of the extras, those of the group ``dev``: the tests of the others (Spark, Ray, MLflow) are skipped.
"""

import re
import tomllib
from pathlib import Path

# Tools that only read the code: whatever version runs, the package is the same.
TOOLS = {"build", "check-wheel-contents", "mypy", "ruff", "twine"}


def lowest_versions() -> list[str]:
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    extras = settings["project"]["optional-dependencies"]
    requirements = [*settings["project"]["dependencies"], *_of_group("dev", settings["dependency-groups"], extras)]
    bounds = [re.match(r"([\w.-]+)(\[[\w,]+\])?>=([\d.]+)", requirement) for requirement in requirements]
    lowest = [f"{found[1]}{found[2] or ''}=={found[3]}" for found in bounds if found and found[1] not in TOOLS]
    return list(dict.fromkeys(lowest))


def _of_group(name: str, groups: dict[str, list[str | dict[str, str]]], extras: dict[str, list[str]]) -> list[str]:
    """The requirements of a dependency group, and of the groups and extras that it names."""
    found: list[str] = []
    for one in groups[name]:
        found += _plain(one, extras) if isinstance(one, str) else _of_group(one["include-group"], groups, extras)
    return found


def _plain(requirement: str, extras: dict[str, list[str]]) -> list[str]:
    """The requirement itself, or those of the extras that it names."""
    named = re.fullmatch(r"tierank\[([\w,]+)\]", requirement)
    if named is None:
        return [requirement]
    return [plain for extra in named[1].split(",") for one in extras[extra] for plain in _plain(one, extras)]


if __name__ == "__main__":
    print("\n".join(lowest_versions()))
