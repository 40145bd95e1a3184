"""Registration: the transformation that takes one photograph, or one cloud of points, to another."""
