"""Published methods of inversion and their relatives: constructors of inverters, exported by `trivgeo.inversion`."""
