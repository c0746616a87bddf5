"""Protection decisions, as the list of cases of the in-tree pvc-protection controller, adapted."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import ConfigKey, Incarnation
from versionedconfig.protection.decide import Do, Situation, blocked_message, decide
from versionedconfig.references import Referrer

KEY = ConfigKey("ConfigMap", "n", "c")


def situation(held: bool = False, seconds: float = 0.0, ns_excluded: bool = False, ns_ending: bool = False, looked_after: bool = True, quarantined: bool = False, **life: Any) -> Situation:  # fmt: skip
    life.setdefault("immutable", True)
    return Situation(
        replace(Incarnation(KEY, "u", "1"), **life),
        held,
        ns_excluded,
        ns_ending,
        looked_after,
        quarantined,
        seconds,
    )


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("held and unprotected", situation(held=True), Do.ADD),
        ("held and protected", situation(held=True, in_use=True), Do.NOTHING),
        ("nobody, unprotected", situation(), Do.NOTHING),
        ("mutable", situation(held=True, immutable=False), Do.NOTHING),
        ("terminating: the API refuses finalizers", situation(held=True, deleting=True), Do.NOTHING),
        ("ignored", situation(held=True, ignored=True), Do.NOTHING),
        ("ignored, protected, unused: let go", situation(in_use=True, ignored=True, seconds=99), Do.VERIFY),
        ("ignored, protected, held", situation(held=True, in_use=True, ignored=True), Do.NOTHING),
        ("released by hand: not protected anew", situation(held=True, release="why"), Do.NOTHING),
        ("glass broken: whoever holds", situation(held=True, in_use=True, release="why"), Do.BREAK),
        ("glass broken, quarantined", situation(in_use=True, quarantined=True, release="why"), Do.BREAK),
        (
            "glass broken in a system namespace",
            situation(in_use=True, ns_excluded=True, release="why"),
            Do.NOTHING,
        ),
        ("not looked after", situation(held=True, looked_after=False), Do.NOTHING),
        (
            "no longer looked after, held: stays",
            situation(held=True, in_use=True, looked_after=False),
            Do.NOTHING,
        ),
        (
            "no longer looked after, unused: let go",
            situation(in_use=True, looked_after=False, seconds=99),
            Do.VERIFY,
        ),
        ("quarantined", situation(in_use=True, quarantined=True, seconds=99), Do.WAIT),
        (
            "quarantined, terminating namespace wins",
            situation(in_use=True, quarantined=True, ns_ending=True),
            Do.VERIFY,
        ),
        ("system namespace", situation(held=True, ns_excluded=True), Do.NOTHING),
        ("terminating namespace is not added to", situation(held=True, ns_ending=True), Do.NOTHING),
        (
            "terminating namespace's live pods hold",
            situation(held=True, in_use=True, ns_ending=True),
            Do.NOTHING,
        ),
        ("terminating namespace, unused: at once", situation(in_use=True, ns_ending=True), Do.VERIFY),
        ("just unused", situation(in_use=True), Do.LINGER),
        ("unused long enough", situation(in_use=True, seconds=10), Do.VERIFY),
        ("deleted and held: holds", situation(held=True, in_use=True, deleting=True, seconds=99), Do.NOTHING),
        ("deleted and unused: lingers too", situation(in_use=True, deleting=True, seconds=1), Do.LINGER),
    ],
)
def test_cases(name: str, state: Situation, expected: Do) -> None:
    assert decide(state, linger_seconds=10) is expected, name


@given(
    st.builds(
        Situation,
        st.builds(
            Incarnation,
            st.just(KEY),
            st.just("u"),
            st.just("1"),
            immutable=st.booleans(),
            in_use=st.booleans(),
            deleting=st.booleans(),
            ignored=st.booleans(),
        ),
        held=st.just(True),
        namespace_excluded=st.booleans(),
        namespace_terminating=st.booleans(),
        unused_seconds=st.floats(0, 1e6),
    )
)
def test_what_is_held_is_never_considered_for_release(state: Situation) -> None:
    assert decide(state, linger_seconds=0) in (Do.NOTHING, Do.ADD)


@given(st.booleans(), st.booleans(), st.booleans(), st.floats(0, 1e6))
def test_nothing_is_added_to_what_goes_or_is_left_alone(
    held: bool, deleting: bool, ending: bool, seconds: float
) -> None:
    left_alone = situation(held, seconds, ns_ending=ending, looked_after=False, deleting=deleting)
    terminating = situation(held, seconds, ns_ending=True, deleting=deleting)
    assert Do.ADD not in (decide(left_alone, 0), decide(terminating, 0))


def test_the_message_names_the_first_and_counts_the_rest() -> None:
    pods = [Referrer("Pod", "shop", f"web-{i}") for i in range(7, 0, -1)]
    volume = Referrer("PersistentVolume", "", "data")

    assert "7 pods that use it: web-1, web-2, web-3, web-4, web-5 and 2 more." in blocked_message(pods)
    assert "1 pod that uses it: web-7." in blocked_message(pods[:1])
    assert "1 object that uses it: PersistentVolume data." in blocked_message([volume])
    assert "1 pod and 1 other object that use it: web-7, PersistentVolume data." in blocked_message(
        [volume, pods[0]]
    )
