"""Does speculative decoding give the target's own text, on this machine, with this model? Anyone can run the proof.

    from outrider.certify import QUICK, certify
    certificate = certify("smollm2", extent=QUICK)
    assert certificate.holds

`docs/exactness.md` says what is checked, and how the figures were chosen.
"""

from outrider.certify.certificate import Certificate
from outrider.certify.identity import PROMPTS
from outrider.certify.run import FULL, QUICK, Extent, certify

__all__ = ["FULL", "PROMPTS", "QUICK", "Certificate", "Extent", "certify"]
