"""The service with a study that has charges, and visitors who are signed in."""

from support.browser import admin, auditor, house, nobody_has_failed

__all__ = ["admin", "auditor", "house", "nobody_has_failed"]
