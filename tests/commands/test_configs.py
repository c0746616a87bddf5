"""Which version somebody means, and what is said where there is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands.statuses import FRESH, MIDDLE, NEW, OLD, THREE, conditions, config, version
from versionedconfig.commands.configs import (
    WORDS,
    Config,
    Refused,
    absent,
    hash_of,
    kept,
    key_of,
    listed,
    marks,
    no_versions,
    previous,
    resolve,
)
from versionedconfig.model import ObjectKey

HASHES = st.text("2456789bcdfghkmt", min_size=10, max_size=10)


@pytest.mark.parametrize(
    ("text", "hash_"),
    [
        (OLD, OLD),
        ("2", OLD),
        ("4g", NEW),
        (f"app-{MIDDLE}", MIDDLE),
        ("app-44", MIDDLE),
        ("current", NEW),
        ("latest", MIDDLE),
        ("previous", MIDDLE),
    ],
)
def test_versions_by_what_people_call_them(text: str, hash_: str) -> None:
    assert hash_of(resolve(config(*THREE, current=NEW, latest=MIDDLE), text)) == hash_


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("4", f"'4' is the beginning of {NEW}, {MIDDLE}: give more characters"),
        ("9", f"app has no kept version '9'; there are: {NEW} (current, latest), {MIDDLE} (failed), {OLD}"),
        ("", "no kept version"),
        ("app-", "no kept version"),
        ("Current", "no kept version"),
    ],
)
def test_what_is_no_version_is_refused(text: str, why: str) -> None:
    with pytest.raises(Refused) as raised:
        resolve(config(*THREE, current=NEW), text)
    assert why in str(raised.value)


@given(st.sets(HASHES, min_size=1), st.data())
def test_a_beginning_means_the_only_one_that_has_it(hashes: set[str], data: st.DataObject) -> None:
    meant = data.draw(st.sampled_from(sorted(hashes)))
    start = meant[: data.draw(st.integers(1, 10))]
    asked = config(*(version(hash_, number % 28) for number, hash_ in enumerate(sorted(hashes))))
    if sum(hash_.startswith(start) for hash_ in hashes) == 1:
        assert hash_of(resolve(asked, start)) == meant
    else:
        with pytest.raises(Refused, match="beginning of"):
            resolve(asked, start)


@given(HASHES)
def test_no_word_is_the_beginning_of_a_hash(hash_: str) -> None:
    assert not any(hash_.startswith(word[:10]) or word.startswith(hash_) for word in WORDS)


def test_the_one_that_was_current_last_comes_first() -> None:
    """One that went back is newer than one that was made after it; one that never was current has its creation."""
    asked = config(version(OLD, 9), version(NEW, 3), {**version(FRESH), "created": "2026-01-05T00:00:00Z"})

    assert [hash_of(found) for found in kept(asked)] == [OLD, FRESH, NEW]


@pytest.mark.parametrize(
    ("asked", "before", "sound"),
    [
        (config(*THREE, current=NEW), MIDDLE, OLD),
        (config(*THREE, current=MIDDLE), NEW, NEW),
        (config(*THREE[:2], current=NEW), MIDDLE, ""),
        (config(THREE[0], current=NEW), "", ""),
        (config(THREE[0], version(FRESH), current=NEW), "", ""),
        (config(*THREE), NEW, NEW),
        (config(), "", ""),
    ],
)
def test_the_version_before(asked: Config, before: str, sound: str) -> None:
    found = [previous(asked), previous(asked, sound=True)]
    assert [hash_of(version) if version else "" for version in found] == [before, sound]


def test_marks() -> None:
    asked = config(*THREE, current=OLD, latest=NEW, pin=OLD)

    assert [marks(asked, found) for found in kept(asked)] == [["latest"], [], ["current", "pinned"]]
    assert listed(asked) == f"{NEW} (latest), {MIDDLE} (failed), {OLD} (current, pinned)"


def test_why_there_are_no_versions_yet() -> None:
    said = no_versions(config(conditions=conditions(Ready="False", Stalled="True")))
    assert said == "app has no versions yet: StalledReason: Stalled message"
    said = no_versions(config(conditions=conditions(Ready="False", Stalled="False")))
    assert said == "app has no versions yet: ReadyReason: Ready message"
    assert "no operator has looked at it" in no_versions(config())


def test_names_as_people_type_them() -> None:
    for text in ("app", "vcfg/app", "versionedconfig.versionedconfig.io/app"):
        assert key_of("shop", text) == ObjectKey("shop", "app")
    for namespace, text in (
        ("shop", "app/status"),
        ("shop", "configmap/app"),
        ("shop", ""),
        ("shop", "vcfg/"),
        ("shop", ".."),
        ("shop", "App"),
        ("a/b", "app"),
    ):
        with pytest.raises(Refused):
            key_of(namespace, text)


def test_who_is_there_instead() -> None:
    key = ObjectKey("shop", "ap")
    names = ["web", "app", "cache", "db", "mail", "queue"]

    assert absent(key, names).endswith("namespace shop; there are: app, cache, db, mail, queue and 1 more")
    assert absent(key, []).endswith("namespace shop; -n names another namespace")


def test_no_content_is_decoded() -> None:
    assert "not kept" not in repr(config())
