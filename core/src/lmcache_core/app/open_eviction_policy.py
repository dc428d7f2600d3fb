"""Opens an eviction policy, for either tier."""

from __future__ import annotations

import logging

from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.contracts.policies import EvictionPolicy
from lmcache_core.kernels.choice import Kernels

logger = logging.getLogger(__name__)


def open_eviction_policy(spec: OfferSpec, plugins: LoadedPlugins, kernels: Kernels) -> EvictionPolicy:
    """The policy, which has been told of the kernels.  Raises what the policy raises when it is opened."""
    policy: EvictionPolicy = spec.open_as(EvictionPolicy, plugins)
    try:
        policy.use_kernels(kernels)
    except Exception:  # a plugin boundary: it works without having been told
        logger.exception("eviction policy failed to take the kernels, and goes on without name=%s", spec.name)
    return policy
