"""What serdes save, what they cost, and how far quantized caches move a model.

    .venv/bin/python -m benchmarks.serde                                     # some minutes
    .venv/bin/python -m benchmarks.serde --tokens 1024 --train-seconds 20 --rounds 1 --folder /tmp    # a small version
    .venv/bin/python -m benchmarks.serde --draw benchmarks/results/...-serde.json

*Sizes and speed*: one thread, CPU time of this process, one object of the shape of a model of 8 billion parameters (32
layers, 8 heads of 128, 256 tokens of bfloat16: 32 MiB), filled with random bytes and with the keys and values of a small
model that was trained a moment ago.  *Accuracy*: the prompt's cache goes through the serde, and the text goes on behind it;
attention output, next token, and what the model goes on with by itself are compared with those behind the cache as it was
(bfloat16), also for a bare cast to fp8.  A prompt goes through in pieces: attention never has more than 1,024 rows at a time.
"""

from __future__ import annotations

import argparse
import datetime
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import machine
from benchmarks.report import DOCS, replaced
from benchmarks.results import FOLDER, Results, Spread, load, merged
from benchmarks.serde_model import LayerCache, Shape, SmallModel, text, trained
from lmcache_core import ObjectLayout, Serde
from lmcache_devkit import object_key
from lmcache_serde.plugin import lmcache_serdes

CHUNK: Final = 256
LARGE: Final = ObjectLayout(2, 32, CHUNK, 1024, "bfloat16")
CONTINUED_TOKENS: Final = 256
GREEDY_TOKENS: Final = 64
SHAPE: Final = Shape()
KEY: Final = object_key(1)
SUBJECTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "zstd": ("zstd", {}),
    "zstd, level 1": ("zstd", {"level": 1}),
    "zstd, level 3": ("zstd", {"level": 3}),
    "fp8": ("fp8", {}),
    "int8": ("int8", {}),
    "int4": ("int4", {}),
    "aesgcm": ("aesgcm", {"keys": [{"value": bytes(range(100, 132)).hex()}]}),
}
"""Name, serde and settings."""
CAST: Final = "fp8, bare cast"
"""Without scales, for comparison; no serde does it."""
SIZES: Final = ("ratio", "encode GB/s", "decode GB/s")
ACCURACY: Final = ("attention error", "next token differs", "greedy tokens alike", "loss added")
ACCURACY_HEADS: Final = (
    "error of attention's output",
    f"share of {CONTINUED_TOKENS} next tokens that differ",
    f"greedy tokens alike, of {GREEDY_TOKENS}",
    "loss added, nats",
)
LARGEST: Final = "largest key or value"
PART: Final = "serde"
"""Of docs/operate/compression-and-encryption.md."""
PAGE: Final = DOCS / "operate" / "compression-and-encryption.md"
_LENGTH: Final = re.compile(r", (\d+) tokens$")


def opened(name: str, settings: Mapping[str, Any]) -> Serde:
    offer = next(offer for offer in lmcache_serdes() if offer.name == name)
    model = _named(offer.settings).model_validate(settings) if offer.settings else None
    serde: Serde = _named(offer.open)(model)
    return serde


def measure(serde: Serde, payload: NDArray[np.uint8]) -> dict[str, float]:
    """Of one object of the large shape, into memory that is there, after one that does not count."""
    into, back = (np.ones(size, np.uint8) for size in (serde.stored_bytes_max(LARGE), len(payload)))
    length = serde.encode(KEY, LARGE, payload.data, into.data)
    serde.decode(KEY, LARGE, serde.parameters(), into[:length].data, back.data)
    start_time = time.process_time()
    length = serde.encode(KEY, LARGE, payload.data, into.data)
    encoded = time.process_time()
    serde.decode(KEY, LARGE, serde.parameters(), into[:length].data, back.data)
    decoded = time.process_time()
    if serde.lossless and not (back == payload).all():
        raise AssertionError("a lossless serde lost something")
    gigabytes = len(payload) / 1e9
    figures = (len(payload) / length, gigabytes / (encoded - start_time), gigabytes / (decoded - encoded))
    return dict(zip(SIZES, figures, strict=True))


def chunks_of(cache: Sequence[LayerCache]) -> NDArray[np.uint16]:
    """A model's cache as objects `[chunk][kv][layer][slot][hidden]` of bfloat16."""
    planes = torch.stack([torch.stack([part.transpose(0, 1).flatten(1) for part in layer]) for layer in cache], 1)
    halves = planes.bfloat16().view(torch.int16).numpy().view(np.uint16)
    kv, layers, tokens, hidden = halves.shape
    return np.ascontiguousarray(halves.reshape(kv, layers, tokens // CHUNK, CHUNK, hidden).transpose(2, 0, 1, 3, 4))


def cache_of(chunks: NDArray[np.uint16]) -> list[LayerCache]:
    count, kv, layers, slots, hidden = chunks.shape
    whole = chunks.transpose(1, 2, 0, 3, 4).reshape(kv, layers, count * slots, hidden)
    floats = torch.from_numpy((whole.astype(np.uint32) << 16).view(np.float32))
    heads = floats.unflatten(-1, (-1, SHAPE.head_size)).transpose(2, 3)
    return [LayerCache(heads[0, layer], heads[1, layer]) for layer in range(layers)]


def large_object(chunks: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """As many of a small model's planes, side by side, as the large shape has room for; again from the first when they
    are used up, which is too far away for a compressor to see."""
    pieces = chunks.transpose(0, 2, 1, 3, 4).reshape(-1, 2, CHUNK, SHAPE.hidden)  # [chunk x layer][kv][slot][hidden]
    across = LARGE.hidden // SHAPE.hidden
    order = np.arange(LARGE.layers * across) % len(pieces)
    wide = pieces[order].reshape(LARGE.layers, across, 2, CHUNK, SHAPE.hidden).transpose(2, 0, 3, 1, 4)
    return np.ascontiguousarray(wide).reshape(-1).view(np.uint8)


def through(serde: Serde) -> Callable[[NDArray[np.uint16]], NDArray[np.uint16]]:
    """Each chunk to what is stored, and back."""

    def there_and_back(chunks: NDArray[np.uint16]) -> NDArray[np.uint16]:
        layout = ObjectLayout(2, SHAPE.layers, CHUNK, SHAPE.hidden, "bfloat16")
        into, back = np.empty(serde.stored_bytes_max(layout), np.uint8), np.empty_like(chunks)
        for chunk, result in zip(chunks, back, strict=True):
            payload = chunk.reshape(-1).view(np.uint8)
            length = serde.encode(KEY, layout, payload.data, into.data)
            target = result.reshape(-1).view(np.uint8)
            serde.decode(KEY, layout, serde.parameters(), into[:length].data, target.data)
        return back

    return there_and_back


def cast(chunks: NDArray[np.uint16]) -> NDArray[np.uint16]:
    halves = torch.from_numpy(chunks.view(np.int16)).view(torch.bfloat16)
    back: NDArray[np.uint16] = (
        halves.to(torch.float8_e4m3fn).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    )
    return back


def accuracy(model: SmallModel, chunks: NDArray[np.uint16], next_tokens: Tensor) -> dict[str, dict[str, float]]:
    """Of each way of keeping the cache, against keeping it as it is."""
    ways = {name: through(opened(*SUBJECTS[name])) for name in ("fp8", "int8", "int4")} | {CAST: cast}
    before, wanted = next_tokens[:-1], next_tokens[1:]
    kept = cache_of(chunks)
    exact = model.steps(before, kept)
    greedy = model.greedy(int(before[0]), kept, GREEDY_TOKENS)
    found: dict[str, dict[str, float]] = {}
    for name, way in ways.items():
        cache = cache_of(way(chunks))
        moved = model.steps(before, cache)
        errors = [
            float((other - one).norm() / one.norm()) for one, other in zip(exact.attended, moved.attended, strict=True)
        ]
        differs = float((exact.logits.argmax(-1) != moved.logits.argmax(-1)).float().mean())
        added = torch.nn.functional.cross_entropy(moved.logits, wanted)
        added = added - torch.nn.functional.cross_entropy(exact.logits, wanted)
        figures = (max(errors), differs, float(alike(model, cache, greedy)), float(added))
        found[name] = dict(zip(ACCURACY, figures, strict=True))
    return found


def alike(model: SmallModel, cache: Sequence[LayerCache], greedy: Tensor) -> int:
    """How many tokens are the same before the first that is not, where the model goes on by itself behind this cache: it has
    then seen nothing but what `greedy` says, so that one run over that finds the place."""
    same = model.steps(greedy[:-1], cache).logits.argmax(-1) == greedy[1:]
    return int(same.long().cumprod(0).sum())


def run(args: argparse.Namespace) -> Results:
    start_time, taken_on = (
        time.monotonic(),
        machine.description(),
    )  # the load is that of others, and not of the training
    tokens = text(seed=1)
    model, loss = trained(SHAPE, tokens, args.train_seconds, seed=1)
    results = Results(
        what="serde",
        started_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=taken_on,
        limits={"memcpy_gb_s": machine.memcpy_gb_s(), "training_loss": loss},
        subjects={name: f"{serde} {sorted(settings.items())}" for name, (serde, settings) in SUBJECTS.items()},
    )
    results.subjects["aesgcm"] = "aesgcm with one key"
    results.subjects[CAST] = "torch's cast to float8_e4m3fn and back, without scales"
    try:
        _measure(args, start_time, model, tokens, results)
    except KeyboardInterrupt:
        results.failures.append("interrupted")
    results.seconds = round(time.monotonic() - start_time)
    return results


def _measure(args: argparse.Namespace, start_time: float, model: SmallModel, tokens: Tensor, results: Results) -> None:
    """All rounds that there is time for; what is known is kept after each prompt."""
    for number in range(args.rounds):
        passed = time.monotonic() - start_time
        if number and passed * (number + 1) / number > args.minutes * 60:  # as long as those before it
            print(f"{passed:6.0f} s  no time for round {number}", flush=True)
            break
        chance = np.random.default_rng(number)
        for length in args.tokens:
            start = int(chance.integers(0, len(tokens) - length - CONTINUED_TOKENS - 1))
            cache = model.prefill(tokens[start : start + length])
            largest = max(float(part.abs().max()) for layer in cache for part in layer)
            results.limits[LARGEST] = max(results.limits.get(LARGEST, 0.0), largest)
            chunks = chunks_of(cache)
            del cache
            after = tokens[start + length : start + length + CONTINUED_TOKENS + 1]
            for name, figures in accuracy(model, chunks, after).items():
                results.add(name, number, {f"{figure}, {length} tokens": value for figure, value in figures.items()})
            print(f"{time.monotonic() - start_time:6.0f} s  round {number}  {length} tokens", flush=True)
            results.save(args.folder)
        for data, payload in (("kv", large_object(chunks)), ("random", _random(LARGE.payload_bytes, chance))):
            for name, (serde, settings) in SUBJECTS.items():
                figures = measure(opened(serde, settings), payload)
                results.add(name, number, {f"{figure}, {data}": value for figure, value in figures.items()})
        print(f"{time.monotonic() - start_time:6.0f} s  round {number}  sizes and speed", flush=True)


def page(results: Results) -> str:
    """The part of docs/operate/compression-and-encryption.md."""
    machine_, limits = results.machine, results.limits
    rounds = max((len(by) for figure in results.samples.values() for by in figure.values()), default=0)
    lengths = sorted({int(match[1]) for figure in results.samples if (match := _LENGTH.search(figure))})
    taken = (
        f"Taken on {results.started_at[:10]}, commit {machine_.get('commit', 'unknown')}, on {machine_.get('cores')} cores of "
        f"{machine_.get('cpu')} with load {machine_.get('load', 'unknown')} before it began; medians of {rounds} "
        f"round{'s' * (rounds > 1)} (least to most).  The small model knows {limits.get('training_loss', float('nan')):.2f} "
        f"nats per byte, and its largest key or value is {limits.get(LARGEST, float('nan')):.3g}: a bare cast to fp8 takes up "
        "to 448."
    )
    parts = [taken]
    for data, says in (("kv", "Keys and values of the small model"), ("random", "Random bytes")):
        if text := _table(results, [f"{figure}, {data}" for figure in SIZES], ["size ratio", *SIZES[1:]]):
            parts += [f"{says}, speed for each core:", text]
    for length in lengths:
        if text := _table(results, [f"{figure}, {length} tokens" for figure in ACCURACY], ACCURACY_HEADS):
            parts += [f"Behind a prompt of {length:,} tokens:", text]
    return "\n\n".join(parts)


def _table(results: Results, figures: Sequence[str], heads: Sequence[str]) -> str:
    """Medians, with their range where it is more than that; one row per subject that has any of them."""
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for subject in results.subjects:
        spreads = [results.spread(figure, subject) for figure in figures]
        if any(spreads):
            lines.append(f"| {subject} | {' | '.join(_cell(spread) for spread in spreads)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ""
    middle, least, most = (f"{value:.3g}" for value in spread)
    return middle if least == most else f"{middle} ({least} to {most})"


def _drawn(paths: Sequence[Path]) -> None:
    """Raises SystemExit where the page has no place for it."""
    text = page(merged([load(path) for path in paths]))
    try:
        PAGE.write_text(replaced(PAGE.read_text(), PART, text))
    except ValueError as error:
        raise SystemExit(f"{PAGE}: {error}") from None
    print(f"wrote {PAGE}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokens", type=_lengths, default=[1024, 8192, 32768], help="lengths of prompts, multiples of 256"
    )
    parser.add_argument("--train-seconds", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no other round starts")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the results are kept")
    parser.add_argument(
        "--draw",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; write these runs into the page",
    )
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    if args.draw:
        _drawn(args.draw)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = run(args)
    print(f"\n{page(results)}\n\nkept in {results.save(args.folder)}")
    sys.exit(bool(results.failures))


def _lengths(given: str) -> list[int]:
    lengths = [int(part) for part in given.split(",")]
    if not lengths or any(length < CHUNK or length % CHUNK for length in lengths):
        raise argparse.ArgumentTypeError(f"lengths are multiples of {CHUNK}")
    return lengths


def _named(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _random(length: int, chance: np.random.Generator) -> NDArray[np.uint8]:
    return np.frombuffer(chance.bytes(length), np.uint8)


if __name__ == "__main__":
    main()
