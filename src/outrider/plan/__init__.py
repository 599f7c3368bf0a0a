"""What speculation will bring on this machine, with this model, these drafters and these prompts: predicted, measured.

    from outrider.plan import plan
    report = plan(LLM("smollm2"), prompts)

`docs/policy.md` explains the figures.
"""

from outrider.plan.bench import Way
from outrider.plan.forecast import Forecast, Steps
from outrider.plan.run import PROMPTS, Plan, plan

__all__ = ["PROMPTS", "Forecast", "Plan", "Steps", "Way", "plan"]
