"""
Compile the kernels before they are needed, and keep them: ``python -m penstock_policies.matching.matching_warmup``.
"""

from __future__ import annotations

from penstock_policies.matching import KERNELS, warm

if __name__ == "__main__":
    KERNELS.keep_all(warm)
    KERNELS.forget_older()
