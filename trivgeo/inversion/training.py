"""Old home of `trivgeo.inversion.learned.training`."""

from trivgeo._deprecation import Renamed, old_names

__getattr__ = old_names(
    __name__,
    {
        name: Renamed(f"trivgeo.inversion.learned.training.{name}", until="0.4")
        for name in ("DistillationTraining", "ScoreTraining", "train")
    },
)
