"""Which version targets should have."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.resource import Status, TargetStatus, VersionStatus
from versionedconfig.versions.choose import (
    Cause,
    Choice,
    NotKept,
    choose,
    failed,
    promoted,
    succeeded,
    undoes_failure,
    way_back,
)

KEPT = {"app-a", "app-b", "app-c"}


def pick(status: Status, latest: str, pinned: str = "", *, spec_changed: bool = True) -> Choice | None:
    return choose(status, latest=latest, pinned=pinned, kept=KEPT, spec_changed=spec_changed)


def after(status: Status, choice: Choice | None, latest: str) -> Status:
    assert choice is not None
    return promoted(status, choice, latest=latest, now="2026-01-31T12:00:00Z")


def test_new_content_becomes_current_and_says_why() -> None:
    assert pick(Status(), "app-a") == Choice("app-a", Cause.SPEC_CHANGE)
    assert pick(Status(), "app-a", spec_changed=False) == Choice("app-a", Cause.SOURCE_CHANGE)
    assert pick(Status(current_version="app-a", latest_version="app-a"), "app-a") is None


def test_a_version_that_failed_is_not_tried_until_the_content_changes() -> None:
    status = after(
        after(Status(), pick(Status(), "app-a"), "app-a"), Choice("app-b", Cause.SPEC_CHANGE), "app-b"
    )
    status = after(failed(status, "it crashes"), Choice("app-a", Cause.ROLLBACK), "app-b")

    assert pick(status, "app-b") is None
    assert (status.version("app-b").result, status.version("app-b").message) == ("Failed", "it crashes")
    assert pick(status, "app-c") == Choice("app-c", Cause.SPEC_CHANGE)
    # Back to the good content by hand, and then the failed one once more.
    good = msgspec.structs.replace(status, latest_version="app-a")
    assert pick(status, "app-a") is None
    assert pick(good, "app-b") == Choice("app-b", Cause.SPEC_CHANGE)
    assert after(good, pick(good, "app-b"), "app-b").version("app-b").result == ""


def test_a_pin_wins_over_everything_and_going_from_it_goes_to_the_content() -> None:
    status = after(Status(), pick(Status(), "app-b"), "app-b")

    pin = pick(status, "app-b", "app-a")
    assert pin == Choice("app-a", Cause.PIN)
    pinned = after(status, pin, "app-b")
    assert pick(pinned, "app-b", "app-a") is None
    assert pick(pinned, "app-c", "app-a") is None
    assert pick(pinned, "app-b") == Choice("app-b", Cause.UNPIN)
    assert pick(pinned, "app-c") == Choice("app-c", Cause.SPEC_CHANGE)
    # Pinned to what the content is: from then on it is there for the content's sake, and a failure is taken back.
    same = after(status, Choice("app-b", Cause.PIN), "app-b")
    assert pick(same, "app-b") == Choice("app-b", Cause.UNPIN)
    assert undoes_failure(after(same, Choice("app-b", Cause.UNPIN), "app-b"))


def test_a_pin_to_what_is_not_kept_is_refused_with_what_there_is() -> None:
    with pytest.raises(NotKept, match="no version with hash zz is kept; there are: a, b, c"):
        pick(Status(current_version="app-a"), "app-a", "app-zz")


def test_new_workloads_get_a_version_when_it_has_proved_itself() -> None:
    status = after(Status(), pick(Status(), "app-a"), "app-a")
    assert status.stable_version == "app-a"

    second = after(status, pick(status, "app-b"), "app-b")
    assert second.stable_version == "app-a"
    assert succeeded(second).stable_version == "app-b"
    assert after(failed(second, "x"), Choice("app-a", Cause.ROLLBACK), "app-b").stable_version == "app-a"
    assert after(second, Choice("app-c", Cause.PIN), "app-b").stable_version == "app-c"


def test_only_what_nobody_asked_for_by_name_is_taken_back() -> None:
    status = after(Status(), pick(Status(), "app-a"), "app-a")
    assert undoes_failure(status)
    assert not undoes_failure(succeeded(status))
    assert not undoes_failure(after(status, Choice("app-b", Cause.PIN), "app-a"))
    assert not undoes_failure(after(status, Choice("app-b", Cause.ROLLBACK), "app-a"))


def test_the_way_back_is_what_most_had() -> None:
    targets = [
        TargetStatus("Deployment", str(i), previous=name)
        for i, name in enumerate(["app-a", "app-b", "app-b", "gone", ""])
    ]
    status = Status(current_version="app-c", targets=targets)

    assert way_back(status, KEPT) == "app-b"
    assert way_back(status, {"app-c"}) == ""
    assert way_back(Status(current_version="app-b", targets=targets), KEPT) == "app-a"


STATUSES = st.builds(
    Status,
    current_version=st.sampled_from(["", *sorted(KEPT)]),
    latest_version=st.sampled_from(["", *sorted(KEPT)]),
    stable_version=st.sampled_from(["", *sorted(KEPT)]),
    versions=st.lists(
        st.builds(
            VersionStatus,
            name=st.sampled_from(sorted(KEPT)),
            cause=st.sampled_from(["", *Cause]),
            result=st.sampled_from(["", "Succeeded", "Failed"]),
        ),
        unique_by=lambda version: version.name,
    ),
)


@given(STATUSES, st.sampled_from(sorted(KEPT)), st.sampled_from(["", *sorted(KEPT)]), st.booleans())
def test_a_choice_settles(status: Status, latest: str, pinned: str, spec_changed: bool) -> None:
    """After it was written down, the same question has nothing more to ask for: a restart changes nothing."""
    try:
        choice = pick(status, latest, pinned, spec_changed=spec_changed)
    except NotKept:
        assert status.current_version not in KEPT
        return
    if choice is not None:
        status = after(status, choice, latest)
        assert status.version(choice.version).cause == choice.cause
        assert len({version.name for version in status.versions}) == len(status.versions)

        assert pick(status, latest, pinned, spec_changed=False) is None


def test_where_what_everything_went_back_to_is_gone_something_else_is_found_or_told() -> None:
    failed_b = VersionStatus("app-b", result="Failed")
    lost = Status(current_version="gone", latest_version="app-b", stable_version="app-a", versions=[failed_b])

    assert pick(lost, "app-b") == Choice("app-a", Cause.ROLLBACK)
    with pytest.raises(NotKept, match="app-b has failed, and the version before it is gone"):
        pick(msgspec.structs.replace(lost, stable_version="gone"), "app-b")
