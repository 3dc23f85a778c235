"""Parts of `bench.publish`: planted versions, the stack, its users, the figures."""
