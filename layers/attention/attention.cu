// attention.cu - causal attention: what it computes, and which kernels do it.
//
//     s_ij = q_i . k_j / sqrt(HS)    lse_i = log sum_j exp(s_ij)    p_ij = exp(s_ij - lse_i)    y_i = sum_j p_ij v_j
//     delta_i = dy_i . y_i           dp_ij = dy_i . v_j             ds_ij = p_ij (dp_ij - delta_i) / sqrt(HS)
//     dq_i = sum_j ds_ij k_j         dk_j = sum_i ds_ij q_i         dv_j = sum_i p_ij dy_i
// over the pairs i, j where query i sees key j.
//
// bf16 runs on tensor cores (sm90.cu, sm80.cu) where these take the head size. Other head sizes, and float, run on FMAs
// (plain.cu). FLATGPT_ATTENTION=sm90, sm80 or plain chooses the kernels for bf16, for measurements and tests.
// Generation is in cached.cu.
#include "attention.cuh"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace {

enum class Kernels { plain, sm80, sm90 };

// The newest kernels that take these heads on this device, or those that FLATGPT_ATTENTION names.
Kernels kernels(Heads h) {
    const bool sm80 = attention_fits_sm80(h), sm90 = cuda_capability() == 90 && attention_fits_sm90(h);
    const char* asked = getenv("FLATGPT_ATTENTION");
    if (!asked) return sm90 ? Kernels::sm90 : sm80 ? Kernels::sm80 : Kernels::plain;
    const std::string name = asked;
    CHECK(name == "plain" || name == "sm80" || name == "sm90", "FLATGPT_ATTENTION=%s: expected plain, sm80 or sm90",
          asked);
    CHECK((name != "sm80" || sm80) && (name != "sm90" || sm90), "FLATGPT_ATTENTION=%s: not for head size %d on sm_%d",
          asked, h.HS, cuda_capability());
    return name == "sm90" ? Kernels::sm90 : name == "sm80" ? Kernels::sm80 : Kernels::plain;
}

void forward(float* y, float* lse, const float* qkv, int B, int S, Heads h) {
    attention_forward_plain(y, lse, qkv, B, S, h);
}
void forward(bf16* y, float* lse, const bf16* qkv, int B, int S, Heads h) {
    switch (kernels(h)) {
        case Kernels::sm90: return attention_forward_sm90(y, lse, qkv, B, S, h);
        case Kernels::sm80: return attention_forward_sm80(y, lse, qkv, B, S, h);
        case Kernels::plain: return attention_forward_plain(y, lse, qkv, B, S, h);
    }
}

void backward(float* dqkv, const float* dy, const float* y, const float* qkv, const float* lse, int B, int S,
              Heads h) {
    attention_backward_plain(dqkv, dy, y, qkv, lse, B, S, h);
}
void backward(bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B, int S, Heads h) {
    switch (kernels(h)) {
        case Kernels::sm90: return attention_backward_sm90(dqkv, dy, y, qkv, lse, B, S, h);
        case Kernels::sm80: return attention_backward_sm80(dqkv, dy, y, qkv, lse, B, S, h);
        case Kernels::plain: return attention_backward_plain(dqkv, dy, y, qkv, lse, B, S, h);
    }
}

}   // namespace

template <class T> void attention_entries(Ops<T>& o) {
    o.attention_forward = forward;
    o.attention_backward = backward;
    o.attention_cached = attention_cached<T>;
}
template <class T> int64_t attention_scratch(const ScratchSizes& s) {
    const Kernels which = sizeof(T) == 2 ? kernels(s.h) : Kernels::plain;
    const int64_t training = which == Kernels::sm90   ? attention_scratch_sm90(s.B, s.S, s.h)
                             : which == Kernels::sm80 ? attention_scratch_sm80(s.B, s.S, s.h)
                                                      : attention_scratch_plain(s.B, s.S, s.h);
    return std::max(training, attention_scratch_cached<T>(s.B, s.h));
}
template void attention_entries(Ops<float>&);
template void attention_entries(Ops<bf16>&);
template int64_t attention_scratch<float>(const ScratchSizes&);
template int64_t attention_scratch<bf16>(const ScratchSizes&);
