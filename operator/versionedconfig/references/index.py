"""The reference index: who refers to a ConfigKey, kept in step with the mirror.

Pure bookkeeping over two maps. A referrer is any hashable value its caller can name again (for pods their ObjectKey).
"""

from collections.abc import Callable, Collection, Iterable
from itertools import islice

from versionedconfig.model import ConfigKey, ObjectKey

Names = tuple[tuple[str, str], ...]
"""Sorted, distinct (kind, name) pairs: what one referrer refers to in its own namespace."""


class ReferenceIndex:
    """Referrers of one sort by ConfigKey, and the way back."""

    __slots__ = ("_changed", "_names", "_referrers")

    def __init__(self, changed: Callable[[ConfigKey], None] | None = None) -> None:
        """`changed` is told each ConfigKey whose set of referrers became empty or stopped being so."""
        self._changed = changed
        self._names: dict[ObjectKey, Names] = {}
        self._referrers: dict[ConfigKey, set[ObjectKey]] = {}

    def put(self, referrer: ObjectKey, names: Names) -> None:
        """Say what the referrer refers to now; nothing happens where that is what it did already."""
        before = self._names.get(referrer, ())
        if before == names:
            return
        # Add before dropping: a key that keeps a referrer through the change must not seem empty in between.
        for kind, name in set(names) - set(before):
            self._add(ConfigKey(kind, referrer.namespace, name), referrer)
        for kind, name in set(before) - set(names):
            self._drop(ConfigKey(kind, referrer.namespace, name), referrer)
        if names:
            self._names[referrer] = self._sibling_names(referrer, names)
        else:
            self._names.pop(referrer, None)

    def remove(self, referrer: ObjectKey) -> None:
        """The referrer is gone."""
        self.put(referrer, ())

    def referrers(self, key: ConfigKey) -> Collection[ObjectKey]:
        """Those that refer to the key now; not to be changed or kept."""
        return self._referrers.get(key, ())

    def names(self, referrer: ObjectKey) -> Names:
        """What the referrer refers to, empty for one that is not known."""
        return self._names.get(referrer, ())

    def keys(self) -> Iterable[ConfigKey]:
        """Every ConfigKey with a referrer."""
        return self._referrers.keys()

    def __len__(self) -> int:
        return len(self._names)

    def _sibling_names(self, referrer: ObjectKey, names: Names) -> Names:
        """The pods of one workload refer to the same names: keep one tuple for all of them."""
        kind, name = names[0]
        # Two are enough: the referrer itself may be the first of the set.
        for sibling in islice(self._referrers[ConfigKey(kind, referrer.namespace, name)], 2):
            if (known := self._names.get(sibling)) == names:
                return known
        return names

    def _add(self, key: ConfigKey, referrer: ObjectKey) -> None:
        referrers = self._referrers.get(key)
        if referrers is None:
            self._referrers[key] = {referrer}
            self._tell(key)
        else:
            referrers.add(referrer)

    def _drop(self, key: ConfigKey, referrer: ObjectKey) -> None:
        referrers = self._referrers[key]
        referrers.discard(referrer)
        if not referrers:
            del self._referrers[key]
            self._tell(key)

    def _tell(self, key: ConfigKey) -> None:
        if self._changed is not None:
            self._changed(key)
