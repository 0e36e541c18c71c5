"""The probes of the machine: plausible, and not optimised away."""

import pytest

from octavo.kernels.cpu import instruction_sets, probe_machine


def test_rates_are_those_of_a_processor():
    rates = probe_machine(1, read_bytes=64 * 2**20)
    assert 0.1 < rates.read_gb_per_s < 2_000
    # One core: no processor does 512 operations per cycle at 6 GHz; a probe that the compiler folded away would.
    assert 0.5 < rates.fp32_gflop_per_s < 3_000
    has_bf16 = instruction_sets()[0] in ("avx512_bf16", "neon_bf16")
    assert (rates.bf16_gflop_per_s > 0) == has_bf16
    assert (rates.int8_gop_per_s > 0) == has_bf16


def test_refuses_no_threads():
    with pytest.raises(ValueError, match="num_threads"):
        probe_machine(0)
