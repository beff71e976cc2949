"""What a server tells monitors: Prometheus metrics and OpenTelemetry spans.

Owns their names and forms. Never changes what it measures.
"""
