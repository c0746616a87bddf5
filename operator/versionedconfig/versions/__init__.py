"""From a VersionedConfig's content to immutable, content-hashed objects, and their history."""
