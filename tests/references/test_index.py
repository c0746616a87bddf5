"""The index equals what a scan of all referrers would say, after any history."""

from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import ConfigKey, ObjectKey
from versionedconfig.references import ReferenceIndex
from versionedconfig.references.index import Keys

KEYS = st.sets(
    st.builds(
        ConfigKey,
        st.sampled_from(["ConfigMap", "Secret"]),
        st.sampled_from(["n1", "n2"]),
        st.sampled_from("abc"),
    )
).map(lambda keys: tuple(sorted(keys)))
STEPS = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(["p", "q", "r"]), KEYS), max_size=40
)


@given(STEPS)
def test_equals_a_scan(steps: list[tuple[str, str, Keys]]) -> None:
    truth: dict[ObjectKey, Keys] = {}
    held: set[ConfigKey] = set()

    def changed(key: ConfigKey) -> None:
        # Told exactly when a key becomes held or ceases to be.
        assert bool(index.referrers(key)) != (key in held)
        held.symmetric_difference_update({key})

    index: ReferenceIndex[ObjectKey] = ReferenceIndex(changed)
    for namespace, pod, keys in steps:
        referrer = ObjectKey(namespace, pod)
        index.put(referrer, keys)
        truth[referrer] = keys

        expected: dict[ConfigKey, set[ObjectKey]] = {}
        for known, its_keys in truth.items():
            for key in its_keys:
                expected.setdefault(key, set()).add(known)
        assert {key: set(index.referrers(key)) for key in index.keys()} == expected  # noqa: SIM118 - no dict
        assert held == set(expected)
        assert len(index) == sum(bool(its_keys) for its_keys in truth.values())
        assert index.references == sum(map(len, truth.values()))


def test_pods_of_one_workload_share_their_keys() -> None:
    index: ReferenceIndex[ObjectKey] = ReferenceIndex()
    for i in range(3):
        index.put(ObjectKey("n", f"pod-{i}"), (ConfigKey("ConfigMap", "n", f"a{0}"),))

    assert len({id(index.keys_of(ObjectKey("n", f"pod-{i}"))) for i in range(3)}) == 1
