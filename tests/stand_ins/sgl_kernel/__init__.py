"""In place of SGLang's compiled kernels, of which there is no build for processors without AMX: a Llama calls none of them
there.  One that is called all the same says so by its name."""

from absent import Absent, absent, give_submodules

__version__ = "0.4.10"

# Where it finds none here, SGLang has types of its own.
give_submodules(__name__, missing=["sgl_kernel.scalar_type"])


def __getattr__(name: str) -> Absent:
    return absent(__name__, name)
