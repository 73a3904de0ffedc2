"""Variables, hints for mistakes, and the help of the command line."""

from __future__ import annotations

import pytest
import typer

from autoddp import cli
from autoddp.options import Options
from tests.cli.test_cli import asked
from tests.support.cli import run_cli

__all__ = ["asked"]  # a fixture


@pytest.fixture
def setenv(no_leaks):
    """Set a variable, and undo that before the check for leaks."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch.setenv


def test_options_take_precedence_over_variables(asked, setenv):
    given = {"NPROC": "3", "HANG_TIMEOUT": "60", "QUIET": "1", "DISABLE": "files,folders"}
    given |= {"NNODES": "2", "MASTER_ADDR": "h", "VERBOSE": "no", "REPORT": "", "VIEW": "local"}
    for name, text in given.items():
        setenv(f"AUTODDP_{name}", text)
    want = Options(
        nproc=2,
        placement="sharded",
        nnodes=2,
        master_addr="h",
        hang_timeout=60,
        quiet=True,
        disable=("files", "folders"),
    )
    assert asked("-n", "2", "--view", "global", "s.py")[1] == want


def test_a_misspelled_variable_is_reported(asked, setenv, capfd):
    setenv("AUTODDP_HANGTIMEOUT", "60")
    setenv("AUTODDP_OPTIONS_OF_MINE", "60")
    asked("s.py")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("is set, but there is no such option; did you mean AUTODDP_HANG_TIMEOUT?")


PARSES = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr'); p.parse_args()"


def test_an_option_after_the_script_gives_a_hint_if_the_script_fails(tmp_path):
    (tmp_path / "s.py").write_text(PARSES)
    done = run_cli("run", "s.py", "--nproc", 4, cwd=tmp_path)
    assert done.rc == 2
    assert done.ours[-1] == (
        "[autoddp] --nproc comes after s.py, so it was passed to the script; options of autoddp "
        "come before it: autoddp run --nproc 4 s.py"
    )
    done = run_cli("run", "s.py", "--learning", 4, cwd=tmp_path)
    assert (done.rc, "comes after" in done.err) == (2, False)


def test_nproc_after_a_script_without_a_parser_gives_a_hint(tmp_path):
    (tmp_path / "s.py").write_text("print('trained')")
    done = run_cli("run", "s.py", "-n", 2, "--nproc=2", cwd=tmp_path)
    assert (done.rc, done.out) == (0, "trained\n")
    assert done.ours[-1].endswith(" come before it: autoddp run --nproc=2 s.py")
    done = run_cli("run", "--nproc", 1, "s.py", "--nproc", 4, "--hang-timeout", 9, cwd=tmp_path)
    assert (done.rc, "comes after" in done.err) == (0, False)


def test_a_missing_command_gives_a_hint(capfd):
    assert cli.command(["train.py", "--lr", "3"]) == 2
    said = "train.py is not a command of autoddp; to run it: autoddp run train.py"
    assert said in capfd.readouterr().err


COMMANDS = typer.main.get_command(cli.app).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_and_two_examples_in_80_columns(name, setenv, capsys):
    setenv("COLUMNS", "80")
    assert cli.command([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.partition("Examples")[2].count("autoddp") >= 2
    options = [option for option in COMMANDS[name].params if option.param_type_name == "option"]
    for option in options:
        assert option.opts[0] in text
        assert option.is_flag or option.metavar, option.name
        assert option.help.endswith("."), option.name
        assert option.help[0].isupper() or option.help.startswith("SCRIPT"), option.name


def test_version():
    assert run_cli("--version").out == f"autoddp {__import__('autoddp').__version__}\n"
