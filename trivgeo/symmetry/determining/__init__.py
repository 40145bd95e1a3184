"""Determining equations: how many symmetries there are, and the search that finds them all."""
