"""Log lines: what is tried again is no error."""

import logging

import pytest

from versionedconfig.observability.logs import Transient


@pytest.mark.parametrize(
    ("level", "message", "expected"),
    [
        (logging.ERROR, "Request attempt #1/9 failed; will retry: GET x", logging.WARNING),
        (logging.ERROR, "Request attempt #9/9 failed; escalating: GET x", logging.ERROR),
        (logging.CRITICAL, "stopped; will retry", logging.CRITICAL),
        (logging.INFO, "will retry", logging.INFO),
    ],
)
def test_only_what_is_tried_again_is_lowered(level: int, message: str, expected: int) -> None:
    record = logging.LogRecord("kopf", level, "", 0, message, None, None)

    assert Transient().filter(record)
    assert record.levelno == expected
    assert record.levelname == logging.getLevelName(expected)
