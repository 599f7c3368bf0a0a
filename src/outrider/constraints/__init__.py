"""What a text is allowed to be, whatever the model would say: the protocol, and JSON schemas by `grammar`."""

from outrider.constraints.base import Constraint, legal_part

__all__ = ["Constraint", "legal_part"]
