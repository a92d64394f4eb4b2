"""The attention of transformers' models where no script chose one and torch_xla is in use.

transformers 4.57 takes sdpa by default, whose mask code reads a tensor on the host: one hidden
evaluation per step, and none is allowed under ``torch_xla.compile(full_graph=True)``. The default
becomes "eager", the same arithmetic; ``attn_implementation="sdpa"`` in the script stays.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def install() -> str | None:
    """Replace the choice that a model makes when it was told none."""
    model: Any = sys.modules["transformers.modeling_utils"].__dict__["PreTrainedModel"]
    original = getattr(model, "get_correct_attn_implementation", None)
    if original is None:
        return None

    @functools.wraps(original)
    def choose(self: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        chosen: str = original(self, requested_attention or "eager", *args, **kwargs)
        return chosen

    model.get_correct_attn_implementation = choose
    return 'models attend "eager" by default, sdpa reads a mask on the host every step'
