"""octavo.cli.generate: where the prompt comes from and what is written."""

import pytest

from cli.fake_llm import INTERRUPT, Terminal, piped
from octavo.cli.generate import DEFAULT_MAX_TOKENS
from octavo.cli.main import main
from octavo.errors import CheckpointError


def test_writes_the_answer_and_nothing_else(fake_llm, capsys) -> None:
    llm = fake_llm("Par", "is", ".")
    assert main(["generate", "The capital of France is", "--model", "x", "--temperature", "0"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("Paris.\n", "")
    assert llm.asked == ["The capital of France is"]
    assert llm.settings == {"model": "x"}
    assert (llm.params[0].temperature, llm.params[0].max_tokens) == (0, DEFAULT_MAX_TOKENS)


@pytest.mark.parametrize("arguments", [[], ["-"]], ids=["left out", "dash"])
def test_reads_a_piped_prompt(fake_llm, monkeypatch, arguments: list[str]) -> None:
    llm = fake_llm("x")
    monkeypatch.setattr("sys.stdin", piped(b"two\nlines\n"))
    assert main(["generate", *arguments]) == 0
    assert llm.asked == ["two\nlines"]


def test_without_prompt_at_a_terminal_says_what_to_do(fake_llm, monkeypatch, capsys) -> None:
    fake_llm("x")
    monkeypatch.setattr("sys.stdin", Terminal())
    assert main(["generate"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: there is no prompt: give one as an argument or on standard input",
        "hint: octavo generate --help shows what is allowed",
    ]


def test_interrupt_keeps_what_came_and_ends_with_130(fake_llm, capsys) -> None:
    llm = fake_llm("one", INTERRUPT, " two", " three")
    assert main(["generate", "x"]) == 130
    assert capsys.readouterr().out == "one two\n"
    assert llm.num_streams_closed == 1


def test_error_of_the_engine_is_one_line(fake_llm, capsys) -> None:
    fake_llm(CheckpointError("tensor x is missing", hint="fetch the file again"))
    assert main(["generate", "x"]) == 1
    assert capsys.readouterr().err == "error: tensor x is missing\nhint: fetch the file again\n"


def test_bad_sampling_value_names_the_field(fake_llm, capsys) -> None:
    fake_llm("x")
    assert main(["generate", "x", "--top-p", "7"]) == 2
    assert "top_p=7.0" in capsys.readouterr().err


def test_input_that_is_no_text_is_named(fake_llm, monkeypatch, capsys) -> None:
    fake_llm("x")
    monkeypatch.setattr("sys.stdin", piped(b"good\n\xff\xfe\n"))
    assert main(["generate"]) == 2
    assert capsys.readouterr().err.startswith("error: line 2 of standard input is not UTF-8 text\nhint: ")
