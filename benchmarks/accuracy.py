"""How much each weight format and KV format changes what a model says of a text.

Usage: python benchmarks/accuracy.py [--models NAME …] [--text FILE] [--num-threads N] [--output FILE]

Perplexity of a text (`accuracy.txt` unless given), and how far the distributions of the next token are from those of the same files
held in bf16: the mean Kullback-Leibler divergence over the text's positions, in nats, and the share of positions where the most
likely token is another. A quantised file keeps its bits in "auto"; int8 and int4 are measured where the file's weights are dense.
Nothing is timed. Prints a table, and one line of JSON last.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from octavo import SamplingParams
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.loading import build_engine, read_spec
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.cpu_count import default_num_threads
from octavo.kernels.host_tensor import QUANTISED_ENCODINGS
from octavo.models.model_files import ModelFiles, load_model_files
from octavo.models.weights import load_weights
from reporting import add_output_argument, save

TEXT = Path(__file__).with_name("accuracy.txt")
REFERENCE = ("bf16", "bf16")
DENSE_CASES = [("fp32", "fp32"), ("int8", "bf16"), ("int4", "bf16"), ("bf16", "int8")]  # (weights, kv_dtype)
QUANTISED_CASES = [("fp32", "fp32"), ("auto", "bf16"), ("auto", "int8")]


@dataclass(frozen=True)
class Accuracy:
    """One format's figures.

    Attributes:
        divergence: mean Kullback-Leibler divergence from the reference, in nats.
        changed_share: of the positions, those with another most likely token.
    """

    weights: str
    kv_dtype: str
    weights_bytes: int
    perplexity: float
    divergence: float
    changed_share: float


class WatchedOperations(CpuOperations):
    """The C++ operations, which also keep the distributions that log-probabilities are read from.

    Attributes:
        distributions: natural logarithms, float32 ``[positions, vocab]`` each.
    """

    def __init__(self, num_threads: int):
        super().__init__(num_threads)
        self.distributions: list[np.ndarray] = []

    def logprobs(
        self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, top_ids: np.ndarray, top_logprobs: np.ndarray
    ) -> None:
        """See `Operations.logprobs`."""
        self.distributions.append(log_softmax(logits[rows]))
        super().logprobs(logits, rows, chosen, top_ids, top_logprobs)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the logarithms of the distributions of some rows."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def read_distributions(engine: Engine, operations: WatchedOperations, token_ids: list[int]) -> np.ndarray:
    """Returns the distribution of the token after each of the text's but the last."""
    operations.distributions.clear()
    engine.add_request(token_ids, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0))
    while engine.has_unfinished_requests:
        engine.step()
    return np.concatenate(operations.distributions)


def perplexity(distributions: np.ndarray, token_ids: list[int]) -> float:
    """Returns the perplexity of a text whose first token is given."""
    following = np.array(token_ids[1:])
    return float(np.exp(-distributions[np.arange(len(following)), following].mean(dtype=np.float64)))


def divergence(reference: np.ndarray, other: np.ndarray) -> float:
    """Returns the mean Kullback-Leibler divergence of ``other`` from ``reference``."""
    terms = (np.exp(row) @ (row - other_row) for row, other_row in zip(reference, other, strict=True))
    return float(np.mean(list(terms), dtype=np.float64))


def changed_share(reference: np.ndarray, other: np.ndarray) -> float:
    """Returns the share of positions with another most likely token."""
    return float((reference.argmax(axis=1) != other.argmax(axis=1)).mean())


def distributions_of(
    files: ModelFiles, weights: str, kv_dtype: str, token_ids: list[int], num_threads: int
) -> tuple[np.ndarray, int]:
    """Returns the distributions that a model in some formats has over a text, and the bytes of its weights."""
    operations = WatchedOperations(num_threads)
    spec = read_spec(files)
    packed = load_weights(spec, files.source, operations, weights)
    length = len(token_ids) + 1
    config = EngineConfig(weights=weights, kv_dtype=kv_dtype, max_model_len=length, max_num_seqs=1)
    engine = build_engine(config, files, spec, packed, operations)
    return read_distributions(engine, operations, token_ids), packed.num_bytes


def compare(name: str, text: str, num_threads: int) -> Iterator[Accuracy]:
    """Yields the figures of every format that differs for a model's files, the reference first."""
    files = load_model_files(name)
    token_ids = files.tokenizer.encode(text)
    is_quantised = any(files.source.entry(tensor).encoding in QUANTISED_ENCODINGS for tensor in files.source.names())
    reference, num_bytes = distributions_of(files, *REFERENCE, token_ids, num_threads)
    yield Accuracy(*REFERENCE, num_bytes, perplexity(reference, token_ids), 0.0, 0.0)
    for weights, kv_dtype in QUANTISED_CASES if is_quantised else DENSE_CASES:
        found, num_bytes = distributions_of(files, weights, kv_dtype, token_ids, num_threads)
        figures = perplexity(found, token_ids), divergence(reference, found), changed_share(reference, found)
        yield Accuracy(weights, kv_dtype, num_bytes, *figures)


def main() -> None:
    """Measures every model, prints a table, saves the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[DEFAULT_MODEL])
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    add_output_argument(parser)
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8")
    report = {"text": arguments.text.name, "text_characters": len(text), "models": []}
    for model in arguments.models:
        print(f"{Path(model).name}\n{'weights':10}{'KV':8}{'MiB':>8}{'perplexity':>12}{'divergence':>12}{'other token':>13}")
        rows = []
        for row in compare(model, text, arguments.num_threads):
            print(
                f"{row.weights:10}{row.kv_dtype:8}{row.weights_bytes / 2**20:8.0f}{row.perplexity:12.4f}{row.divergence:12.6f}"
                f"{row.changed_share:13.2%}",
                flush=True,
            )
            rows.append(asdict(row))
        report["models"].append({"model": Path(model).name, "rows": rows})
    save("accuracy", {**report, "instruction_set": CpuOperations(1).instruction_set}, arguments.output)


if __name__ == "__main__":
    main()
