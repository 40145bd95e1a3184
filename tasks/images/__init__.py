"""Models, data and tests on images of digits."""
