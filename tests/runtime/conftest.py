"""One thread for torch in the tests' own process: workers side by side would spin in each other's way."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
