"""Log lines: a constant message and key=value pairs, so that people can grep and machines can parse."""

import logging
import sys

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "settings"}


class KeyValueFormatter(logging.Formatter):
    """`2026-01-31T12:00:00 INFO versionedconfig.protection: protected config=configmap/x`"""

    def format(self, record: logging.LogRecord) -> str:
        """The standard line with the record's extras behind the message."""
        line = super().format(record)
        extras = " ".join(
            f"{k}={v}" for k, v in vars(record).items() if k not in _STANDARD and k[:1].islower()
        )
        head, newline, trace = line.partition("\n")
        return (
            f"{head} {extras}{newline}{trace}"
            if extras and record.name.startswith("versionedconfig")
            else line
        )


class Transient(logging.Filter):
    """What is going to be tried again is a warning: kopf calls each failed request of its watch an error, and while an API
    server restarts there are several."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lowers the level, and keeps the record."""
        if record.levelno == logging.ERROR and "will retry" in str(record.msg):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def configure_logging() -> None:
    """Log to stderr at INFO. DEBUG is not offered: kopf would log whole bodies, and they hold content."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        KeyValueFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    )
    handler.addFilter(Transient())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
