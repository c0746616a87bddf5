"""What a PromQL expression asks for, as far as names of metrics go."""

import re
from typing import Final

_LEFT_OUT: Final = re.compile(
    r"""(?x)
    "(?:[^"\\]|\\.)*"                                       # strings
    | \{[^}]*\}                                             # matchers
    | \[[^\]]*\]                                            # ranges
    | \b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)
    | \boffset\s+\w+
    """
)
_WORDS: Final = {"and", "or", "unless", "bool"}


def metrics_of(expression: str) -> set[str]:
    """The metrics that the expression asks for."""
    text = _LEFT_OUT.sub(" ", expression)
    return set(re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", text)) - _WORDS
