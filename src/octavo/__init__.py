"""Octavo: a paged-attention inference engine for language models.

>>> from octavo import LLM, SamplingParams
>>> llm = LLM("smollm2-135m", kv_memory="256MiB")
>>> llm.generate("The capital of France is", SamplingParams(temperature=0.0, max_tokens=1))[0].outputs[0].text
' Paris'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.errors import (
        CapacityError,
        CheckpointError,
        ConfigError,
        IntegrityError,
        OctavoError,
        RequestError,
        SnapshotError,
        StallError,
        UnsupportedModelError,
    )
    from octavo.llm import LLM
    from octavo.outputs import CompletionOutput, Logprob, OutputDelta, RequestMetrics, RequestOutput
    from octavo.sampling_params import BeamSearchParams, SamplingParams

__version__ = "0.1.0"

# Where each public name lives; loaded on first use, so that `import octavo` and `octavo --version` stay quick.
_HOMES = {
    "LLM": "octavo.llm",
    "EngineConfig": "octavo.config",
    "BeamSearchParams": "octavo.sampling_params",
    "SamplingParams": "octavo.sampling_params",
    "CompletionOutput": "octavo.outputs",
    "Logprob": "octavo.outputs",
    "OutputDelta": "octavo.outputs",
    "RequestMetrics": "octavo.outputs",
    "RequestOutput": "octavo.outputs",
    "OctavoError": "octavo.errors",
    "CapacityError": "octavo.errors",
    "CheckpointError": "octavo.errors",
    "ConfigError": "octavo.errors",
    "IntegrityError": "octavo.errors",
    "RequestError": "octavo.errors",
    "SnapshotError": "octavo.errors",
    "StallError": "octavo.errors",
    "UnsupportedModelError": "octavo.errors",
}

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CapacityError",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "IntegrityError",
    "Logprob",
    "OctavoError",
    "OutputDelta",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "SnapshotError",
    "StallError",
    "UnsupportedModelError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
