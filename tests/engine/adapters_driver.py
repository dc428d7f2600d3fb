"""As demo/engine.py, with LoRA adapters: `--adapters` is a list of their folders, as JSON.

The last token of what is asked is not part of the prompt: `ADAPTERS + n` is the adapter of the n-th folder, any other one the
base model.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from demo.engine import engine_options, parse_arguments, run

if TYPE_CHECKING:
    from vllm import LLM

ADAPTERS: Final = 31_000


def main() -> None:
    place = sys.argv.index("--adapters")
    folders: list[str] = json.loads(sys.argv[place + 1])
    del sys.argv[place : place + 2]
    from vllm import LLM
    from vllm.lora.request import LoRARequest

    requests = {
        ADAPTERS + number: LoRARequest(f"adapter-{number}", number + 1, folder) for number, folder in enumerate(folders)
    }
    generate = LLM.generate

    def with_adapter(engine: LLM, prompts: list[Any], *args: Any, **kwargs: Any) -> Any:
        tokens = [prompt["prompt_token_ids"] for prompt in prompts]
        said = [{"prompt_token_ids": each[:-1]} for each in tokens]
        return generate(engine, said, *args, lora_request=[requests.get(each[-1]) for each in tokens], **kwargs)

    LLM.generate = with_adapter
    lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    run(engine_options(parse_arguments()) | lora)


if __name__ == "__main__":
    main()
