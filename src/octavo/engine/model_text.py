"""What of a model concerns text rather than numbers.

Owns: one record. Must not know: where it comes from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.models.chat_template import ChatTemplate
from octavo.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelText:
    """One model as its users see it.

    Attributes:
        name: how the model is called towards clients.
        tokenizer: text to token ids and back.
        chat_template: None when the model has none.
        sampling: the sampling parameters that its makers recommend, by name.
    """

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
