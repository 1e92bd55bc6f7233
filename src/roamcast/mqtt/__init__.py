"""MQTT 3.1.1 and 5.0: bytes in, bytes out, for the server's and the client's side."""
