from .async_adapter import AsyncL2Adapter as AsyncL2Adapter
from .blocking_adapter import BlockingL2Adapter as BlockingL2Adapter
from .byte_ledger import ByteLedger as ByteLedger
from .circuit_breaker import CircuitBreaker as CircuitBreaker
from .retry import RetryBudget as RetryBudget, RetryPolicy as RetryPolicy
from .thread_executor import WorkerPool as WorkerPool

__version__: str

__all__: list[str]
