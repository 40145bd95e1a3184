"""Applications of trivgeo, run by `trivgeo fit|validate|test|predict --config FILE`, or `python -m tasks ...`."""
