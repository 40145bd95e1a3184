"""Inverters of a configuration: a method, further stages, and a bound on the memory."""

from collections.abc import Callable, Sequence

from trivgeo.groups import Action
from trivgeo.inversion import Inverter, Stage
from trivgeo.inversion.energies import DataEnergy
from trivgeo.inversion.stages import WarmStart

Method = Callable[[Action, DataEnergy | None], Inverter]
"""An inverter of a configuration, still without action and energy."""


class ProposedInverter(Inverter):
    """Inverter whose first hypotheses come from another method; stages with the energy weigh and move them.

    Args:
        action: on data; the scale of its group is that of the proposals.
        energy: see `Inverter`.
        proposals: the method that proposes.
        stages: stages after the proposals, such as `trivgeo.inversion.stages.Select`.
    """

    def __init__(
        self, action: Action, energy: DataEnergy | None, proposals: Method, stages: Sequence[Stage] = ()
    ) -> None:
        proposed = proposals(action, energy)
        super().__init__(proposed.action, energy, [WarmStart(proposed), *stages])


def finished(
    inverter: Inverter, finish: Stage | None, max_evaluations: int | None, compiled: bool = False, log_det: bool = False
) -> Inverter:
    """The inverter of a test: that of a method, with an end and a memory bound.

    Args:
        inverter: the inverter of a method.
        finish: a stage after all of the method's, such as `trivgeo.inversion.stages.Descend`; ``None`` for none.
        max_evaluations: see `Inverter`.
        compiled: see `Inverter`.
        log_det: see `Inverter`.
    """
    if finish is not None:
        inverter = inverter.then(finish)
    return inverter.replace(max_evaluations=max_evaluations, progress=False, compiled=compiled, log_det=log_det)
