"""What every worker of the pool needs, imported once in the process from which they are forked."""

from __future__ import annotations

import torch._dynamo  # the first use of an optimizer imports it
import torch.distributed.fsdp
import torch.nn.parallel

from laconic import registry

torch.set_num_threads(1)
registry.load()
