from .async_adapter import AsyncL2Adapter as AsyncL2Adapter
from .backend_calls import CircuitBreaker as CircuitBreaker, RetryBudget as RetryBudget, RetryPolicy as RetryPolicy
from .blocking_adapter import BlockingL2Adapter as BlockingL2Adapter
from .byte_ledger import ByteLedger as ByteLedger
from .executor import WorkerPool as WorkerPool
from .passing_digest import PassingDigest as PassingDigest

__version__: str

__all__: list[str]
