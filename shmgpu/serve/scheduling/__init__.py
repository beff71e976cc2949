"""From a request that was read to a call, and from its result to an answer.

Owns which models there are, limits, deadlines, streams and the cache. Never knows HTTP or gRPC.
"""
