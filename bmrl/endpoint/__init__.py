"""An OpenAI-compatible chat server in the place of a policy. No torch.

`sampler` is what a rollout speaks to, `answers` what a server says, `settings` how it is asked and what that costs.
"""

from bmrl.endpoint.sampler import EndpointSampler, Texts
from bmrl.endpoint.settings import Cost, Endpoint

__all__ = ["Cost", "Endpoint", "EndpointSampler", "Texts"]
