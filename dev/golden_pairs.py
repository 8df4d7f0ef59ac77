#!/usr/bin/env python3
"""Writes test/golden/pairs: tiny random encoder-decoders by transformers, and what they compute.

Usage: golden_pairs.py [OUT [NAME...]].  Needs torch, transformers. Run with transformers 5.24.
NAME/config.json, model.safetensors: as save_pretrained writes them, weights in bf16. NAME/expected.safetensors: source
(B,NS); lengths (B): what follows is padding; tokens (B,S): the decoder's input; target (B,S), -100: none; logits
(B,S,V); loss; grad.NAME: its gradients; greedy: tokens after the start for the first source; beams: those of the best
of 3 beams.
"""
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from golden_families import in_files, noisy

V, NS, S, LENGTHS, MORE = 64, 17, 12, (17, 9), 12
T5 = dict(vocab_size=V, d_model=16, d_kv=6, d_ff=24, num_layers=3, num_decoder_layers=2, num_heads=3, n_positions=64,
          dropout_rate=0.0, decoder_start_token_id=0, eos_token_id=63, pad_token_id=0)
BART = dict(vocab_size=V, d_model=16, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32,
            decoder_start_token_id=2, eos_token_id=63, pad_token_id=1, bos_token_id=0, forced_eos_token_id=None)
MARIAN = dict(BART, activation_function="swish", scale_embedding=True, pad_token_id=62, decoder_start_token_id=62)
# name: (model_type, fields of its config)
MODELS = {
    "t5": ("t5", T5),
    "t5_gated": ("t5", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "mt5": ("mt5", dict(T5, feed_forward_proj="gated-gelu", num_decoder_layers=2)),
    "bart": ("bart", BART),
    "marian": ("marian", MARIAN),
}


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "test/golden/pairs")
    for name in sys.argv[2:] or MODELS:
        kind, fields = MODELS[name]
        torch.manual_seed(len(name))
        config = transformers.AutoConfig.for_model(kind, **fields)
        model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").float().eval()
        if not fields.get("tie_word_embeddings", True):    # as T5 1.1's published files
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
            model.config.tie_word_embeddings = False
        noisy(model, len(name))
        g = torch.Generator().manual_seed(3)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(1, V, generator=g).bfloat16().float() / 4)
        (out / name).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out / name)
        model.to(torch.bfloat16).save_pretrained(out / name)
        (out / name / "generation_config.json").unlink(missing_ok=True)
        fields = json.loads((out / name / "config.json").read_text())
        fields.pop("transformers_version")
        (out / name / "config.json").write_text(json.dumps(fields, separators=(",", ":")) + "\n")
        model.double()    # T5's unscaled scores make rounding errors large
        with torch.no_grad():
            for m in model.modules():
                if hasattr(m, "create_weight"):    # Marian's sinusoids are not rounded
                    m.weight.copy_(m.create_weight())
        source = torch.randint(3, 60, (2, NS), generator=g)
        mask = torch.arange(NS)[None] < torch.tensor(LENGTHS)[:, None]
        target = torch.randint(3, 60, (2, S), generator=g)
        tokens = torch.cat([torch.full((2, 1), config.decoder_start_token_id), target[:, :-1]], 1)
        labels = target.masked_fill(torch.rand((2, S), generator=g) < 0.3, -100)
        result = model(input_ids=source, attention_mask=mask.long(), decoder_input_ids=tokens, labels=labels)
        result.loss.backward()
        arrays = dict(source=source.float(), lengths=torch.tensor(LENGTHS).float(), tokens=tokens.float(),
                      target=labels.float(), logits=result.logits.detach().float(), loss=result.loss.detach().reshape(1).float())
        grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
        arrays |= {"grad." + n: x.float() for n, x in in_files(model, grads).items() if n != "final_logits_bias"}
        with torch.no_grad():
            kind = dict(attention_mask=mask[:1, :].long(), max_new_tokens=MORE, do_sample=False, eos_token_id=None,
                        forced_bos_token_id=None, forced_eos_token_id=None, bad_words_ids=None, pad_token_id=0)
            arrays["greedy"] = model.generate(source[:1], num_beams=1, **kind)[0, 1:].float()
            arrays["beams"] = model.generate(source[:1], num_beams=3, length_penalty=1.0, **kind)[0, 1:].float()
        save_file({k: x.clone().contiguous() for k, x in arrays.items()}, out / name / "expected.safetensors")
        print(name, [*model.state_dict()][:3], float(result.loss))


if __name__ == "__main__":
    main()
