"""`roamcast bench attack`: hostile loads on a real broker, and their effects on honest clients."""
