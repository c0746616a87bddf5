"""Talking to the API server: requests, mirrors, writes and the work queue. Knows nothing of what they are used for."""
