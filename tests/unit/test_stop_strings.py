"""`octavo.engine.stop_strings`: what is found, released and held back."""

import random

import pytest

from octavo.engine.stop_strings import StopStringMatcher


def run(pieces, stops, *, include_match=False):
    matcher = StopStringMatcher(stops, include_match=include_match)
    released = []
    for piece in pieces:
        text, matched = matcher.feed(piece)
        released.append(text)
        if matched is not None:
            return released, matched
    released.append(matcher.flush())
    return released, None


@pytest.mark.parametrize("stop", ["D", "DE", "EF", "BCDEFGH", "J", "CDEFGHIJ"])
@pytest.mark.parametrize("include_match", [False, True])
def test_a_stop_string_is_found_wherever_token_edges_fall(stop, include_match):
    text = "ABCDEFGHIJ"
    released, matched = run(["AB", "CDE", "FG", "HIJ"], [stop], include_match=include_match)
    end = text.index(stop) + (len(stop) if include_match else 0)
    assert (matched, "".join(released)) == (stop, text[:end])


def test_nothing_of_a_stop_string_is_sent_before_it_is_complete():
    released, matched = run(["AB", "CDE", "FG", "HIJ"], ["DEFGHIJ"])
    assert released == ["AB", "C", "", ""]
    assert matched == "DEFGHIJ"


def test_a_near_miss_is_released_in_full():
    released, matched = run(["AB", "CDE", "FG", "HIJ"], ["DEFGHIX"])
    assert ("".join(released), matched) == ("ABCDEFGHIJ", None)


def test_a_stop_string_that_never_begins_holds_nothing_back():
    released, _ = run(["AB", "CDE", "FG"], ["z" * 60])
    assert released == ["AB", "CDE", "FG", ""]


def test_the_stop_string_that_ends_first_wins():
    assert run(["ABCDEFGH"], ["BCDEFGH", "D"]) == (["ABC"], "D")


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_into_pieces_does_not_matter(seed):
    random_source = random.Random(seed)
    text = "".join(random_source.choices("ab", k=40))
    stops = ["".join(random_source.choices("ab", k=random_source.randint(2, 7))) for _ in range(3)]
    whole = run(list(text), stops)
    cuts = sorted(random_source.sample(range(1, 40), 6))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, 40], strict=True)]
    cut = run(pieces, stops)
    assert ("".join(cut[0]), cut[1]) == ("".join(whole[0]), whole[1])
