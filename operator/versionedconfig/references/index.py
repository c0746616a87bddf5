"""The reference index: who refers to a ConfigKey, kept in step with the mirror.

Pure bookkeeping over two maps. A referrer is any hashable value its caller can name again (for pods their R).
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from versionedconfig.model import ConfigKey

R = TypeVar("R", bound=Hashable)

Keys = tuple[ConfigKey, ...]
"""Sorted and distinct: what one referrer refers to."""


class ReferenceIndex(Generic[R]):
    """Referrers of one sort by ConfigKey, and the way back."""

    __slots__ = ("_changed", "_keys", "_referrers", "references")

    def __init__(self, changed: Callable[[ConfigKey], None] | None = None) -> None:
        """`changed` is told each ConfigKey whose set of referrers became empty or stopped being so."""
        self._changed = changed
        self._keys: dict[R, Keys] = {}
        self._referrers: dict[ConfigKey, set[R]] = {}
        self.references = 0
        """How many there are."""

    def put(self, referrer: R, keys: Keys) -> None:
        """Say what the referrer refers to now; nothing happens where that is what it did already."""
        before = self._keys.get(referrer, ())
        if before == keys:
            return
        # Add before dropping: a key that keeps a referrer through the change must not seem empty in between.
        for key in set(keys).difference(before):
            self._add(key, referrer)
        for key in set(before).difference(keys):
            self._drop(key, referrer)
        self.references += len(keys) - len(before)
        if keys:
            self._keys[referrer] = self._sibling_keys(keys)
        else:
            self._keys.pop(referrer, None)

    def remove(self, referrer: R) -> None:
        """The referrer is gone."""
        self.put(referrer, ())

    def referrers(self, key: ConfigKey) -> Collection[R]:
        """Those that refer to the key now; not to be changed or kept."""
        return self._referrers.get(key, ())

    def keys_of(self, referrer: R) -> Keys:
        """What the referrer refers to, empty for one that is not known."""
        return self._keys.get(referrer, ())

    def all(self) -> list[R]:
        """Every referrer."""
        return list(self._keys)

    def keys(self) -> Iterable[ConfigKey]:
        """Every ConfigKey with a referrer."""
        return self._referrers.keys()

    def __len__(self) -> int:
        return len(self._keys)

    def _sibling_keys(self, keys: Keys) -> Keys:
        """The pods of one workload refer to the same objects: keep one tuple for all of them."""
        # Two are enough: the referrer itself may be the first of the set.
        for sibling in islice(self._referrers[keys[0]], 2):
            if (known := self._keys.get(sibling)) == keys:
                return known
        return keys

    def _add(self, key: ConfigKey, referrer: R) -> None:
        referrers = self._referrers.get(key)
        if referrers is None:
            self._referrers[key] = {referrer}
            self._tell(key)
        else:
            referrers.add(referrer)

    def _drop(self, key: ConfigKey, referrer: R) -> None:
        referrers = self._referrers[key]
        referrers.discard(referrer)
        if not referrers:
            del self._referrers[key]
            self._tell(key)

    def _tell(self, key: ConfigKey) -> None:
        if self._changed is not None:
            self._changed(key)
