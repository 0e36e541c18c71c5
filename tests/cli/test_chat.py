"""octavo.cli.chat: a conversation, its interruption, and what a failed answer leaves behind."""

from collections.abc import Iterator

import pytest

from cli.fake_llm import INTERRUPT, Terminal, piped
from octavo.cli.main import main
from octavo.errors import CapacityError


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch):
    """Returns a function that lets the user enter lines (an exception stands for a key) at a terminal and then Ctrl-D."""

    def install(*lines: str | type[BaseException]) -> None:
        remaining: Iterator = iter([*lines, EOFError])

        def next_line(_prompt: str) -> str:
            line = next(remaining)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr("builtins.input", next_line)
        monkeypatch.setattr("sys.stdin", Terminal())

    return install


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}


def test_each_question_carries_the_conversation(fake_llm, enter, capsys) -> None:
    llm = fake_llm("Hel", "lo")
    enter("Hi", "", "And?")
    assert main(["chat", "--system", "Be brief."]) == 0
    assert llm.asked == [[SYSTEM, user("Hi")], [SYSTEM, user("Hi"), assistant("Hello"), user("And?")]]
    assert capsys.readouterr().out == "Hello\nHello\n\n"
    assert (llm.params[0].max_tokens, llm.params[0].temperature) == (None, 0.25)  # as the model's own defaults say


def test_interrupt_stops_the_answer_and_not_the_program(fake_llm, enter) -> None:
    llm = fake_llm("Hel", INTERRUPT, "lo", " there")
    enter("Hi", "And?")
    assert main(["chat"]) == 0
    assert llm.asked[1] == [user("Hi"), assistant("Hello"), user("And?")]
    assert llm.num_streams_closed == 2


def test_interrupt_at_the_prompt_says_how_to_leave(fake_llm, enter, capsys) -> None:
    llm = fake_llm("x")
    enter(KeyboardInterrupt, "Hi")
    assert main(["chat"]) == 0
    assert "/exit" in capsys.readouterr().out
    assert llm.asked == [[user("Hi")]]


def test_clear_keeps_only_the_system_prompt(fake_llm, enter) -> None:
    llm = fake_llm("x")
    enter("one", "/clear", "two")
    assert main(["chat", "--system", "Be brief."]) == 0
    assert llm.asked[1] == [SYSTEM, user("two")]


def test_exit_leaves(fake_llm, enter) -> None:
    llm = fake_llm("x")
    enter("/exit", "one")
    assert main(["chat"]) == 0
    assert llm.asked == []


def test_failed_answer_leaves_the_conversation_as_it_was(fake_llm, enter, capsys) -> None:
    llm = fake_llm(CapacityError("too long", hint="raise kv_memory"))
    enter("one", "two")
    assert main(["chat"]) == 0
    assert llm.asked == [[user("one")], [user("two")]]
    assert "error: too long\nhint: raise kv_memory\n/clear starts over\n" in capsys.readouterr().err


def test_piped_lines_are_questions_and_errors_end_the_program(fake_llm, monkeypatch, capsys) -> None:
    llm = fake_llm("x")
    monkeypatch.setattr("sys.stdin", piped(b"one\n\ntwo\n"))
    assert main(["chat"]) == 0
    assert [messages[-1] for messages in llm.asked] == [user("one"), user("two")]
    assert capsys.readouterr().out == "x\nx\n"
    llm.pieces = [CapacityError("too long")]
    monkeypatch.setattr("sys.stdin", piped(b"three\n"))
    assert main(["chat"]) == 1
