"""The Hugging Face Trainer's default optimizer where it trains with torch_xla.

transformers 4.57 takes ``adamw_torch_fused`` by default, and torch's fused AdamW refuses XLA
tensors. The default becomes the unfused AdamW: the same update, which XLA fuses itself. Only the
default changes: an optimizer that a script or its command line names stays.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

FUSED, UNFUSED = "adamw_torch_fused", "adamw_torch"


def install() -> str | None:
    """Change the default of ``TrainingArguments.optim``, of which subclasses inherit it."""
    arguments: Any = sys.modules["transformers.training_args"].__dict__["TrainingArguments"]
    if arguments.optim != FUSED:
        return None
    # The dataclass has copied it to three places: the class, its field, and __init__'s defaults.
    arguments.optim = UNFUSED
    [field] = [f for f in dataclasses.fields(arguments) if f.name == "optim"]
    field.default = UNFUSED
    init = arguments.__init__
    init.__defaults__ = tuple(UNFUSED if d == FUSED else d for d in init.__defaults__)
    return f"the Trainer's default optimizer is {UNFUSED}, {FUSED} has no XLA kernel"
