"""The lowest versions that pyproject.toml admits, a requirement per line: what ``make test-lowest`` installs."""

import re
import tomllib
from pathlib import Path

# Tools that only read the code: whatever version runs, the package is the same.
TOOLS = {"mypy", "ruff"}


def lowest_versions() -> list[str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    bounds = [re.match(r"([\w.-]+)(\[[\w,]+\])?>=([\d.]+)", requirement) for requirement in requirements]
    return [f"{found[1]}{found[2] or ''}=={found[3]}" for found in bounds if found and found[1] not in TOOLS]


if __name__ == "__main__":
    print("\n".join(lowest_versions()))
