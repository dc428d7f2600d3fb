"""A prompt that was computed before is loaded, and the answer is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lmcache_core import ConfigError

if TYPE_CHECKING:  # transformers takes seconds to import, and every process of a test run collects this file
    from lmcache_transformers import PrefixCache

TINY: dict[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
CHUNK = 16
CONFIG = {"chunk_size": CHUNK, "l1_size_gb": 0.05}
PROMPT = [(7 * i * i + 3) % 400 + 50 for i in range(5 * CHUNK + 3)]


def new_model(kind: str = "LlamaConfig", **more: Any) -> Any:
    import transformers

    models: Any = transformers.AutoModelForCausalLM
    return models.from_config(getattr(transformers, kind)(**TINY, **more))


def open_cache(model: Any, config: dict[str, Any]) -> PrefixCache:
    from lmcache_transformers import PrefixCache

    return PrefixCache(model, config)


@pytest.fixture
def model() -> Any:
    torch.manual_seed(1)
    return new_model().eval()


@pytest.fixture
def cache(model: Any) -> Iterator[PrefixCache]:
    with open_cache(model, CONFIG) as opened:
        yield opened


def answer(model: Any, prompts: list[list[int]], cache: PrefixCache | None = None) -> list[list[int]]:
    ways: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    ids = torch.tensor(prompts)
    found = cache.generate(ids, **ways) if cache else model.generate(ids, attention_mask=torch.ones_like(ids), **ways)
    return list(found.tolist())


def test_the_answer_is_the_same_and_whole_chunks_are_loaded(model: Any, cache: PrefixCache) -> None:
    right = answer(model, [PROMPT])
    assert answer(model, [PROMPT], cache) == right
    past: Any = cache.load(PROMPT)
    assert past.get_seq_length() == 5 * CHUNK
    assert answer(model, [PROMPT], cache) == right
    assert cache.load(PROMPT[: 2 * CHUNK]).get_seq_length() == CHUNK, "the last token is computed always"
    assert cache.load([PROMPT[0] + 1, *PROMPT[1:]]).get_seq_length() == 0


def test_what_is_loaded_is_what_was_computed_byte_for_byte(model: Any, cache: PrefixCache) -> None:
    past: Any = cache.load(PROMPT)
    model(torch.tensor([PROMPT]), past_key_values=past)
    assert cache.save(PROMPT, past) == 5
    assert cache.save(PROMPT, past) == 0
    loaded: Any = cache.load(PROMPT)
    for mine, computed in zip(loaded.layers, past.layers, strict=True):
        assert torch.equal(mine.keys, computed.keys[:, :, : 5 * CHUNK])
        assert torch.equal(mine.values, computed.values[:, :, : 5 * CHUNK])


def test_several_prompts_share_what_all_of_them_have(model: Any, cache: PrefixCache) -> None:
    other = [*PROMPT[: 3 * CHUNK], *(each + 1 for each in PROMPT[3 * CHUNK :])]
    right = answer(model, [PROMPT, other])
    assert answer(model, [PROMPT], cache) == right[:1]
    assert cache.load([PROMPT, other]).get_seq_length() == 3 * CHUNK
    assert answer(model, [PROMPT, other], cache) == right
    assert cache.load([PROMPT, other]).get_seq_length() == 5 * CHUNK
    assert answer(model, [PROMPT, other], cache) == right


def test_other_weights_find_nothing(model: Any, cache: PrefixCache) -> None:
    answer(model, [PROMPT], cache)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.01)
    assert cache.load(PROMPT).get_seq_length() == 0
    assert answer(model, [PROMPT], cache) == answer(model, [PROMPT])


def test_files_are_found_by_the_next_cache_and_not_by_another_model(model: Any, tmp_path: Path) -> None:
    on_disk = {**CONFIG, "plugins": ["fs"], "l2_adapter": [{"type": "fs", "base_path": str(tmp_path)}]}
    with open_cache(model, on_disk) as first:
        right = answer(model, [PROMPT], first)
    with open_cache(model, on_disk) as second:
        assert second.load(PROMPT).get_seq_length() == 5 * CHUNK
        assert answer(model, [PROMPT], second) == right
    torch.manual_seed(2)
    with open_cache(new_model().eval(), on_disk) as third:
        assert third.load(PROMPT).get_seq_length() == 0


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        ({"attention_mask": torch.tensor([[0] + [1] * (len(PROMPT) - 1)])}, "padded prompts"),
        ({"num_beams": 2}, "num_beams is 2"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2"),
        ({"cache_implementation": "quantized"}, "cache_implementation is not supported"),
        ({"use_cache": False}, "use_cache is False"),
        ({"position_ids": torch.arange(len(PROMPT))[None] * 3}, "position_ids is not supported"),
        ({"inputs_embeds": torch.zeros(1, len(PROMPT), 64)}, "inputs_embeds is not supported"),
        ({"pixel_values": torch.zeros(1, 3, 8, 8)}, "pixel_values is not supported"),
        ({"custom_generate": "place"}, "custom_generate is not supported"),
    ],
)
def test_ways_that_are_not_supported_are_refused_by_name(cache: PrefixCache, ways: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cache.generate(PROMPT, max_new_tokens=1, **ways)


def test_a_generation_config_is_looked_at_like_arguments(cache: PrefixCache) -> None:
    import transformers

    config: Any = transformers.GenerationConfig
    with pytest.raises(ValueError, match="num_beams is 3"):
        cache.generate(PROMPT, generation_config=config(num_beams=3, max_new_tokens=1))
    greedy = config(max_new_tokens=1, do_sample=False)
    cache.generate(PROMPT, generation_config=greedy, stopping_criteria=[], output_scores=False)
    assert cache.load(PROMPT).get_seq_length() == 5 * CHUNK


@pytest.mark.parametrize("prompts", [[], [1.5], [[1, 2], [3]], ["a"], [[[1]]]])
def test_what_is_not_token_ids_is_refused(cache: PrefixCache, prompts: list[Any]) -> None:
    with pytest.raises(ValueError, match="prompts are token ids"):
        cache.load(prompts)


def test_a_model_with_sliding_windows_is_refused() -> None:
    sliding = new_model("MistralConfig", sliding_window=32)
    with pytest.raises(ValueError, match="DynamicSlidingWindowLayer"):
        open_cache(sliding, CONFIG)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_model_whose_keys_depend_on_how_long_the_prompt_is_is_refused(kind: str) -> None:
    pairs = 64 // 4 // 2
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs, "original_max_position_embeddings": 32}
    with pytest.raises(ValueError, match=f"rope_type '{kind}'"):
        open_cache(new_model(rope_parameters=rope, max_position_embeddings=64), CONFIG)
    with open_cache(new_model(rope_parameters={**rope, "rope_type": "linear"}).eval(), CONFIG):
        pass


def test_a_model_with_an_encoder_is_refused() -> None:
    import transformers

    bart = transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=500, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32,
            encoder_attention_heads=2, decoder_attention_heads=2,
        )
    )  # fmt: skip
    with pytest.raises(ValueError, match="has an encoder"):
        open_cache(bart, CONFIG)


def test_a_model_that_trains_is_refused(model: Any, cache: PrefixCache) -> None:
    """Dropout changes K and V."""
    model.train()
    for call in (cache.generate, cache.load):
        with pytest.raises(ValueError, match=r"model.eval\(\)"):
            call(PROMPT)
    model.eval()
    assert cache.load(PROMPT).get_seq_length() == 0


def test_adapters_that_come_later_are_refused(model: Any, cache: PrefixCache) -> None:
    answer(model, [PROMPT], cache)
    model.peft_config = {}
    model.model.layers[0].lora_A = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="adapters"):
        cache.load(PROMPT)


def test_a_cache_of_another_shape_is_refused(model: Any, cache: PrefixCache) -> None:
    past: Any = cache.load(PROMPT)
    model(torch.tensor([PROMPT]), past_key_values=past)
    with pytest.raises(ValueError, match="were expected"):
        cache.save([PROMPT, PROMPT], past)


def test_wrong_settings_are_refused_by_name(model: Any) -> None:
    with pytest.raises(ConfigError, match="l1_size"):
        open_cache(model, {"l1_size": 1})
