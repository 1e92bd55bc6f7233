"""`roamcast bench attack`: hostile loads on a real broker, and what honest clients beside them noticed."""
