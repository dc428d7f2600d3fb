"""Both directions against the real torch, in a process of the engine environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ITEM_BYTES
from lmcache_client.stock_pickle_writer import pickle_tensors
from lmcache_client.stock_pickles import read_tensors

ENGINE_PYTHON = Path(
    os.environ.get("LMCACHE_TEST_ENGINE_PYTHON", Path(__file__).parents[4] / ".venv-engine" / "bin" / "python")
)
SHAPES = [(1,), (3,), (2, 3), (4, 16, 6), (2, 3, 5, 7), (1, 2, 1, 3)]

pytestmark = pytest.mark.skipif(
    not ENGINE_PYTHON.exists(),
    reason=f"no torch: {ENGINE_PYTHON} is missing (LMCACHE_TEST_ENGINE_PYTHON names another)",
)

WRITE = """
import json, pathlib, pickle, sys, torch
folder, dtypes = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
def tensor(dtype, *shape):
    size = torch.Size(shape).numel() * getattr(torch, dtype).itemsize
    return torch.randint(0, 256, (size,), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)
def raw(value):
    return bytes(value.contiguous().view(-1).view(torch.uint8).tolist())
for dtype in dtypes:
    for count in range(1, 6):
        tensors = [tensor(dtype, 2, 3 + number, 4) for number in range(count)]
        with torch.inference_mode(count % 2 == 1):
            (folder / f"{dtype}-{count}.pickle").write_bytes(pickle.dumps(tensors))
        (folder / f"{dtype}-{count}.raw").write_bytes(b"".join(map(raw, tensors)))
(folder / "large.pickle").write_bytes(pickle.dumps([torch.full((1 << 20,), 7, dtype=torch.uint8)] ))
(folder / "odd_strides.pickle").write_bytes(pickle.dumps([torch.zeros(6).as_strided((2, 1, 3), (3, 99, 1))]))
base = torch.zeros(4, 6)
class Sub(torch.Tensor): pass
refused = dict(
    transposed=[base.t()], offset=[base[1:]], larger_storage=[base[:2]], gradient=[base.clone().requires_grad_()],
    parameter=[torch.nn.Parameter(base)], empty=[torch.zeros(0)], scalar=[torch.zeros(())], int64=[torch.zeros(3).long()],
    boolean=[torch.zeros(3).bool()], complexes=[torch.zeros(3).to(torch.complex64)], sparse=[base.to_sparse()],
    meta=[base.to("meta")], subclass=[base.as_subclass(Sub)], bare=base, in_tuple=(base,), in_dict={"a": base},
    nested=[[base]], mixed=[base, 1], storage=[base.untyped_storage()], size=[base.shape], expanded=[torch.zeros(1).expand(3)],
)
for name, value in refused.items():
    (folder / f"refused-{name}.pickle").write_bytes(pickle.dumps(value))
for protocol in (0, 1, 2, 3):
    (folder / f"refused-protocol{protocol}.pickle").write_bytes(pickle.dumps([base], protocol))
(folder / "protocol5.pickle").write_bytes(pickle.dumps([base], 5))
"""

READ = """
import json, pathlib, pickle, sys, torch, warnings
warnings.simplefilter("error")
faults = []
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.written")):
    dtype, count, shape = path.stem.split("-")
    dtype, shape = getattr(torch, dtype), torch.Size(json.loads(shape))
    data = path.with_suffix(".raw").read_bytes()
    tensors = pickle.loads(path.read_bytes())
    size = len(data) // int(count)
    if len(tensors) != int(count):
        faults.append((path.name, "count"))
    for number, tensor in enumerate(tensors):
        piece = data[number * size : (number + 1) * size]
        checks = dict(
            kind=type(tensor) is torch.Tensor, dtype=tensor.dtype == dtype, shape=tensor.shape == shape,
            device=tensor.device.type == "cpu", contiguous=tensor.is_contiguous(),
            bytes=bytes(tensor.view(-1).view(torch.uint8).tolist()) == piece,
        )
        tensor.view(-1).view(torch.uint8).fill_(9)
        checks["writable"] = bytes(tensor.view(-1).view(torch.uint8).tolist()) == b"\\x09" * size
        checks["owned"] = number == 0 or tensors[number - 1].data_ptr() != tensor.data_ptr()
        faults += [(path.name, number, name) for name, good in checks.items() if not good]
print(json.dumps(faults))
"""


def _run(script: str, folder: Path, *arguments: str) -> str:
    command = [str(ENGINE_PYTHON), "-c", script, str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def written_by_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    _run(WRITE, folder, json.dumps(sorted(ITEM_BYTES)))
    return folder


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
@pytest.mark.parametrize("count", range(1, 6))
def test_reads_what_torch_writes(written_by_torch: Path, dtype: str, count: int) -> None:
    tensors = read_tensors((written_by_torch / f"{dtype}-{count}.pickle").read_bytes(), count)
    assert [(t.dtype, t.shape) for t in tensors] == [(dtype, (2, 3 + number, 4)) for number in range(count)]
    assert b"".join(t.data for t in tensors) == (written_by_torch / f"{dtype}-{count}.raw").read_bytes()


def test_reads_large_tensors_odd_strides_and_protocol_5(written_by_torch: Path) -> None:
    [large] = read_tensors((written_by_torch / "large.pickle").read_bytes(), 1)
    assert large.data == b"\x07" * (1 << 20)
    [odd] = read_tensors((written_by_torch / "odd_strides.pickle").read_bytes(), 1)
    assert (odd.shape, bytes(odd.data)) == ((2, 1, 3), bytes(24))
    [newer] = read_tensors((written_by_torch / "protocol5.pickle").read_bytes(), 1)
    assert (newer.shape, bytes(newer.data)) == ((4, 6), bytes(96))


def test_refuses_everything_else_that_torch_writes(written_by_torch: Path) -> None:
    refused = sorted(written_by_torch.glob("refused-*.pickle"))
    assert len(refused) == 25
    for path in refused:
        try:
            accepted = read_tensors(path.read_bytes(), 8)
        except ProtocolError:
            continue
        pytest.fail(f"{path.stem} was accepted: {accepted}")


def test_torch_reads_what_is_written(tmp_path: Path) -> None:
    for dtype, item in ITEM_BYTES.items():
        for shape in SHAPES:
            for count in (1, 3):
                size = item
                for dimension in shape:
                    size *= dimension
                chunks = [bytes((7 * number + at) % 251 for at in range(size)) for number in range(count)]
                name = f"{dtype}-{count}-{json.dumps(shape)}"
                (tmp_path / f"{name}.written").write_bytes(b"".join(pickle_tensors(dtype, shape, chunks)))
                (tmp_path / f"{name}.raw").write_bytes(b"".join(chunks))
    assert len(list(tmp_path.glob("*.written"))) == 2 * len(ITEM_BYTES) * len(SHAPES)
    assert json.loads(_run(READ, tmp_path)) == []
