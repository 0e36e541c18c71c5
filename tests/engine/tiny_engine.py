"""A tiny random model in a real engine, with bytes for tokens."""

from dataclasses import replace

import numpy as np

from octavo.config import EngineConfig
from octavo.engine.loading import ModelParts, build_engine
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.host_tensor import HostTensor
from octavo.models.control_text import ControlText
from octavo.models.generation_defaults import GenerationDefaults
from octavo.models.model_files import ModelFiles
from octavo.models.rotary import default_rotary
from octavo.models.spec import ModelSpec
from octavo.models.tensor_names import expected_tensors
from octavo.models.weights import load_weights

NUM_TOKENS = 256
WINDOW = 24
MAX_LEN = 256

SPEC = ModelSpec(
    architecture="llama",
    vocab_size=NUM_TOKENS,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=MAX_LEN,
    rms_norm_eps=1e-5,
    windows=(None, WINDOW, None),
    rotaries=(default_rotary(10000.0, 16),),
    layer_rotaries=(0, 0, 0),
    query_scale=0.25,
    tied_head=True,
)

# Gemma 3's order of layers and its parts: five windows to one full layer, two rope bases, q/k norm, norms around both halves.
GEMMA_SPEC = replace(
    SPEC,
    num_layers=7,
    windows=(WINDOW,) * 5 + (None, WINDOW),
    rotaries=(default_rotary(10000.0, 16), default_rotary(1000000.0, 16)),
    layer_rotaries=(0,) * 5 + (1, 0),
    activation="gelu_tanh",
    sandwich_norm=True,
    norm_weight_offset=1.0,
    qk_norm=True,
    embedding_scale=8.0,
)


class ByteTokenizer:
    """One token for each byte; token 0 is the only control token."""

    vocab_size = NUM_TOKENS
    bos_id = None
    eos_id = 0
    control_text = ControlText(None, {})  # no text spells the control token

    def encode(self, text, *, add_special_tokens=True, parse_special=False):
        return list(text.encode())

    encode_chat = encode

    def decode(self, ids, *, skip_special_tokens=True):
        return b"".join(self.token_bytes(token) for token in ids if token or not skip_special_tokens).decode(errors="replace")

    def token_bytes(self, token_id):
        return bytes([token_id])

    def ordinary_text(self, token_id):
        assert token_id >= 0, "no token has a negative id"
        return chr(token_id) if 0 < token_id < 128 else None

    def token_text(self, token_id):
        return self.token_bytes(token_id).decode(errors="replace")

    def all_token_bytes(self):
        return [self.token_bytes(token) for token in range(NUM_TOKENS)]

    def is_special(self, token_id):
        return token_id == 0


class RandomSource:
    """Weights drawn by name, scaled so that logits differ clearly."""

    naming = "hf"

    def __init__(self, spec, seed):
        self._shapes = {entry.name: entry.shape for entry in expected_tensors(spec, "hf", ["model.embed_tokens.weight"]).values()}
        self._seed = seed

    def names(self):
        return self._shapes.keys()

    def shape(self, name):
        return self._shapes[name]

    def read(self, name):
        shape = self._shapes[name]
        index = list(self._shapes).index(name)
        values = np.random.default_rng([self._seed, index]).standard_normal(shape, np.float32)
        values = 1 + 0.1 * values if len(shape) == 1 else values * (1.5 / np.sqrt(shape[1]))
        return HostTensor(name, shape, "f32", values.astype(np.float32))


class TinyModels:
    """Packed weights, kept between engines: packing is the slow part."""

    def __init__(self):
        self._packed = {}

    def engine(self, *, spec=SPEC, num_threads=1, operations=None, end_token_ids=(), weights="fp32", weights_seed=3, **settings):
        """Returns a new engine; ``settings`` are fields of `EngineConfig`."""
        config = EngineConfig(
            **{
                "kv_dtype": "fp32",
                "kv_memory": "64 blocks",
                "max_num_seqs": 16,
                "max_num_batched_tokens": 64,
                "seed": 1,
                "weights": weights,
            }
            | settings
        )
        parts = self.parts(spec=spec, num_threads=num_threads, operations=operations, weights=weights, weights_seed=weights_seed)
        defaults = GenerationDefaults(end_token_ids=frozenset(end_token_ids))
        return build_engine(config, *parts._replace(files=replace(parts.files, defaults=defaults)))

    def parts(self, *, spec=SPEC, num_threads=1, operations=None, weights="fp32", weights_seed=3):
        """Returns the model without an engine."""
        key = (spec, num_threads, weights, weights_seed, type(operations))
        if key not in self._packed:
            operations = operations or CpuOperations(num_threads)
            self._packed[key] = operations, load_weights(spec, RandomSource(spec, weights_seed), operations, weights)
        operations, packed = self._packed[key]
        files = ModelFiles(
            name="tiny",
            source=RandomSource(spec, weights_seed),
            description={},
            tokenizer=ByteTokenizer(),
            chat_template=None,
            defaults=GenerationDefaults(),
        )
        return ModelParts(files, spec, packed, operations)


def full_attention(spec=SPEC):
    """Returns the spec without sliding windows."""
    return replace(spec, windows=(None,) * spec.num_layers)


def run(engine, *, max_steps=2000, check=True):
    """Runs an engine until nothing is in flight; returns its number of steps."""
    for step in range(max_steps):
        if not engine.has_unfinished_requests:
            return step
        engine.step()
        if check:
            engine.check_invariants()
    raise AssertionError(f"{engine.num_unfinished_requests} requests are unfinished after {max_steps} steps")


def answer(engine, prompts, params, **options):
    """Runs prompts to their end and returns their outputs in order; ``params`` is one for all or one for each."""
    listed = params if isinstance(params, list) else [params] * len(prompts)
    ids = [engine.add_request(prompt, its, **options) for prompt, its in zip(prompts, listed, strict=True)]
    run(engine)
    return [engine.take(request_id) for request_id in ids]


def bits(output):
    """Returns what must be equal bit for bit: tokens and log-probabilities of every choice."""
    return [
        (choice.token_ids, [[(token, value.logprob, value.rank) for token, value in entry.items()] for entry in choice.logprobs])
        for choice in output.outputs
    ]
