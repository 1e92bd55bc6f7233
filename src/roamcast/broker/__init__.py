"""Pure: the broker machine: sessions, routing, mobility, links, retained messages, groups, MQTT front."""
