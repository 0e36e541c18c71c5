"""octavo.cli.main: errors are one line and a hint with the right exit status, and commands are found."""

import subprocess
import sys
from importlib import import_module

import click
import pytest

from octavo.cli.main import COMMANDS, main
from octavo.errors import CapacityError, CheckpointError, ConfigError, OctavoError, RequestError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Returns a function that makes `octavo generate` raise the given exception."""

    def install(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr("octavo.cli.generate.command", click.Command("generate", callback=fail))

    return install


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("wrong", hint="do this"), 2),
        (RequestError("wrong", field="top_p", hint="do this"), 2),
        (CapacityError("wrong", hint="do this"), 1),
        (CheckpointError("wrong", hint="do this"), 1),
        (OctavoError("wrong", hint="do this"), 1),
    ],
)
def test_error_is_one_line_and_a_hint(failing, capsys, error: OctavoError, status: int) -> None:
    failing(error)
    assert main(["generate"]) == status
    captured = capsys.readouterr()
    assert captured.err == "error: wrong\nhint: do this\n"
    assert captured.out == ""


def test_interrupt_ends_without_a_traceback(failing, capsys) -> None:
    failing(KeyboardInterrupt())
    assert main(["generate"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["generat"], ["generate", "--no-such-option"], ["generate", "x", "--block-size", "17"]])
def test_wrong_use_names_the_help(arguments: list[str], capsys) -> None:
    assert main(arguments) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert "--help" in hint


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_explains_itself(name: str, capsys) -> None:
    assert import_module(f"octavo.cli.{name}").command.name == name
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: octavo {name}")


def test_help_lists_the_commands(capsys) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in shown] == []


def test_help_imports_no_command() -> None:
    code = "import sys; from octavo.cli.main import main; main(['--help']); sys.exit('octavo.cli.generate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_no_arguments_show_the_help(capsys) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: octavo")


def test_fault_of_the_system_is_one_line(failing, capsys) -> None:
    failing(PermissionError(13, "Permission denied", "/root/x"))
    assert main(["generate"]) == 1
    assert capsys.readouterr().err == "error: [Errno 13] Permission denied: '/root/x'\n"


def test_reader_that_leaves_is_no_error() -> None:
    code = "import sys; from octavo.cli.main import main; sys.exit(main(['generate', '--help']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # before anything is written
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1
