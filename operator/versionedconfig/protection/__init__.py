"""The finalizer on immutable config objects that something refers to."""
