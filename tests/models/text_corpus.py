"""Texts on which tokenizers tend to disagree: scripts, emoji, code, white space, digits, special text."""

import random

SCRIPTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Voilà l'été à Zürich: cœur, naïve, façade, Ångström, señor, São Tomé.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ο καλύτερος τρόπος να προβλέψεις το μέλλον είναι να το δημιουργήσεις.",
    "敏捷的棕色狐狸跳过了懒狗。我喜欢学习,也喜欢编程!",
    "いろはにほへと ちりぬるを。カタカナとひらがな、漢字。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "שלום עולם, מה שלומך היום?",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "Xin chào, tiếng Việt có rất nhiều dấu: ườ ẫ ỷ",
    "e\u0301 is é, A\u030a is Å, q\u0307\u0323 reordered",
    "ﬁ ligature, ½ fraction, ² superscript, Ⅷ roman, ١٢٣ arabic digits, 一二三",
    "ẞ ß İ i̇ ı ſ K Ω",
]
EMOJI = [
    "😀😃😄 hello 👋🏽 world 🌍",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 🇩🇪🇫🇷 flags, 👨🏿‍🚀",
    "❤️ vs ❤, ©️ ™ ® ☃️ 1️⃣",
    "𝕋𝕙𝕖 𝔮𝔲𝔦𝔠𝔨 𝒷𝓇ℴ𝓌𝓃 𓀀 𐍈",
]
CODE = [
    "def f(x):\n    return x ** 2  # squared\n\n\nprint(f(3))\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\r\n",
    "SELECT * FROM t WHERE a='b' AND c>=10.5e-3;--",
    '{"key": [1, 2.5, null, true], "nested": {"a\\n": "\\u00e9"}}',
    "<div class='a'>  <p>text</p>\n</div><!-- x --><table><tr></tr></table>",
    "x=[1,2,\r\n3]; y = ~x & 0xFF | (z << 3) ^ w; a->b::c",
    "$HOME/.config/*.toml && echo \"$(ls -la | grep '^d')\" >> /dev/null 2>&1",
]
SPACES = [
    "",
    " ",
    "  ",
    "   three",
    "trailing   ",
    "a  b   c    d",
    "\t\ttabs\tand spaces \t ",
    "\n",
    "\n\n\n",
    "a\n\nb\r\nc\rd",
    " \n \n x",
    "no\u00a0break\u2003em\u200bzero\u3000wide",
    " " * 31 + "x",
    "\n" * 40,
    "   \n\n\t  \n  y",
]
DIGITS = [
    "0",
    "12",
    "123 4567 89012345",
    "3.14159",
    "1,000,000.00",
    "$1,234.56",
    "2024-01-31T23:59:59Z",
    "+49 (0)30 1234-567",
    "a1b22c333 4d",
]
CONTRACTIONS = ["it's I'LL they've we'd 'tis don't CAN'T 'Re", "rock'n'roll ''quoted'' \"double\"", "l'homme d'Artagnan"]
SPECIAL = [
    "a<|im_end|>b",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|>",
    "<bos>x<eos>",
    "<start_of_turn>user\nhi<end_of_turn>\n",
    "<pad><unk><mask>[multimodal]<unused7>",
    "<s>[INST] x [/INST]</s>",
    "<0x41> <0xFF>",
    "<|im_end",
    "▁lower▁one▁eighth▁block ▁▁ a",
]
ODD = [
    "\x00\x01\x02\x7f",
    "\ufeffbom",
    "\ufffd\ufffe\uffff",
    "a" * 300,
    "=" * 80,
    "!?!?!?...---___",
    "ab" * 100,
    "\u202eright to left",
]

CORPUS = SCRIPTS + EMOJI + CODE + SPACES + DIGITS + CONTRACTIONS + SPECIAL + ODD


def mixed_texts(count: int, seed: int) -> list[str]:
    """Returns random concatenations of pieces of the corpus, cut at any character."""
    draw = random.Random(seed)
    joined = "\n".join(CORPUS)
    texts = []
    for _ in range(count):
        starts = [draw.randrange(len(joined)) for _ in range(draw.randint(1, 6))]
        texts.append("".join(joined[start : start + draw.randint(1, 20)] for start in starts))
    return texts
