"""Equations as text and on the jet space, and fields with exact coefficients."""
