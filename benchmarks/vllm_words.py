"""Greedy text from vLLM's CPU build, a token at a time to stdout. Runs in the environment that vLLM has."""

from __future__ import annotations

import sys

from vllm import LLM, SamplingParams


def main(folder: str, prompt: str, new_tokens: int, tp: int) -> None:
    model = LLM(folder, tensor_parallel_size=tp, dtype="bfloat16", max_model_len=2048)
    sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    model.llm_engine.add_request("0", prompt, sampling)
    printed = 0
    while model.llm_engine.has_unfinished_requests():
        for output in model.llm_engine.step():
            tokens = output.outputs[0].token_ids
            print(*(f"w{token}" for token in tokens[printed:]), end=" ", flush=True)
            printed = len(tokens)
    print(flush=True)


if __name__ == "__main__":
    folder, prompt, new_tokens, tp = sys.argv[1:]
    main(folder, prompt, int(new_tokens), int(tp))
