"""In place of torchvision, whose build for CUDA does not load beside a torch for CPUs: only multimodal models call it."""

from absent import Absent, absent, give_submodules

__version__ = "0.28.0"

give_submodules(__name__)


def __getattr__(name: str) -> Absent:
    return absent(__name__, name)
