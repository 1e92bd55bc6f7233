"""Roaming beside a broker that does not support it: mobility proxies and the library for their clients."""
