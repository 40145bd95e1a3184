"""Verdicts: trusted without reasons, and what they print."""

import torch

from trivgeo.verdict import Verdict, trusted_mask


def test_reasons_decide() -> None:
    good, bad = Verdict(assumptions=("no well is hidden",)), Verdict(("the weights are uneven", "a mode was lost"))
    assert good.trusted
    assert good
    assert not bad.trusted
    assert not bad
    assert str(good) == "trusted (if no well is hidden)"
    assert str(bad) == "not trusted: the weights are uneven; a mode was lost"
    assert torch.equal(trusted_mask([good, bad, good]), torch.tensor([True, False, True]))
    assert trusted_mask([]).shape == (0,)
