"""What can go wrong for a person, each in one line that says what to do."""


class ClusterError(Exception):
    """Shown without a traceback; the command ends with 2."""
