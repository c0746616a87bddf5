"""What a PromQL expression asks for, as far as names of metrics go; and those that are to come."""

import re
from typing import Final

TO_COME: Final = {
    "versionedconfig_stale_pods": {"kind", "namespace", "name", "node"},
    "versionedconfig_deleted_content_pods": {"kind", "namespace", "name", "node"},
    "versionedconfig_unknown_verdict_pods": {"kind", "namespace", "name", "node"},
    "versionedconfig_name_reuses_total": {"kind"},
}
"""Used by alerts and dashboard already, with their labels, and not there yet. This list has to vanish."""

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
