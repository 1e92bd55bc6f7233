"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How fast examples are drawn says something about the machine, not about what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
