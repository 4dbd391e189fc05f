"""Integrations with experiment trackers; each module needs its own library."""
