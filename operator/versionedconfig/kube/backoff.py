"""How long to wait before the next attempt; used by the mirrors and the work queue alike. Pure but for the rng."""

import random


def delay(attempt: int, *, base: float, cap: float, rng: random.Random) -> float:
    """Seconds before attempt number `attempt` (from 0) is repeated: doubled each time, jittered downwards.

    The jitter keeps many clients that lost one API server from coming back in step.
    """
    # 2**60 is beyond every cap; without the min, a float overflows after a long outage.
    return min(cap, base * 2.0 ** min(attempt, 60)) * rng.uniform(0.5, 1.0)
