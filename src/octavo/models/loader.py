"""A model, ready to compute with.

Owns: the order in which a model's files become a spec, weights, tokenizer and template. Must not know: KV memory, requests.
"""

from dataclasses import dataclass

from octavo.kernels.operations import Operations
from octavo.models.chat_template import ChatTemplate
from octavo.models.files import GenerationDefaults, ModelFiles
from octavo.models.spec import ModelSpec
from octavo.models.tokenizer import Tokenizer
from octavo.models.weights import DecoderWeights, load_weights


@dataclass(frozen=True)
class LoadedModel:
    """Everything that is the model's own."""

    spec: ModelSpec
    weights: DecoderWeights
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: GenerationDefaults
