"""The documentation: code runs, links lead somewhere, and every public name is in the reference."""

import doctest
import importlib
import importlib.util
import inspect
import os
import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest

import tierank
from tierank import cli
from tierank.cli.commands import Parser

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Pages whose code is run here.
RUN = [
    ROOT / "README.md",
    *(
        DOCS / f"{name}.md"
        for name in (
            "start",
            "choosing",
            "tutorial-shop",
            "tutorial-text",
            "tutorial-compare",
            "columns",
            "weights",
            "segments",
            "notebook",
            "tuning",
            "coming-from",
            "concepts",
            "networks",
            "blend",
            "explain",
            "export",
            "linear",
            "stochastic",
            "trees",
            "experiments",
        )
    ),
]
# Pages whose code other tests run, on data of their own.
RUN_ELSEWHERE = {
    "callbacks": "test_callbacks.py",
    "clicks": "test_clicks_command.py",
    "extending": "test_extending.py",
    "metrics": "test_metrics.py",
    "retraining": "test_start.py",
    "sklearn": "test_examples.py",
    "tracking": "test_integrations.py",
    "unjudged": "test_unjudged.py",
}
# A block of code, and a comment before it that says "not run: why" or "needs: module".
BLOCK = re.compile(r"(?:<!-- (not run|needs): (.*?) -->\n)?```(python|sh)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def generated():
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generated):
    """The text of every page, by its path; those that are made from the code too."""
    found = {path: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]}
    return found | {DOCS / name: text for name, text in generated.make_pages().items()}


def should_run(condition, value):
    return condition != "not run" and (condition != "needs" or importlib.util.find_spec(value) is not None)


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")  # LightGBM from 4.7 on
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """Blocks of a page are run in their order, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__page__"}
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for condition, value, language, code in blocks:
        if not should_run(condition, value):
            continue
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
            continue
        for command in code.replace("\\\n", " ").strip().splitlines():
            program, *arguments = shlex.split(command)
            assert program == "tierank"
            assert cli.main(arguments) == 0, (command, capsys.readouterr().err)


def commands_of(text):
    """The calls of ``tierank`` in the blocks of a page that are code of a shell, or have no language."""
    blocks = [
        block
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if language in ("", "sh")
    ]
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        for part in re.split(r" (?:\||&+|>|<)(?: |$)", re.sub(r"\[(--[^]]*)\]", r"\1", line)):
            if part.startswith("tierank ") and not part.endswith(" [options]"):  # those are forms, not calls
                yield shlex.split(part, comments=True)[1:]


def test_every_command_of_every_page_can_be_parsed(pages, monkeypatch):
    """Options that no longer exist are found on pages whose commands are not run, too."""
    for module in ("options", "plugins"):  # the reader's modules are not here
        monkeypatch.setattr(f"tierank.cli.{module}.as_own", lambda text: object if ":" in text else text)
    n = 0
    for page, text in pages.items():
        for arguments in commands_of(text):
            assert Parser(cli.TIERANK, prog="tierank").parse_args(arguments), (page.name, arguments)
            n += 1
    assert n > 80


def test_no_page_with_code_is_forgotten(pages):
    """Each page with Python code is run here or by another test, or says at each block why it is not run."""
    for name, test in RUN_ELSEWHERE.items():
        assert f"{name}.md" in (ROOT / "tests" / test).read_text(), name
    for page, text in pages.items():
        if page in RUN or page.stem in RUN_ELSEWHERE:
            continue
        forgotten = [
            code for why, _, language, code in BLOCK.findall(text) if language == "python" and why != "not run"
        ]
        assert not forgotten, f"{page.name}: {forgotten[0]}"


# Links


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(text):
    """The anchors of headings, as the site makes them, and of the names in the reference."""
    found = set(re.findall(r"\{ #([\w.-]+) \}", text)) | set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).replace("`", "")
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


def test_links_and_anchors_resolve(pages):
    broken = []
    for page, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
            if re.match(r"https?://|mailto:", target):
                continue
            place, _, anchor = target.partition("#")
            path = page if not place else Path(os.path.normpath(page.parent / place))
            if path not in pages and not path.is_file():
                broken.append(f"{page.name}: {target}")
            elif anchor and path in pages and anchor not in anchors(pages[path]):
                broken.append(f"{page.name}: {target}: no such heading")
    assert not broken


def test_pages_of_the_site_stay_inside_the_docs_folder(pages):
    """A link out of the folder works on a code host, but not on the site."""
    for page, text in pages.items():
        if page.parent == DOCS:
            assert "](../" not in without_code(text), page.name


def test_lists_begin_after_an_empty_line(pages):
    """On a code host a list may follow a paragraph at once; on the site it would become part of the paragraph."""
    for page, text in pages.items():
        for block in re.split(r"\n\s*\n", without_code(text)):
            first, *others = [line for line in block.splitlines() if not line.startswith(("#", "<!--"))] or [""]
            if not re.match(r"\s*([*-]|\d+\.) ", first):
                glued = [line for line in others if re.match(r"([*-]|\d+\.) ", line)]
                assert not glued, f"{page.name}: {glued[0]}"


def test_every_page_is_in_the_menu(pages):
    menu = set(re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert menu == {page.name for page in pages if page.parent == DOCS}


# Reference


def test_every_public_name_is_in_the_reference(pages):
    page = pages[DOCS / "api.md"]
    shown = set(re.findall(r"^::: tierank\.(\w+)$", page, re.MULTILINE)) | set(re.findall(r"`tierank\.(\w+)`", page))
    assert set(tierank.__all__) <= shown
    assert set(re.findall(r"^::: tierank\.(\w+)$", page, re.MULTILINE)) <= set(tierank.__all__)


def documented_parameters(function):
    """The parameters of a docstring, with what is said of type and default."""
    section = re.search(r"\nParameters\n-+\n(.*?)(\n\n\w+\n-+\n|\Z)", inspect.getdoc(function), re.DOTALL)
    lines = [] if section is None else re.findall(r"^(\S.*?)(?: : (.*))?$", section[1], re.MULTILINE)
    return {name.lstrip("*"): kind for names, kind in lines for name in names.split(", ")}


def public_functions():
    for home in ("tierank", "tierank.clicks", "tierank.distributed"):
        with suppress(ImportError):
            owner = importlib.import_module(home)
            for name in getattr(owner, "__all__", dir(owner)):
                with suppress(ImportError):
                    if inspect.isfunction(getattr(owner, name)):
                        yield pytest.param(getattr(owner, name), id=f"{home}.{name}")
    for name in ("fit", "predict", "rank", "score", "save", "export", "permutation_importance", "match_features"):
        yield pytest.param(getattr(tierank.Ranker, name), id=f"Ranker.{name}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_docstrings_describe_every_parameter_and_its_default(function):
    documented = documented_parameters(function)
    parameters = {name: one for name, one in inspect.signature(function).parameters.items() if name != "self"}
    assert list(documented) == list(parameters)
    for name, one in parameters.items():
        if one.default is None or one.default == ():
            assert "optional" in documented[name] or "None" in documented[name] or "default" in documented[name], name
        elif one.default is not one.empty:
            assert f"default {one.default!r}".replace("'", '"') in documented[name].replace("'", '"'), name


@pytest.mark.parametrize("function", list(public_functions()))
def test_every_function_has_an_example_that_runs(function):
    if "distributed" in function.__module__:
        pytest.skip("needs a cluster, or several processes")
    if "." in function.__qualname__:
        pytest.skip("a method: the examples of the rankers show it")
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(function))
    assert any(not one.options.get(doctest.SKIP) for one in examples)


@pytest.mark.parametrize("kind", [*tierank.RANKERS.values(), tierank.TreeRanker, tierank.NetworkRanker])
def test_help_on_a_ranker_describes_its_settings_and_has_an_example(kind):
    text = inspect.getdoc(kind)
    for name, one in kind.declared_settings().items():
        assert re.search(
            rf"^{name} : \S.*, default {re.escape(repr(one.default))}\n    {re.escape(one.help)}$", text, re.M
        )
    assert doctest.DocTestParser().get_examples(text)
    assert text.index("\nParameters\n---") < text.index("\nExamples\n---")


def test_members_of_the_reference_exist(pages):
    entries = re.findall(
        r"^::: (tierank[\w.]+)\n(?: .*\n)*?      members: \[(.*)\]", pages[DOCS / "api.md"], re.MULTILINE
    )
    assert len(entries) > 10
    for path, members in entries:
        owner = tierank
        for part in path.split(".")[1:]:
            owner = getattr(owner, part)
        missing = [name for name in members.split(", ") if not hasattr(owner, name)]
        assert not missing, path


def test_members_of_the_reference_describe_their_parameters(pages):
    """A method that overrides another one may leave that to it."""
    for path, members in re.findall(
        r"^::: (tierank[\w.]+)\n(?: .*\n)*?      members: \[(.*)\]", pages[DOCS / "api.md"], re.M
    ):
        owner = tierank
        for part in path.split(".")[1:]:
            owner = getattr(owner, part)
        for name in members.split(", "):
            versions = [vars(kind)[name] for kind in inspect.getmro(owner) if name in vars(kind)]
            functions = [getattr(one, "__func__", one) for one in versions]
            if not inspect.isfunction(functions[0]):
                continue
            parameters = [one for one in inspect.signature(functions[0]).parameters if one not in ("self", "cls")]
            documented = [list(documented_parameters(one)) for one in functions if inspect.isfunction(one)]
            assert parameters in documented, f"{path}.{name}: {parameters}"


def test_the_command_reference_has_every_command_and_option(pages):
    """Each in its own section, except for the options on how data are read, which all commands share."""
    page = pages[DOCS / "commands.md"]
    *_, shared = page.split("\n## ")
    found = [(f"##{'#' * name.count(' ')} {name}", command) for name, command in cli.TIERANK.walk()]
    assert any(heading == "### clicks judge" for heading, _ in found)
    for heading, command in found:
        assert f"\n{heading}\n" in page
        section = re.split(r"\n##+ ", page.split(f"\n{heading}\n")[1])[0]
        for option in [one.flag for one in command.arguments if one.is_option]:
            assert f"`{option}" in section + shared, (heading, option)


def test_the_settings_page_has_every_setting(pages):
    page = pages[DOCS / "settings.md"]
    for ranker in (*tierank.RANKERS.values(), tierank.NetworkRanker, tierank.TreeRanker):
        assert f"{{ #{ranker.__name__} }}" in page
        for name in ranker.declared_settings():
            assert f"| `{name}` |" in page


def test_the_readme_is_short_and_names_what_newcomers_need(pages):
    text = pages[ROOT / "README.md"]
    assert len(text.split()) < 500
    for needed in ("pip install tierank", "tierank[networks]", "make demo", "make test"):
        assert needed in text
