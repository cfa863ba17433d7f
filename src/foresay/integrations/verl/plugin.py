"""What verl's entry point names: importing it installs the hooks.

verl imports it and calls nothing, and logs a failure for debuggers only. So a failure is printed.
"""

from __future__ import annotations

import sys

__all__: list[str] = []

try:
    from foresay.integrations.verl.hooks import install

    install()
except Exception as error:
    print(
        f"foresay: the plugin for verl is not in use ({type(error).__name__}: {error}); LoRA "
        "adapters do not begin new versions, and verl gets no metrics of speculation",
        file=sys.stderr,
        flush=True,
    )
    raise
