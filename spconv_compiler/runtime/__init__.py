"""Running launch plans on a device."""
