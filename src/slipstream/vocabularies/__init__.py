"""Vocabularies: two of them compared id by id, and what engines make of the differences."""
