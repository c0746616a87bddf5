"""Verdicts as a StaleConfig's status: counts, words, and what to do. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from versionedconfig.model import ConfigKey, timestamp
from versionedconfig.staleness.history import NEVER, NOT_YET, NOTHING, History, Life, Why
from versionedconfig.staleness.judge import Kind, Part, Verdict

MOST_NODES: Final = 200
MOST_PODS: Final = 200
"""Of one node, in the status."""

WORST: Final = (Kind.STALE, Kind.DELETED, Kind.UNKNOWN, Kind.FRESH)

WHY: Final[Mapping[Why, str]] = {
    Why.CERTAIN: "",
    Why.FOLLOWING: "its volume is about to be brought up to date",
    Why.RACE: "two things happened too close to each other to say which came first",
    Why.FLIP: "the earlier object became immutable shortly before it went, or it is not known that anyone read it",
    Why.RESTARTED: "the node's kubelet restarted about then",
    Why.GONE: "a pod that is gone may have kept the earlier content in the node's cache",
    Why.TAKEN: "a pod was force-deleted, and the node may still run it",
    Why.CUT_OFF: "the node is not ready, and what its kubelet does is not known",
    Why.UNSEEN: "it happened before the operator looked, or while it did not",
}

HOW: Final = {
    "env": "the environment of container {} was made from {} when it was started",
    "subPath": "the subPath mount of container {} was made from {} when it was started",
    "volume": "the node serves {} to its volume",
    "pull": "the node pulls its images with {}",
}


def worst(kinds: Iterable[Kind]) -> Kind:
    """The first of WORST among them; FRESH for none."""
    found = set(kinds)
    return next((kind for kind in WORST if kind in found), Kind.FRESH)


def affected(verdicts: Iterable[Verdict]) -> Counter[tuple[str, Kind]]:
    """Pods by node and verdict, but for the fresh ones."""
    return Counter((one.node, one.kind) for one in verdicts if one.kind is not Kind.FRESH)


UNASKED: Final = (
    "Kubelets are not asked whether they restarted (component kubelet-metrics): one that did serves its volumes, and pods "
    "that start there, what is live."
)


def status(
    key: ConfigKey,
    history: History,
    verdicts: list[Verdict],
    new_pods: Mapping[str, Kind],
    since: float,
    *,
    kubelets_asked: bool,
) -> dict[str, Any]:
    """All of the status but the memory.

    Args:
        new_pods: what a pod that came now would be served, by node.
        since: when it began, for people.
        kubelets_asked: whether a restart of a kubelet would have been noticed.
    """
    by_node: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_node[verdict.node].append(verdict)
    nodes = sorted(
        {*by_node, *new_pods}, key=lambda name: (WORST.index(worst(one.kind for one in by_node[name])), name)
    )
    whole = worst(one.kind for one in verdicts)
    counts = affected(verdicts)
    return {
        "kind": key.kind,
        "name": key.name,
        "verdict": str(whole),
        "since": _time(since),
        "nodeCount": len({node for node, _ in counts}),
        "podCount": counts.total(),
        "message": " ".join([message(key, history, verdicts), *(() if kubelets_asked else (UNASKED,))]),
        "confidence": "Certain" if kubelets_asked else "Likely",
        "cure": cure(key, history, whole),
        "lives": [_life(life) for life in history.lives],
        "nodes": [
            {
                "name": name,
                "verdict": str(worst(one.kind for one in by_node[name])),
                "newPods": str(new_pods.get(name, Kind.FRESH)),
                "pods": [_pod(history, one) for one in sorted(by_node[name], key=_order)[:MOST_PODS]],
            }
            for name in nodes[:MOST_NODES]
        ],
    }


def message(key: ConfigKey, history: History, verdicts: list[Verdict]) -> str:
    """What is the case, in one sentence or two."""
    counts = Counter(one.kind for one in verdicts)
    what = f"{key.kind} {key.name}"
    happened = (
        f"{what} was deleted and created again while pods used it"
        if history.live is not None
        else f"{what} was deleted while pods used it"
    )
    found = [
        f"{_pods(counts[kind])} {verb}"
        for kind, verb in (
            (Kind.STALE, "read an earlier content"),
            (Kind.DELETED, "still read the deleted content"),
            (Kind.UNKNOWN, "may read an earlier content"),
        )
        if counts[kind]
    ]
    return f"{happened}: {', '.join(found) or 'no pod reads anything but what is live'}."


def cure(key: ConfigKey, history: History, kind: Kind) -> str:
    """What to do."""
    if kind is Kind.FRESH:
        return "Nothing: it goes when the last pod has gone that came before the live object."
    right = (
        "Best: give the content a new name and let the workloads refer to that (a VersionedConfig does both)."
    )
    if kind is Kind.DELETED:
        return (
            f"Create the {key.kind} again under a new name: pods of this one cannot start elsewhere. {right}"
        )
    return (
        "A restart does not cure it: new pods meet the old ones on their node. Cordon the affected nodes, delete all pods there "
        "that use it, and uncordon when they are gone; or restart the kubelets, then the pods. " + right
    )


def reason(history: History, verdict: Verdict) -> str:
    """Why the verdict is what it is, in words; empty for a fresh one."""
    if verdict.kind is Kind.FRESH:
        return ""
    if verdict.kind is Kind.UNKNOWN:
        return WHY[verdict.why]
    return "; ".join(_part(history, part) for part in verdict.parts if part.kind is verdict.kind)


def _part(history: History, part: Part) -> str:
    live = history.live.uid if history.live is not None else None
    old = next((uid for uid in part.answers if uid != live), NOTHING)
    life = next((life for life in history.lives if life.uid == old), None)
    if life is None:
        what = "nothing, since there was no such object"
    elif life.created.earliest > -NEVER:
        what = f"the object of {_time(life.created.latest)}"
    else:
        what = "an earlier object"
    return HOW[part.how].format(*((part.container, what) if part.container else (what,)))


def _life(life: Life) -> dict[str, Any]:
    told: dict[str, Any] = {"uid": life.uid, "immutable": life.immutable != NOT_YET}
    if life.created.earliest > -NEVER:
        told["created"] = _time(life.created.latest)
    if life.ended != NOT_YET:
        told["deleted"] = _time(life.ended.latest)
    return told


def _pod(history: History, verdict: Verdict) -> dict[str, Any]:
    told: dict[str, Any] = {"name": verdict.name, "uid": verdict.pod, "verdict": str(verdict.kind)}
    if verdict.kind is not Kind.FRESH:
        told["serves"] = sorted(verdict.serves)
        told["reason"] = reason(history, verdict)
    return told


def _order(verdict: Verdict) -> tuple[int, str]:
    return WORST.index(verdict.kind), verdict.name


def _pods(number: int) -> str:
    return f"{number} pod{'s' if number != 1 else ''}"


def _time(at: float) -> str:
    return timestamp(datetime.fromtimestamp(at, UTC))
