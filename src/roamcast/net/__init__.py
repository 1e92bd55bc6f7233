"""Listeners, TLS, WebSocket, handshakes, users and links over TCP."""
