"""`octavo.engine.detokenizer`: pieces of text, whatever characters the tokens cut."""

import random

import pytest

from engine.tiny_engine import ByteTokenizer
from octavo.engine.detokenizer import Detokenizer

TEXT = "plain, Größe, 日本語, \N{GRINNING FACE}!"


def pieces_of(data):
    detokenizer = Detokenizer(ByteTokenizer(), skip_special_tokens=False)
    return [*map(detokenizer.append, data), detokenizer.flush()]


def test_no_piece_ends_inside_a_character():
    pieces = pieces_of(TEXT.encode())
    assert "".join(pieces) == TEXT and "\ufffd" not in "".join(pieces)
    assert all(piece == "" or piece.isprintable() for piece in pieces)


@pytest.mark.parametrize("data", [b"\xc3A", b"\xe6\x97A\xa5", b"A\xff\xc3", b"\xf0\x9f\x98"])
def test_ascii_after_a_cut_character_comes_after_its_replacement(data):
    assert "".join(pieces_of(data)) == data.decode(errors="replace")


def test_any_bytes_give_the_text_of_all_at_once():
    source = random.Random(4)
    for _ in range(200):
        data = bytes(source.choice((*b"Az \n", 0xC3, 0xA9, 0xE6, 0x97, 0xF0, 0x9F, 0xFF)) for _ in range(12))
        assert "".join(pieces_of(data)) == data.decode(errors="replace")
