"""Vocabularies: compares two of them id by id, and says how engines handle the differences."""
