"""A generative model of real group elements: how the lower half of a written digit sits relative to its upper half."""
