"""Tern, an architecture made up for docs/adding-an-architecture.md: nothing knows it but this file.

It is a decoder like others, but for its names, one fused matrix [value; query; key], one [up; gate], and a
norm over all queries at once. `python modeling_tern.py FOLDER` writes a random checkpoint.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast


class TernConfig(PretrainedConfig):
    model_type = "tern"

    def __init__(
        self,
        vocab_size: int = 1000,
        hidden_size: int = 256,
        num_layers: int = 4,
        num_heads: int = 8,
        num_kv_heads: int = 4,
        head_dim: int = 64,
        ffn_dim: int = 768,
        max_position_embeddings: int = 128,
        tie_word_embeddings: bool = False,
        **kwargs: object,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.ffn_dim = ffn_dim
        self.max_position_embeddings = max_position_embeddings
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    @property
    def num_hidden_layers(self) -> int:
        return self.num_layers


class TernNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class TernMixer(nn.Module):
    def __init__(self, config: TernConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.width = layer, config.head_dim
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        self.vqk = nn.Linear(config.hidden_size, (self.heads + 2 * self.kv_heads) * self.width, bias=False)
        self.q_norm = TernNorm(self.heads * self.width)
        self.merge = nn.Linear(self.heads * self.width, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cache: DynamicCache | None) -> Tensor:
        """`x` is [batch, tokens, hidden]."""
        kv = self.kv_heads * self.width
        value, query, key = self.vqk(x).split([kv, self.heads * self.width, kv], dim=-1)
        query, key, value = (
            part.unflatten(-1, (-1, self.width)).transpose(1, 2) for part in (self.q_norm(query), key, value)
        )
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        new, old = query.shape[2], key.shape[2]
        seen = torch.ones(new, old, dtype=torch.bool).tril(old - new)
        mixed = functional.scaled_dot_product_attention(query, key, value, seen, enable_gqa=True)
        return self.merge(mixed.transpose(1, 2).flatten(2))


class TernBlock(nn.Module):
    def __init__(self, config: TernConfig, layer: int) -> None:
        super().__init__()
        self.mixer_norm, self.ffn_norm = TernNorm(config.hidden_size), TernNorm(config.hidden_size)
        self.mixer = TernMixer(config, layer)
        self.widen = nn.Linear(config.hidden_size, 2 * config.ffn_dim, bias=False)
        self.narrow = nn.Linear(config.ffn_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cache: DynamicCache | None) -> Tensor:
        x = x + self.mixer(self.mixer_norm(x), cache)
        up, gate = self.widen(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.narrow(up * functional.silu(gate))


class TernForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = TernConfig

    def __init__(self, config: TernConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(TernBlock(config, layer) for layer in range(config.num_layers))
        self.norm = TernNorm(config.hidden_size)
        self.logits = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: DynamicCache | None = None,
        use_cache: bool = True,
        **_: object,
    ) -> CausalLMOutputWithPast:
        cache = (past_key_values or DynamicCache()) if use_cache else None
        start = cache.get_seq_length() if cache else 0
        x = self.tokens(input_ids) + self.places(torch.arange(start, start + input_ids.shape[1]))
        for block in self.blocks:
            x = block(x, cache)
        return CausalLMOutputWithPast(logits=self.logits(self.norm(x)), past_key_values=cache)


AutoConfig.register("tern", TernConfig, exist_ok=True)
AutoModelForCausalLM.register(TernConfig, TernForCausalLM, exist_ok=True)

if __name__ == "__main__":
    torch.manual_seed(0)
    TernForCausalLM(TernConfig()).save_pretrained(sys.argv[1])
