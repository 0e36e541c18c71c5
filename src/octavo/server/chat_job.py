"""A conversation on its way to the engine, whatever interface it came through.

Owns: what the fields of a conversation's request mean for prompt, sampling and grammar. Must not know: how answers are written.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.engine.beam_search import greedy_params
from octavo.sampling_params import SamplingParams
from octavo.server.call import Call
from octavo.server.context import ServerContext
from octavo.server.errors import invalid
from octavo.server.generation import make_submissions
from octavo.server.protocol.chat import ChatRequest
from octavo.server.sampling import make_beams, make_params
from octavo.server.submission import Submission
from octavo.server.tools import Tools, read_tools

if TYPE_CHECKING:
    from octavo.engine.grammar import Grammar


@dataclass(frozen=True)
class ChatJob:
    """What the engine is to do for one conversation.

    Attributes:
        submissions: its only prompt.
        tools: what the model may call; None: nothing.
    """

    submissions: list[Submission]
    params: SamplingParams
    tools: Tools | None


async def prepare_chat(body: ChatRequest, context: ServerContext, call: Call) -> ChatJob:
    """Returns a conversation ready for the engine.

    Raises:
        ApiError, RequestError: a field cannot be honoured.
    """
    context.model.check_name(body.model)
    num_top = body.num_logprobs()
    beams = make_beams(body, context.config, max_tokens=body.answer_limit())
    if beams is None:
        params = make_params(body, context.model.default_params, context.config, max_tokens=body.answer_limit(), logprobs=num_top)
    else:
        params = greedy_params(beams)
    tools = read_tools(body, context.model.chat_template)
    prompt = body.prompt_of(body.messages)
    if tools is not None:  # what announces a call may be a control token
        prompt, params = replace(prompt, tools=tools.descriptions), replace(params, skip_special_tokens=False)
    text, token_ids = await context.model.encode_chat(prompt)
    if context.config.log_prompts:
        call.log["prompts"] = [text]
    grammar = await context.grammars.compile(_grammar(body, tools))
    return ChatJob(make_submissions(body, call, [token_ids], params, grammar=grammar, beams=beams), params, tools)


def _grammar(body: ChatRequest, tools: Tools | None) -> "Grammar | None":
    """Returns what the answer must follow: its form, or the calls that it must consist of."""
    grammar, calls = body.grammar(), tools.forced_grammar() if tools is not None else None
    if grammar is not None and tools is not None:
        raise invalid(grammar.field, f"{grammar.field} is not allowed together with tools: a call would not fit it")
    if calls is not None:
        body.check_whole(calls)
    return grammar or calls
