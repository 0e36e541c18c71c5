"""Whose blocks are taken when there are none left.

Owns: the choice. Must not know: how a sequence loses its blocks.
"""

from collections.abc import Iterable

from octavo.scheduler.sequence import Sequence


def preemption_cost(sequence: Sequence) -> tuple[int, int, int, int]:
    """Returns what orders sequences, the first to lose its blocks first.

    Least important first; then the least often preempted, so that none is thrown out again and again; then what costs the fewest
    tokens to compute again; then the youngest.
    """
    return -sequence.priority, sequence.num_preemptions, sequence.num_computed_tokens, -sequence.arrival


def choose_victim(claimant: Sequence, oldest: Sequence | None, others: Iterable[Sequence]) -> Sequence | None:
    """Returns the cheapest of the others whose blocks the claimant may take, itself as a last resort; None if there is none.

    Args:
        oldest: may take from anybody, others from none that matters more; nobody takes from it.
        others: running sequences that have no tokens in this step yet.
    """
    candidates = [sequence for sequence in others if sequence is not claimant and sequence is not oldest]
    if claimant is not oldest:
        candidates = [sequence for sequence in candidates if sequence.priority >= claimant.priority]
    if candidates:
        return min(candidates, key=preemption_cost)
    return claimant if claimant is not oldest else None
