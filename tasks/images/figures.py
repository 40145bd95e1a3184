"""Pictures of images before and after inversion."""

from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..files import write_picture
from ..summary import Row

_NUM_COLUMNS = 12
_NUM_ROWS = 3
_TITLE_WIDTH = 4.0  # width of the title of a picture, in inches


def draw_image(axis: Axes, image: Float[Tensor, "c h w"]) -> None:
    """One image: of three channels in its colours, else the mean of its channels in grey."""
    pixels = image.cpu() if len(image) == 3 else image.cpu().mean(0, keepdim=True)
    pixels = pixels.clamp(0.0, 1.0)  # bicubic interpolation exceeds the range
    axis.imshow(pixels.movedim(0, -1).numpy(), cmap="gray", vmin=0, vmax=1)


def draw_pairs(
    path: Path, given: Float[Tensor, "b c h w"], restored: Float[Tensor, "b c h w"], rows: Sequence[Row]
) -> None:
    """Images as given, above the same with the transformation undone; numbers are the predictions of the classifier.

    First come images that are classified wrongly as given, then the others; a prediction that is wrong is red.

    Args:
        path: the file.
        given: transformed images.
        restored: the same with the transformation that was found undone.
        rows: `label`, `predicted` and `predicted_alone` of each.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i]["predicted_alone"] == rows[i]["label"])
    order = order[: _NUM_COLUMNS * _NUM_ROWS]
    columns = min(_NUM_COLUMNS, len(order))
    lines = -(-len(order) // columns)
    # wide enough for the title, which is cut off otherwise
    figure = Figure(figsize=(max(0.9 * columns, _TITLE_WIDTH), 2.15 * lines), layout="constrained")
    axes = figure.subplots(2 * lines, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for place, i in enumerate(order):
        line, column = divmod(place, columns)
        for offset, image, key in ((0, given, "predicted_alone"), (1, restored, "predicted")):
            axis = axes[2 * line + offset, column]
            draw_image(axis, image[i])
            right = rows[i][key] == rows[i]["label"]
            axis.set_title(str(rows[i][key]), fontsize=9, color="black" if right else "tab:red", pad=2)
    figure.suptitle("top: as given; bottom: transformation undone\nnumbers: the classifier's answers", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_picture(figure, path, 110)
