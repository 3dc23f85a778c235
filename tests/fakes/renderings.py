"""What software does to a text on its way without changing what a reader sees."""

import unicodedata

from hypothesis import strategies as st

UNSEEN = "\u200b\ufeff\u00ad\u2060\u200e\u2069\u200d\ufe0f\x00\x1b"
LINE_ENDS = ("\n", "\r\n", "\r", "\u2028", "\x85")
BLANKS = (" ", "\u00a0", "\u202f", "\u2009")

#: Texts in which much of what the normal form speaks of occurs.
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            ["word", "Zoë", "e\u0301", "a\u0323\u0307", "ﬁ²", "한글", "\u1112\u1161\u11ab",
             "می\u200cخواهم", "क्\u200dष", "👩\u200d💻", " ", "  ", "\t", "\u3000", "\u00a0", "\n",
             "\r\n", "\r", " \n", "\u2028", ".", "\u212b"]
        ),
        max_size=20,
    ).map("".join),
)  # fmt: skip


@st.composite
def renderings(draw: st.DrawFn, text: str) -> str:
    """The text in its normal form (a `visible` one), rendered anew."""
    form = draw(st.sampled_from(("NFC", "NFD")))
    line_end, blank = draw(st.sampled_from(LINE_ENDS)), draw(st.sampled_from(BLANKS))
    trailing = draw(st.sampled_from(("", " ", "  ", "\t", "\u00a0")))
    shown = unicodedata.normalize(form, text).replace(" ", blank)
    shown = (trailing + line_end).join(shown.split("\n")) + trailing
    for unseen in draw(st.lists(st.sampled_from(UNSEEN), max_size=4)):
        at = draw(st.integers(0, len(shown)))
        shown = shown[:at] + unseen + shown[at:]
    return shown
