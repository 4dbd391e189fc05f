"""Completion in shells: made from the parser, and tried in those that are installed."""

import shutil
import subprocess

import pytest

import tierank
from tierank import cli


def script(capsys, shell):
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def in_bash(script, *words):
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    asked = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _tierank; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_names(capsys):
    text = script(capsys, "bash")
    assert in_bash(text, "tierank", "tr") == ["train"]
    assert in_bash(text, "tierank", "") == list(commands())
    assert in_bash(text, "tierank", "train", "umar") == ["umart"]
    assert set(in_bash(text, "tierank", "train", "umart", "--v")) == {"--valid"}
    assert in_bash(text, "tierank", "evaluate", "a b.txt", "x", "--rule", "light") == ["lightgbm"]
    assert "ndcg@10" in in_bash(text, "tierank", "compare", "--metric", "nd")
    assert in_bash(text, "tierank", "clicks", "pro") == ["propensities"]
    assert "--bootstrap" in in_bash(text, "tierank", "clicks", "propensities", "--boot")
    assert in_bash(text, "tierank", "list", "sett") == ["settings"]
    assert in_bash(text, "tierank", "predict", "model", "fi") == []  # files


def commands():
    return {name: command for name, command in cli.TIERANK.walk() if " " not in name}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_there(capsys, shell):
    text = script(capsys, shell)
    for name, command in commands().items():
        assert name in text
        for option in [one.flag for one in command.arguments if one.is_option]:
            assert option in text or f"-l {option[2:]} " in text or f"-s {option[1:]} " in text, (name, option)
    for ranker in tierank.RANKERS:
        assert ranker in text
    if shutil.which(shell) is not None:
        check = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
        assert check.returncode == 0, check.stderr


def test_other_shells_are_refused(capsys):
    assert cli.main(["completion", "fsh"]) == 2
    assert "unknown shell 'fsh': did you mean 'fish'?" in capsys.readouterr().err
