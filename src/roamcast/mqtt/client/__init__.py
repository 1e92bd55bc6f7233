"""Pure: the client's side of MQTT."""
