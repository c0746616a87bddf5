"""The index equals what a scan of all referrers would say, after any history."""

from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import ConfigKey, ObjectKey
from versionedconfig.references import ReferenceIndex

NAMES = st.sets(st.tuples(st.sampled_from(["ConfigMap", "Secret"]), st.sampled_from("abc"))).map(
    lambda names: tuple(sorted(names))
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(["p", "q", "r"]), NAMES), max_size=40
)


@given(STEPS)
def test_equals_a_scan(steps: list[tuple[str, str, tuple[tuple[str, str], ...]]]) -> None:
    truth: dict[ObjectKey, tuple[tuple[str, str], ...]] = {}
    held: set[ConfigKey] = set()

    def changed(key: ConfigKey) -> None:
        # Told exactly when a key becomes held or ceases to be.
        assert bool(index.referrers(key)) != (key in held)
        held.symmetric_difference_update({key})

    index = ReferenceIndex(changed)
    for namespace, pod, names in steps:
        referrer = ObjectKey(namespace, pod)
        index.put(referrer, names)
        truth[referrer] = names

        expected: dict[ConfigKey, set[ObjectKey]] = {}
        for known, its_names in truth.items():
            for kind, name in its_names:
                expected.setdefault(ConfigKey(kind, known.namespace, name), set()).add(known)
        assert {key: set(index.referrers(key)) for key in index.keys()} == expected  # noqa: SIM118 - no dict
        assert held == set(expected)
        assert len(index) == sum(bool(its_names) for its_names in truth.values())


def test_pods_of_one_workload_share_their_names() -> None:
    index = ReferenceIndex()
    for i in range(3):
        index.put(ObjectKey("n", f"pod-{i}"), (("ConfigMap", f"a{0}"),))

    assert len({id(index.names(ObjectKey("n", f"pod-{i}"))) for i in range(3)}) == 1
