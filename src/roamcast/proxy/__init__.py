"""Roaming beside a broker that knows nothing of it: mobility proxies and the library of their clients."""
