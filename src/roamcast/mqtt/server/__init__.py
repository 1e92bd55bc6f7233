"""Pure: the server's side of MQTT."""
