"""Models, data and tests on partial differential equations."""
