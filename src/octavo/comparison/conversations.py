"""The conversations that are compared: one system prompt, many questions, answers of different lengths.

Owns: their texts and lengths. Must not know: who answers.
"""

import random
from dataclasses import dataclass

SYSTEM_PROMPT = (
    "You are the night librarian of a small town. People come to you with questions of every kind, and you answer each of "
    "them in a few plain sentences, as you would to a friend across the desk. You say what is known, you say when something "
    "is not known, and you never make up a book, a date or a name. If a question has a short answer, give the short answer "
    "first and the reason after it. If it asks for a list, give at most three entries. You do not use headings, you do not "
    "flatter, and you do not repeat the question. When somebody seems to be in trouble, you tell them kindly where they can "
    "find help. It is late and the reading room is quiet, so keep your voice low and your sentences short."
)
TOPICS = (
    *("the moon", "bread", "bees", "rivers", "glass", "maps", "salt", "clocks", "trees", "wool", "iron", "tea"),
    *("snow", "bridges", "owls", "paper", "chess", "wheat", "tides", "ink", "honey", "volcanoes", "kites", "canals"),
    *("foxes", "silk", "lighthouses", "apples", "thunder", "windmills", "pearls", "the alphabet"),
)
QUESTIONS = (
    "What should everybody know about {}?",
    "What would you read to a child about {}?",
    "What do people most often get wrong about {}?",
    "Who first wrote about {}, and why?",
)
MAX_CONVERSATIONS = len(TOPICS) * len(QUESTIONS)
MEAN_ANSWER_TOKENS, SIGMA = 80, 0.6  # log-normal, as answers are: many short ones, few long ones
MIN_ANSWER_TOKENS, MAX_ANSWER_TOKENS = 16, 320


@dataclass(frozen=True)
class Conversation:
    """One system prompt and question, and how many tokens the answer is to have."""

    topic: str
    messages: tuple[dict[str, str], ...]
    num_answer_tokens: int


def make_conversations(num_conversations: int, seed: int) -> list[Conversation]:
    """Returns up to `MAX_CONVERSATIONS` conversations; the seed draws the lengths of their answers."""
    source = random.Random(seed)
    conversations = []
    for index in range(num_conversations):
        topic, question = TOPICS[index % len(TOPICS)], QUESTIONS[index // len(TOPICS)]
        messages = ({"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question.format(topic)})
        drawn = round(MEAN_ANSWER_TOKENS * source.lognormvariate(-(SIGMA**2) / 2, SIGMA))
        conversations.append(Conversation(topic, messages, min(max(drawn, MIN_ANSWER_TOKENS), MAX_ANSWER_TOKENS)))
    return conversations
