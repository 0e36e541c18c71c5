"""A `ModelSpec` as the planner sees it.

Owns: the translation, made of the engine's own tables of tensors. Must not know: file formats.
"""

import math
from collections import Counter

from octavo.models.decoder import DecoderBuffers
from octavo.models.spec import ModelSpec
from octavo.models.tensor_names import layer_shapes, outer_tensors
from octavo.planner.plan_spec import AttentionKind, Parameters, PlanSpec

MLP_PARTS = ("gate", "up", "gate_up", "down")


def plan_spec(spec: ModelSpec) -> PlanSpec:
    """Returns the planner's view of a model that the engine runs."""
    layers_of = Counter(spec.windows)
    return PlanSpec(
        architecture=spec.architecture,
        max_position=spec.max_position,
        vocab_size=spec.vocab_size,
        attention=tuple(AttentionKind(count, 2 * spec.kv_width, window) for window, count in layers_of.items()),
        workspace_width=DecoderBuffers.bytes_per_token(spec) // 4,
        parameters=count_parameters(spec),
        engine_spec=spec,
    )


def count_parameters(spec: ModelSpec) -> Parameters:
    """Returns the parameters of the tensors that loading expects."""
    table = spec.vocab_size * spec.hidden_size
    shapes = layer_shapes(spec)
    matrices = {part: math.prod(shape) for part, shape in shapes.items() if len(shape) > 1}
    mlp = sum(size for part, size in matrices.items() if part in MLP_PARTS)
    vectors = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 1)
    outer_vectors = sum(math.prod(shape) for _, shape in outer_tensors(spec, "hf", "model.").values() if len(shape) == 1)
    return Parameters(
        embedding=table,
        head=0 if spec.tied_head else table,
        attention=spec.num_layers * (sum(matrices.values()) - mlp),
        mlp=spec.num_layers * mlp,
        experts=0,
        other=spec.num_layers * vectors + outer_vectors,
    )
