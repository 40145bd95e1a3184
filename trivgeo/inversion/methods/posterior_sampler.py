"""Weighted samples of the transformation posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trivgeo.checks import checked
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.sampling.importance import ImportanceSampling
from trivgeo.inversion.stages.chains import WarmStart


@checked
class PosteriorSampler(Inverter):
    r"""Samples the transformation posterior with weights, and reports whether the weights can be trusted.

    .. math:: p(g \mid \tilde x) \propto p_0(g) \, e^{-E(g) / T}, \quad
        E(g) = E_x(g^{-1} \tilde x) - \log|\det J_{g^{-1}}(\tilde x)|

    a density for left Haar measure. Averages over the sample converge to averages over the posterior, and `modes` have
    weights with standard errors. `TIED` and other searches do not have this property. The result is a
    `PosteriorSample`. The method is adaptive importance sampling after sequential Monte Carlo, see
    `trivgeo.inversion.stages.ImportanceSampling`. It is meant for groups of up to some twenty dimensions.

    ```python
    sample = PosteriorSampler(action, energy)(x_tilde, generator=torch.Generator().manual_seed(0))
    sample.modes().weights, sample.modes().standard_errors, sample.log_evidence, sample.trusted
    ```

    Args:
        action: the action on data.
        energy: see `Inverter`; minus the logarithm of a density of clean data, up to a constant. For an energy that is
            none, such as a classifier's, ``sampler.replace(log_det=False)`` leaves out the log-determinant, which sums
            over all pixels or points.
        prior: a distribution of transformations with ``sample(num_samples, generator)`` and ``log_prob(g)``, such as
            those of `trivgeo.generative`; a learned one is ``model.distribution(condition=c)`` of a `GroupDiffusion`,
            each of whose densities is a flow to solve; ``None`` for left Haar measure. That is improper on groups that
            are not compact: the energy must then hold g back, and the search for wells begins within a few units of the
            basis of the group about the identity, or about ``initial``.
        proposals: an inverter (`TIED`, `LearnedInverter`, ...) whose hypotheses say where to look; its evaluations
            count. The weights are right with any; good ones leave more of the budget to the sample. With a
            `LearnedInverter` the search begins at the learned posterior, without evaluations of the energy.
        num_samples: number K of weighted elements for each datum.
        budget: the largest number of energies and gradients, together, for each datum; at least twice K.
        temperature: T, positive; of the energy alone, the prior is not tempered.

    Raises:
        ConfigurationError: a setting out of its range, an action, energy or inverter that is none, or a prior without
            densities.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        *,
        prior: Any = None,
        proposals: Inverter | None = None,
        num_samples: int = 256,
        budget: int = 2000,
        temperature: float = 1.0,
    ) -> None:
        start = None if proposals is None else WarmStart(proposals)
        stage = ImportanceSampling(num_samples, budget, temperature, prior, start)
        super().__init__(action, as_energy(energy), [stage], log_det=True)
