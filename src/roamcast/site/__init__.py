"""Pure: one broker of a network as a daemon drives it, with MQTT in front and links behind."""
