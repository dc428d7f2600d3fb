"""Train the quality model from scratch: `python -m benchmarks.blend_quality.train --seconds 1500 --threads 1`.

Documents grow while it learns (a curriculum), and every other step has random lengths.  A checkpoint is written beside
the model every hundred steps; a run that was interrupted goes on from it.  Data and first weights follow from the seed.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import torch
import torch.nn.functional as tf
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.blend_quality.task import BOS, NAMED, SAME_OF, VOCABULARY, lesson

MODEL: Final = Path(__file__).parent / "model"
LAYERS: Final = 8
FIRST_LAYERS: Final = 5
INSERTED_AT: Final = 2
"""Five layers learn the task; then others are put in at this place, which do nothing at first.  Questions read documents
behind them: if they did so in the first layers, those that a probe computes would repair all by themselves."""
GROWN_STAGE: Final = 2
DOCUMENTS: Final = 8
LENGTHS: Final = (6, 16, 32, 64)
BATCH_TOKENS: Final = 4096
SEQUENCES_MAX: Final = 64
RATE: Final = 1.5e-3
WARM_UP_STEPS: Final = 100
DECAY_FROM: Final = 0.7  # of the time; the learning rate falls to zero from there on
HINT_WEIGHT: Final = 0.5
PASSED: Final = 0.95
REPORT_STEPS: Final = 100
KINDS: Final = {"within": NAMED, "across": SAME_OF}


@dataclass
class Progress:
    """Where a run is; with weights and optimizer, all that a checkpoint holds."""

    step: int = 0
    stage: int = 0
    grown: int = 0  # the step in which the model got all of its layers
    right: float = 0.0  # moving average of the answers to mixed lengths
    seconds: float = 0.0  # of processor time


class Batch(NamedTuple):
    """Tokens are [sequences, tokens]; of targets, each column is the sequence, the place in it, and the token there."""

    documents: Tensor
    hints: Tensor
    questions: Tensor
    answers: Tensor


def new_model(layers: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=layers,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=BOS,
        eos_token_id=None,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.5)
    return model


def grown(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a model of all layers that answers as this one does."""
    more = LAYERS - FIRST_LAYERS
    found = new_model(LAYERS)
    for name, module in model.model.named_children():
        if name != "layers":
            found.model.get_submodule(name).load_state_dict(module.state_dict())
    found.lm_head.load_state_dict(model.lm_head.state_dict())
    for index, layer in enumerate(model.model.layers):
        place = index if index < INSERTED_AT else index + more
        found.model.layers[place].load_state_dict(layer.state_dict())
    for layer in found.model.layers[INSERTED_AT : INSERTED_AT + more]:
        for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
            torch.nn.init.zeros_(last.weight)
    return found


def batch(random: Random, documents: int, length: int) -> Batch:
    """Return as many sequences as BATCH_TOKENS allow; questions of some are filled up behind their end."""
    count = min(SEQUENCES_MAX, max(2, BATCH_TOKENS // (documents * length)))
    lead = [BOS] if random.random() < 0.5 else []
    lessons = [lesson(random, documents, length, lead) for _ in range(count)]
    width = max(len(one.questions) for one in lessons)
    return Batch(
        torch.tensor([one.documents for one in lessons]),
        torch.tensor([(row, *target) for row, one in enumerate(lessons) for target in one.hints]).T,
        torch.tensor([one.questions + [BOS] * (width - len(one.questions)) for one in lessons]),
        torch.tensor([(row, *target) for row, one in enumerate(lessons) for target in one.answers]).T,
    )


def shape_of(random: Random, progress: Progress) -> tuple[int, int]:
    """Return documents and their length: those of the stage, or at every other step random ones up to that length."""
    longest = LENGTHS[progress.stage]
    if progress.step % 2 == 0:
        return DOCUMENTS, longest
    return random.choice((2, 3, 4, 6, 8)), random.randrange(3, longest + 1)


def rate_at(progress: Progress, seconds: float) -> float:
    used = progress.seconds / seconds
    decay = min(1.0, (1.0 - used) / (1.0 - DECAY_FROM))
    return RATE * min(1.0, (progress.step - progress.grown + 1) / WARM_UP_STEPS) * max(0.02, decay)


def learn(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, data: Batch) -> float:
    """Make one step, and return the share of right answers.

    In the layers before those that read, questions see the documents of another sequence.
    """
    given = model.model(data.documents, use_cache=True)
    reading = INSERTED_AT + model.config.num_hidden_layers - FIRST_LAYERS
    for layer in given.past_key_values.layers[:reading]:
        layer.keys, layer.values = layer.keys.roll(1, 0), layer.values.roll(1, 0)
    asked = model.model(data.questions, past_key_values=given.past_key_values)
    rows, places, answers = data.answers
    logits = model.lm_head(asked.last_hidden_state[rows, places])
    loss = tf.cross_entropy(logits, answers)
    rows, places, entities = data.hints
    loss = loss + HINT_WEIGHT * tf.cross_entropy(model.lm_head(given.last_hidden_state[rows, places]), entities)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float((logits.argmax(-1) == answers).float().mean())


def accuracies(model: LlamaForCausalLM, length: int, batches: int) -> dict[str, float]:
    """Return the share of right answers to each kind of question, on prompts that training never sees."""
    right, asked = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for index in range(batches):
        data = batch(Random(f"judge {index}"), DOCUMENTS, length)
        rows, places, answers = data.answers
        with torch.no_grad():
            logits = model(torch.cat([data.documents, data.questions], 1), use_cache=False).logits
        hit = logits[rows, places + data.documents.shape[1]].argmax(-1) == answers
        for name, kind in KINDS.items():
            of_kind = data.questions[rows, places - 1] == kind
            right[name] += int((hit & of_kind).sum())
            asked[name] += int(of_kind.sum())
    return {name: right[name] / max(1, asked[name]) for name in KINDS}


def train(seconds: float, seed: int, folder: Path) -> LlamaForCausalLM:
    """Train for `seconds` of processor time in all, those of the runs before included."""
    torch.manual_seed(seed)
    progress, checkpoint = Progress(), folder / "checkpoint.pt"
    state = torch.load(checkpoint) if checkpoint.exists() else None
    if state:
        progress = Progress(**state["progress"])
        print(f"goes on from step {progress.step}, {progress.seconds:.0f} s", flush=True)
    model = new_model(LAYERS if progress.grown else FIRST_LAYERS)
    optimizer = new_optimizer(model)
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    began = time.process_time() - progress.seconds
    while progress.seconds < seconds:
        random = Random(f"{seed} {progress.step}")
        for group in optimizer.param_groups:
            group["lr"] = rate_at(progress, seconds)
        right = learn(model, optimizer, batch(random, *shape_of(random, progress)))
        if progress.step % 2:
            progress.right += 0.05 * (right - progress.right)
        progress.step += 1
        progress.seconds = time.process_time() - began
        if progress.right > PASSED and progress.stage + 1 < len(LENGTHS):
            progress.stage, progress.right = progress.stage + 1, 0.0
            if progress.stage == GROWN_STAGE:
                progress.grown, model = progress.step, grown(model)
                optimizer = new_optimizer(model)
        if progress.step % REPORT_STEPS == 0:
            report(model, progress)
            save(checkpoint, model, optimizer, progress)
    save(checkpoint, model, optimizer, progress)
    return model


def new_optimizer(model: LlamaForCausalLM) -> torch.optim.Optimizer:
    found: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    return found


def report(model: LlamaForCausalLM, progress: Progress) -> None:
    length = LENGTHS[progress.stage]
    shares = "  ".join(f"{name} {share:.3f}" for name, share in accuracies(model, length, 2).items())
    print(f"{progress.seconds:6.0f} s  step {progress.step}  documents of {length}  {shares}", flush=True)


def save(path: Path, model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": asdict(progress)}, new)
    new.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blend_quality.train", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1500, help="of processor time (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=MODEL, help="where model and checkpoint go")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = train(options.seconds, options.seed, options.folder)
    model.save_pretrained(options.folder)
    for name, share in accuracies(model, LENGTHS[-1], 20).items():
        print(f"{name}: {share:.1%} right in documents of {LENGTHS[-1]} tokens")


if __name__ == "__main__":
    main()
