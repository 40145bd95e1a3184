"""Old home of `trivgeo.inversion.learned.score_training`."""

from trivgeo._deprecation import Renamed, old_names

__getattr__ = old_names(
    __name__,
    {
        name: Renamed(f"trivgeo.inversion.learned.score_training.{name}", until="0.4")
        for name in ("DistillationTraining", "ScoreTraining", "train")
    },
)
