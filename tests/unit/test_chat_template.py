"""`ChatTemplate`: what templates on the model hub use, and what a template must not do."""

import re

import pytest

from octavo.errors import CheckpointError, RequestError
from octavo.models import chat_template
from octavo.models.chat_template import ChatTemplate

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = [{"role": "user", "content": "Hi"}]


def render(source: str, messages=USER, **options) -> str:
    return ChatTemplate({"default": source}, bos_token="<s>", eos_token="</s>").render(messages, **options)


def test_a_conversation_is_rendered_with_and_without_the_next_message_s_beginning():
    expected = "<|im_start|>user\nHi<|im_end|>\n"
    assert render(CHATML) == expected + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == expected


def test_templates_find_what_they_use():
    assert render("{{ bos_token }}{{ eos_token }}") == "<s></s>"
    assert render("{{ tools | tojson }}", tools=[{"name": "<f>", "é": 1}]) == '[{"name": "<f>", "é": 1}]'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert re.fullmatch(r"\d{4}-\d\d", render("{{ strftime_now('%Y-%m') }}"))
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hi!"
    assert render("{{ enable_thinking }}", arguments={"enable_thinking": False}) == "False"
    assert render("{% if tools is none or not tools %}none{% endif %}") == "none"


def test_blocks_leave_no_blank_lines():
    assert render("a\n    {% if true %}\nb\n    {% endif %}\nc") == "a\nb\nc"


def test_arguments_cannot_replace_the_messages():
    assert render("{{ messages[0].content }}", arguments={"messages": [], "tools": 1}) == "Hi"


def test_a_template_s_refusal_is_a_request_error_with_its_text():
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        (CHATML, [{"role": "user", "content": None}]),
        (CHATML, [{"role": "user"}]),
        ("{{ messages[0]['content'] | length }}", [{"content": 3}]),
        ("{{ messages[3].content }}", USER),
        ("{{ 1 / (messages | length - 1) }}", USER),
        ("{{ messages[0].content.nothing() }}", USER),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", USER),
        ("{% for i in range(10000000) %}{% endfor %}", USER),
    ],
)
def test_a_template_that_fails_on_the_messages_is_a_request_error(source, messages):
    with pytest.raises(RequestError, match="cannot render"):
        render(source, messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source):
    with pytest.raises(RequestError):
        render(source)
    assert len(USER) == 1


def test_a_template_that_is_no_jinja_is_a_checkpoint_error():
    with pytest.raises(CheckpointError, match="no valid Jinja"):
        render("{% if %}")


def test_the_rendered_text_is_bounded(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 1000)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 10 }}{% endfor %}{% endfor %}"
    with pytest.raises(RequestError, match="more than 1000 characters"):
        render(endless)


def test_with_tools_the_template_for_tools_is_taken():
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[]) == "plain"
    assert template.render(USER, tools=[{}]) == "tools"
    assert ChatTemplate({"default": "plain"}).render(USER, tools=[{}]) == "plain"


def test_a_missing_default_template_is_named():
    with pytest.raises(CheckpointError, match="named 'default', only rag"):
        ChatTemplate({"rag": ""}).render(USER)


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (CHATML, "The answer", "<|im_start|>assistant\nThe answer"),
        (CHATML, "The answer ", "<|im_start|>assistant\nThe answer "),
        (CHATML.replace("message['content']", "message['content'] | trim"), "The answer \n", "<|im_start|>assistant\nThe answer"),
    ],
)
def test_the_last_message_can_be_continued(source, content, expected):
    messages = [{"role": "assistant", "content": content}]
    assert render(source, messages, add_generation_prompt=False, continue_final_message=True) == expected


def test_continuing_needs_a_last_message_that_the_template_keeps():
    options = {"add_generation_prompt": False, "continue_final_message": True}
    for messages, source in [([], CHATML), ([{"role": "assistant", "content": "x"}], "nothing"), ([{"content": None}], "nothing")]:
        with pytest.raises(RequestError) as caught:
            render(source, messages, **options)
        assert caught.value.field == "continue_final_message"
    with pytest.raises(RequestError, match="excludes"):
        render(CHATML, add_generation_prompt=True, continue_final_message=True)
