"""The shape of the package: imports point one way, heavy libraries stay at home, public names agree."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tierank
from tierank.extras import EXTRAS

SOURCE = Path(tierank.__file__).parent

# From the bottom of the house to the roof: a module may import those that stand before it.
LAYERS = [
    "errors",
    "extras",
    "settings",
    "display",
    "files",
    "arrays",
    "workers",
    "kernels",
    "data",
    "io",
    "metrics",
    "transforms",
    "paper",
    "losses",
    "networks",
    "export",
    "rankers",
    "clicks",
    "distributed",
    "experiments",
    "report",
    "serve",
    "integrations",
    "cli",
    "__main__",
]
HOMES = {
    "numba": {"kernels"},
    "torch": {"paper", "losses", "networks", "rankers", "distributed", "integrations"},
    "lightgbm": {"rankers"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "msgspec": {"serve"},
    "matplotlib": {"clicks", "report"},
    "mlflow": {"integrations"},
    "pyterrier": {"integrations"},
    "tensorboardX": {"integrations"},
    "sentence_transformers": {"data", "integrations"},
    "huggingface_hub": {"data"},
}


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield pytest.param(path, parts[0] if parts[0] != "__init__" else None, id="/".join(parts))


def imported(path: Path) -> set[str]:
    """Everything a file imports, wherever in it, except for type checkers alone."""
    names = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body.clear()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {
                f"{node.module}.{alias.name}" if node.module == "tierank" else str(node.module) for alias in node.names
            }
    return names


@pytest.mark.parametrize(("path", "module"), list(modules()))
def test_imports_point_one_way(path, module):
    for name in imported(path):
        package, _, inner = name.partition(".")
        if package in HOMES:
            assert module in HOMES[package], f"{path.name} imports {package}"
        if package == "tierank" and module is not None:
            other = inner.split(".")[0]
            if other in ("__version__", module):
                continue
            assert other in LAYERS, f"{other} has no place in LAYERS"
            assert LAYERS.index(other) < LAYERS.index(module), f"{module} imports {other}, which stands above it"


def borrowed(path: Path) -> set[str]:
    """The names beginning with an underscore that a file takes from modules of tierank."""
    tree = ast.parse(path.read_text())
    found, own = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "tierank":
            own |= {alias.asname or alias.name for alias in node.names}
            found |= {alias.name for alias in node.names}
    # Of a module that is imported whole, such as kernels.letor_text.
    found |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in own
    }
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def private_accesses(path: Path) -> set[str]:
    """Attributes with an underscore of anything but ``self``, ``cls`` and objects that the file itself defines."""
    tree = ast.parse(path.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_this(node.value)}
    own |= {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not is_this(node.value)
        and node.attr not in own | PUBLIC
    }


PUBLIC = {"_asdict", "_fields", "_make", "_replace", "_exit"}  # names of named tuples and of os
# Libraries whose privates are used, each in one place that says which and why.
OF_LIBRARIES = {
    "distributed/spark",
    "kernels/compiling",
    "rankers/lightgbm",
}


def is_this(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_nobody_touches_the_privates_of_another_module():
    found = {
        ("/".join(path.relative_to(SOURCE).with_suffix("").parts), name)
        for path in SOURCE.rglob("*.py")
        for name in private_accesses(path)
    }
    assert not {pair for pair in found if pair[0] not in OF_LIBRARIES}


def test_options_are_named_by_the_command_line_alone():
    """Messages of lower modules name arguments of Python; the command line renders them as options."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "cli"):
            continue
        tree = ast.parse(path.read_text())
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, documented) and ast.get_docstring(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                found |= {(path.relative_to(SOURCE).as_posix(), option) for option in OPTION.findall(node.value)}
    # A command to paste: of curl, and of tierank itself.
    assert found == {("kernels/compiling.py", "--to")}


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def test_names_with_an_underscore_stay_in_their_module():
    found = {
        ("/".join(path.relative_to(SOURCE).with_suffix("").parts), name)
        for path in SOURCE.rglob("*.py")
        for name in borrowed(path)
    }
    assert not found


def test_the_page_on_architecture_lists_the_modules_in_their_order():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    assert re.findall(r"^\| `(\w+)/?` \|", page, re.MULTILINE) == LAYERS


def test_every_module_has_a_layer():
    found = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir()} - {
        "__init__",
        "__pycache__",
        "py",
    }
    assert found - {"py.typed"} == set(LAYERS)


def test_public_names_exist_and_type_checkers_see_the_same():
    for name in tierank.__all__:
        assert getattr(tierank, name) is not None
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(alias.asname, node.module) for node in block.body for alias in node.names if node.module != "tierank"}
    assert seen == {(name, f"tierank.{home}") for name, home in tierank._HOMES.items()}
    modules = {alias.asname for node in block.body for alias in node.names if node.module == "tierank"}
    assert all(getattr(tierank, name).__name__ == f"tierank.{name}" for name in modules)
    assert set(dir(tierank)) == set(tierank.__all__)


def test_names_of_the_docs_are_found_after_import_tierank_alone():
    """Each in a package that has loaded nothing else, as a name may work only after another module loaded its home."""
    docs = (path.read_text(encoding="utf-8") for path in (SOURCE.parents[1] / "docs").glob("*.md"))
    modules = {path.stem for path in SOURCE.iterdir()}
    # Not ":::", which tells the generator of the reference where a class is defined.
    names = {
        found for text in docs for found in re.findall(r"(?<![\w.])(?<!::: )tierank((?:\.[A-Za-z_]\w*){2,})", text)
    }
    names = {name for name in names if name.split(".")[1] in modules}
    assert {".losses.Batch", ".clicks.read", ".integrations.tensorboard.TensorBoard"} <= names
    code = f"""if True:
        import importlib, importlib.util, sys
        from functools import reduce
        for name in {sorted(names)}:
            for one in [one for one in sys.modules if one.partition(".")[0] == "tierank"]:
                del sys.modules[one]
            import tierank
            try:
                reduce(getattr, name.split(".")[1:], tierank)
            except tierank.MissingExtraError:
                pass
            except AttributeError:
                if importlib.util.find_spec("tierank" + name) is None:  # the page names a module, to read or import
                    print(name)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_version_stands_in_one_place():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/tierank/__init__.py"


def test_the_image_serves_by_options_that_exist():
    text = (Path(__file__).parents[1] / "Dockerfile").read_text(encoding="utf-8")
    program, command, *rest = json.loads(text[text.rindex("CMD ") + 4 :])
    assert program == "tierank"
    parsed = [sys.executable, "-m", "tierank", command, *rest]
    done = subprocess.run(parsed, capture_output=True, text=True)
    assert done.returncode == 2
    assert "/models/model" in done.stderr  # all else is understood: only the model is missing


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tierank.nothing


def test_a_similar_name_is_suggested():
    done = subprocess.run([sys.executable, "-c", "import tierank; tierank.Lambdamart"], capture_output=True, text=True)
    assert "Did you mean: 'LambdaMART'?" in done.stderr


def test_networks_do_not_load_the_compiler_of_torch_or_sympy():
    """They would take a second of CPU time, or more, in each process that trains or loads a model."""
    torch = pytest.importorskip("torch")
    # Version 2.4 of torch loads sympy itself.
    unwanted = {"torch._dynamo"} if torch.__version__.startswith("2.4.") else {"torch._dynamo", "sympy"}
    code = f"""if True:
        import sys, tempfile, torch, tierank
        before = set(sys.modules)
        data = tierank.make_ranking(8, n_features=3, mean_length=5, max_length=9)
        for ranker in (tierank.URank(max_epochs=1), tierank.UrBoost(max_epochs=1, n_learners=1)):
            with tempfile.TemporaryDirectory() as folder:
                ranker.fit(data).save(folder + "/model")
                tierank.load(folder + "/model").predict(data)
        print({unwanted} & (set(sys.modules) - before))
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_import_is_light():
    heavy = ["numpy", "scipy", "numba", "lightgbm", "sklearn", "rich", *EXTRAS]
    code = f"import sys, tierank, tierank.cli; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
