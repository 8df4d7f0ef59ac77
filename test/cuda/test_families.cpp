// test_families.cpp - the families that differ most, against transformers' numbers on the CUDA
// backend; and kinds of models that no family has.
#include "cuda_test.h"
#include "test/family_goldens.h"

TEST_CASE("families on cuda: logits, losses and gradients are those of transformers") {
    for (const char* name :
         {"gemma2", "qwen3", "phi3", "gpt_neox", "bloom", "olmo2", "mixtral", "qwen2_moe", "nanochat_2026"}) {
        CAPTURE(std::string(name));
        const Golden golden(std::string("families/") + name);
        auto check = [&](const auto& op, double logits, double gradients, double loss) {
            CAPTURE(std::string(op.name));
            Model text(op), training(op);
            golden.load(text, {RunMode::infer, Golden::B, Golden::S});
            golden.check_logits(text, logits, 5);
            if (logits < 1e-4) golden.check_greedy(text);
            golden.check_training(training, loss, gradients);
        };
        check(cuda_ops<float>(Dtype::fp32), 1e-5, 4e-5, 2e-6);
        // Activations are bf16, too. Rounding the products' inputs costs far more than rounding the
        // residual. Errors on the emulator: 0.016, 0.050, 3.2e-4.
        if (!golden.c.experts) check(cuda_ops<bf16>(Dtype::bf16), 0.05, 0.1, 2e-3);    // rounding may change routes
    }
}

TEST_CASE("families on cuda: models of kinds that no family has compute what PyTorch does") {
    for (const char* name : {"transformer", "t5", "t5_encoder", "t5_prefix", "pattern"}) {
        CAPTURE(std::string(name));
        const Golden golden(std::string("kinds/") + name);
        auto check = [&](const auto& op, double logits, double gradients, double loss) {
            CAPTURE(std::string(op.name));
            Model text(op), training(op);
            golden.check_kind(text, training, logits, gradients, loss, 5);
        };
        check(cuda_ops<float>(Dtype::fp32), 1e-5, 4e-5, 2e-6);
        // A prefix leaves few targets, so fewer roundings cancel.
        check(cuda_ops<bf16>(Dtype::bf16), 0.05, golden.c.mask_kind == MaskKind::prefix ? 0.25 : 0.1, 2e-3);
    }
}
