"""No test is judged by the clock: how fast things are is the bench's business, and machines are busy."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
