"""The user properties of MQTT 5 by which clients ask Roamcast for more than the standard knows."""

WHERE = "where"
"""Of a SUBSCRIBE: a selector."""
IDENTITY = "roamcast-identity"
"""Of a SUBSCRIBE: with the value 1 it asks for the identities of notifications."""
DESTINATION = "roamcast-destination"
"""Of a DISCONNECT: which broker the client goes to."""
