"""Applications of trivgeo, run from a checkout: `python -m tasks fit|validate|test|predict --config FILE`."""
