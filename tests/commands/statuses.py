"""VersionedConfigs as the API server would give them, for the tables of these tests."""

from typing import Any

import msgspec

from versionedconfig.commands.configs import Config

OLD, MIDDLE, NEW, FRESH = "2222222222", "4444444444", "4gggggggg2", "5555555555"


def version(hash_: str, since: int = 0, **more: Any) -> dict[str, Any]:
    """Made and current since that day of the month; 0: it never was current."""
    created = f"2026-01-{since or 1:02}T00:00:00Z"
    current = {"since": created} if since else {}
    return {"name": f"app-{hash_}", "hash": hash_, "created": created, "state": "Unused", **current, **more}


def target(name: str, state: str, **more: Any) -> dict[str, Any]:
    """A Deployment."""
    return {"kind": "Deployment", "name": name, "state": state, **more}


def conditions(generation: int = 1, **statuses: str) -> list[dict[str, Any]]:
    """Each with a reason and a message of its own."""
    return [
        {
            "type": kind,
            "status": status,
            "reason": f"{kind}Reason",
            "message": f"{kind} message",
            "observedGeneration": generation,
        }
        for kind, status in statuses.items()
    ]


def config(
    *versions: dict[str, Any],
    current: str = "",
    latest: str = "",
    pin: str = "",
    paused: bool = False,
    generation: int = 1,
    **status: Any,
) -> Config:
    """`app` in namespace `shop`, seen by the operator at its first generation."""
    named = {
        field: f"app-{hash_}"
        for field, hash_ in (("currentVersion", current), ("latestVersion", latest or current))
        if hash_
    }
    body = {
        "metadata": {
            "name": "app",
            "namespace": "shop",
            "uid": "u",
            "resourceVersion": "1",
            "generation": generation,
        },
        "spec": {"pin": pin, "rollout": {"paused": paused}, "data": {"MODE": "not kept"}},
        "status": {"observedGeneration": 1, "versions": list(versions), **named, **status},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Config)


THREE = (version(NEW, 3), version(MIDDLE, 2, result="Failed", message="no luck"), version(OLD, 1))
"""The second one failed."""
