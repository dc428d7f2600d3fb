"""The class that vLLM opens, once in the scheduler and once in each worker.

It translates vLLM's objects and calls the side that it was opened for; nothing is decided here. Whatever the server
does, no method raises because of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.utils import get_pp_indices
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname

from lmcache_vllm.adapter_contents import AdapterContents
from lmcache_vllm.blend_choice import BLEND, BlendChoices
from lmcache_vllm.blend_refusals import blend_selectors, check_blend
from lmcache_vllm.blend_separator import separator_tokens
from lmcache_vllm.element_order import with_order
from lmcache_vllm.engine_facts import cache_groups, kv_layout, placement, request_facts, step_facts
from lmcache_vllm.handoffs import HandoffParams
from lmcache_vllm.in_process import InProcessCache, endpoint_of, is_layerwise, split, with_blending
from lmcache_vllm.metadata import StepPlan, WorkerReport
from lmcache_vllm.metrics import NodePromMetrics, NodeStats
from lmcache_vllm.model_identity import EngineIdentity, engine_identity
from lmcache_vllm.placement import CacheGroup, block_span
from lmcache_vllm.registration import log_where_vllm_does
from lmcache_vllm.scheduler import SchedulerSide
from lmcache_vllm.server_link import ServerLink
from lmcache_vllm.settings import Settings
from lmcache_vllm.worker import WorkerSide

logger = logging.getLogger(__name__)

_COMPUTED = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
"""States of a request whose prompt was computed."""

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class LMCacheNodeConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM is not there to be checked
    """Keeps the KV cache of finished prefill work in the server of this node.

    vLLM calls each side from one thread of its own process.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        """Raises ValueError for settings that are wrong and for models that the connector cannot serve; a server that
        is not there is no error."""
        super().__init__(vllm_config, role, kv_cache_config)
        log_where_vllm_does()
        transfer_config = vllm_config.kv_transfer_config
        extra, overrides = split(transfer_config.kv_connector_extra_config)
        settings = with_blending(Settings.of(extra), extra, overrides)
        if settings.in_process:
            settings = replace(settings, url=endpoint_of(transfer_config.engine_id))
        groups = cache_groups(vllm_config, kv_cache_config)
        gives_model = role is KVConnectorRole.SCHEDULER or settings.blend == "off" or _gives_model(vllm_config)
        check_blend(settings, vllm_config, kv_cache_config, gives_model=gives_model)
        self._choices = BlendChoices(settings, blend_selectors(settings)) if transfer_config.is_kv_consumer else None
        identity = _identity(vllm_config, groups, settings)
        # A cache that fails costs its hit: the tokens are computed. vLLM reads this after it opened the connector.
        transfer_config.kv_load_failure_policy = "recompute"
        self._adapters = AdapterContents()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._cache: InProcessCache | None = None
        if role is KVConnectorRole.SCHEDULER:
            parallel = vllm_config.parallel_config
            if settings.in_process:
                self._cache = InProcessCache(
                    overrides,
                    settings.url,
                    workers=parallel.local_world_size,
                    block_tokens=block_span(groups),
                    number=parallel.data_parallel_index,
                )
                settings = self._cache.applied(settings, extra)
            self._handoffs = HandoffParams(settings, transfer_config.engine_id)
            logger.info("facts of the KV cache served_name=%s %s", identity.served, identity)
            self._scheduler = SchedulerSide(
                settings,
                placement(vllm_config, "", rank=0),  # the workers report the name
                groups,
                ServerLink(settings),
                workers=parallel.world_size,
                stores=transfer_config.is_kv_producer,
                loads=transfer_config.is_kv_consumer,
                separator=separator_tokens(settings, vllm_config.model_config),
            )
        else:
            rank = vllm_config.parallel_config.rank % vllm_config.parallel_config.world_size
            place = placement(vllm_config, identity.model_name(), rank)
            layers, dtype = vllm_config.compilation_config.static_forward_context, vllm_config.model_config.dtype
            # The stock connector cannot say in which order its blocks are: where both share, neither does.
            observe = None if settings.share_with_stock else partial(with_order, layers=layers, dtype=dtype)
            self._worker = WorkerSide(settings, place, groups, kv_layout(vllm_config), identity, observe)

    @property
    def requires_kv_delivery(self) -> bool:
        """A store that is lost is a miss later on, and nothing else."""
        return False

    # In the scheduler

    def on_new_request(self, request: Request) -> None:
        handoff = self._handoffs.read(request.kv_transfer_params, request.request_id)
        self._scheduling.on_new_request(request_facts(request, self._adapters, handoff, self._choices))

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduling.matched_tokens(request.request_id, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        # The block table is resolved only for a load: this is called for every request that is scheduled.
        block_ids = blocks.get_block_ids() if num_external_tokens or self._scheduling.watches_blocks else ()
        self._scheduling.on_allocated(request.request_id, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepPlan:
        return self._scheduling.plan(step_facts(scheduler_output))

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        self._scheduling.on_worker_results(
            report if isinstance(report, WorkerReport) else None, connector_output.finished_recving or ()
        )

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._finished(request, block_ids)

    def reset_cache(self) -> bool:
        return self._scheduling.reset_cache()

    # In a worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._working.register_kv_caches(kv_caches)

    def bind_model_runner(self, runner: Any) -> None:
        """`runner` is vLLM's, of this worker: blends run its model. Called by `BlendWorker`, before the first step."""
        self.bind_connector_metadata(StepPlan())  # vLLM calls for each layer in steps alone
        try:
            self._working.bind_model_runner(runner)
        finally:
            self.clear_connector_metadata()

    def handle_preemptions(self, kv_connector_metadata: StepPlan) -> None:
        self._working.on_step(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._working.start_loads(self._plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """With `lmcache.layerwise`, waits for this layer alone: a thread copies all of them, in order, from the start of the
        step. Without it a request is computed only when all of its layers were loaded, and nothing is waited for.
        Passes of blends are watched here."""
        self._working.before_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Without `lmcache.layerwise` stores begin when all layers were written, and run beside the next step."""
        self._working.after_layer(layer_name)

    def wait_for_save(self) -> None:
        self._working.start_stores(self._plan)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = self._working.results()
        return KVConnectorTransferResults(
            set(results.finished_sending), set(results.finished_recving), set(results.failed_recving)
        )

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        results = self._working.results()
        return set(results.finished_sending), set(results.finished_recving)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._working.failed_blocks()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        return self._working.report()

    # On both sides

    def get_kv_connector_stats(self) -> NodeStats | None:
        side = self._scheduler or self._worker
        counts = side.take_counts() if side else {}
        return NodeStats(counts) if counts else None

    def shutdown(self) -> None:
        """Waits for copies that touch vLLM's memory, and gives back what the server holds for this process."""
        if self._scheduler:
            self._scheduler.close()
        if self._cache:
            self._cache.close()
        if self._worker:
            self._worker.close()

    # Of the class

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A graph of whole steps calls nothing between two layers."""
        return is_layerwise(extra_config)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> NodeStats | None:
        return NodeStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Mapping[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        return NodePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _finished(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        request_id, computed = request.request_id, request.status.name in _COMPUTED
        tokens = self._scheduling.handed_over(request_id, computed=computed)
        handoff = self._handoffs.read(request.kv_transfer_params, request_id)
        params = None
        if tokens is not None and handoff is not None:
            params = self._handoffs.write(handoff, request_id, tokens, self._scheduling.server_name)
        if (blend := self._scheduling.blend_answer(request_id)) is not None:
            params = {**(params or {}), BLEND: blend}
        return self._scheduling.on_finished(request_id, block_ids if computed else ()), params

    @property
    def _scheduling(self) -> SchedulerSide:
        assert self._scheduler is not None, "vLLM called a worker's connector as a scheduler's"
        return self._scheduler

    @property
    def _working(self) -> WorkerSide:
        assert self._worker is not None, "vLLM called a scheduler's connector as a worker's"
        return self._worker

    @property
    def _plan(self) -> StepPlan:
        plan = self._get_connector_metadata()
        assert isinstance(plan, StepPlan)
        return plan


def _gives_model(vllm_config: VllmConfig) -> bool:
    from lmcache_vllm.blend_worker import BlendWorker  # the platform's worker comes with it, as in this process anyway

    return issubclass(resolve_obj_by_qualname(vllm_config.parallel_config.worker_cls), BlendWorker)


def _identity(vllm_config: VllmConfig, groups: tuple[CacheGroup, ...], settings: Settings) -> EngineIdentity:
    stages = vllm_config.parallel_config.pipeline_parallel_size
    layers = vllm_config.model_config.get_total_num_hidden_layers()
    return engine_identity(
        vllm_config,
        groups,
        stages=[get_pp_indices(layers, stage, stages) for stage in range(stages)],
        float8=str(current_platform.fp8_dtype()),
        share_with_stock=settings.share_with_stock,
    )
