"""Neural operators on grids: data, training, and comparison of networks with and without symmetries of the equation."""
