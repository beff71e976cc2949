"""Which request becomes which call, and when; never HTTP, never gRPC."""
