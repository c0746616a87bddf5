"""The storm's judge can find something: a test that cannot fail shows nothing."""

from e2e.storm import Change, losses

OBJECT = ("ConfigMap", "n", "c")


def config(
    version: int, *, gone: bool = False, guarded: bool = True, uid: str = "u", seen: float = 100.0
) -> Change:
    return Change(version, seen, *OBJECT, uid, gone, guarded and not gone)


def holder(version: int, *, gone: bool = False, seen: float = 10.0) -> Change:
    refers_to = frozenset() if gone else frozenset({OBJECT})
    return Change(version, seen, "Pod", "n", "p", "pu", gone, refers_to=refers_to)


def test_a_loss_under_a_pod_is_found() -> None:
    assert losses([holder(1), config(2), config(5, guarded=False)])
    assert losses([holder(1), config(2), config(5, gone=True)])
    assert losses([holder(1), config(2), config(5, uid="v")])


def test_the_order_is_that_of_resource_versions() -> None:
    assert not losses([config(2), config(5, gone=True), holder(1), holder(4, gone=True)])
    assert losses([config(2), config(5, gone=True), holder(1), holder(6, gone=True)])


def test_a_pod_that_came_last_may_be_missed() -> None:
    assert not losses([config(2), holder(3, seen=99.0), config(5, gone=True)])
    assert losses([config(2), holder(3, seen=90.0), config(5, gone=True)])


def test_what_stays_guarded_is_no_loss() -> None:
    assert not losses([holder(1), config(2), config(3), config(4)])
    assert not losses([config(2), config(3, gone=True)])


def test_a_namespace_that_goes_wins_over_what_refers_from_outside() -> None:
    volume = Change(1, 10.0, "PersistentVolume", "", "pv", "u", False, refers_to=frozenset({OBJECT}))
    ending = Change(3, 20.0, "Namespace", "", "n", "u", False, ending=True)

    assert losses([volume, config(2), config(5, gone=True)])
    assert not losses([volume, config(2), ending, config(5, gone=True)])
    assert losses([volume, holder(1), config(2), ending, config(5, gone=True)])
