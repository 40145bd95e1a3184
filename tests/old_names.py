"""Names of the last version that still work, beside those that replace them.

One row a name, in order of the old ones: (old, new), both as dotted paths.
"""

OLD_NAMES = [
    ("trivgeo.groups.FlowSettings", "trivgeo.groups.OdeSettings"),
    ("trivgeo.groups.structure.Split", "trivgeo.groups.structure.LeviDecomposition"),
]
