"""When a beam search is over: by the finished answers, the best that a running beam can reach, and nothing else."""

import pytest

from octavo import BeamSearchParams
from octavo.engine.beam_search import BeamSearch

END = 1


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "running_logprob", "goes_on"),
    [
        (True, 1.0, -0.05, False),
        # answers score -1.0 and -1.2 / 2 = -0.6; the running beam has -1.3 / 2 now, and -1.3 / 4 at the end
        (False, 1.0, -0.2, True),
        (False, 0.0, -0.2, False),
        ("never", 0.0, -0.2, False),
        # answers score -1.0 and -1.2 * 2 = -2.4; the running beam has -1.15 * 2 now, which only falls
        (False, -1.0, -0.05, True),
        ("never", -1.0, -0.05, True),
        ("never", -1.0, -0.2, False),
    ],
)
def test_a_search_goes_on_while_a_running_beam_can_still_score_above_an_answer(
    early_stopping, length_penalty, running_logprob, goes_on
):
    params = BeamSearchParams(num_beams=2, max_tokens=4, length_penalty=length_penalty, early_stopping=early_stopping)
    search = BeamSearch(params, [END], 4)
    search.advance([[]], [[(END, -1.0), (5, -1.1), (6, -3.0)]])
    live = search.advance([[5], [6]], [[(END, -0.1), (7, running_logprob)], [(8, -1.0)]])
    assert len(search.finished) == 2
    assert bool(live) is goes_on


@pytest.mark.parametrize(("early_stopping", "goes_on"), [(False, False), ("never", True)])
def test_never_counts_on_the_whole_length_where_longer_answers_score_higher(early_stopping, goes_on):
    search = BeamSearch(BeamSearchParams(num_beams=2, max_tokens=4, early_stopping=early_stopping), [END], 4)
    search.advance([[]], [[(END, -0.5), (5, -1.1), (6, -3.0)]])
    live = search.advance([[5], [6]], [[(END, -0.1), (7, -0.2)], [(8, -1.0)]])
    assert [answer.score for answer in search.finished] == pytest.approx([-0.5, -0.6])
    assert bool(live) is goes_on
