"""Neural operators on grids: data, training, and what symmetries of the equation do for them."""
