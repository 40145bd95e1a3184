"""Exact Lie algebras of symmetries: brackets, names, optimal systems."""
