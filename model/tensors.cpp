// tensors.cpp - one row per tensor: its offset, initial value and names in files.
#include "tensors.h"

#include <algorithm>
#include <fnmatch.h>

#include "model/families/families.h"

namespace {
Init norm_init(const Config& c) { return c.norm_plus ? Init::zero : Init::one; }

template <class S, class T> struct Row {
    bool exists;
    T* S::*field;
    const char* name;
    std::vector<int64_t> parts;    // row counts of parts, which files may separate
    int64_t cols;                  // 0: a vector
    Init init;
    int64_t padding = 0;    // additional rows in memory: Vp - V
    int experts = 1;        // number of such matrices
    // Reader of a matrix: a product; a lookup by tokens; operations that compute gates; attention,
    // by positions.
    enum class Use { product, table, gate, positions } use = Use::product;
};

template <class T> std::vector<Row<Params<T>, T>> first_rows(const Config& c) {
    using P = Params<T>;
    using Use = typename Row<P, T>::Use;
    const int64_t padding = c.Vp() - c.V, outputs = c.outputs(), head_padding = c.padded_outputs() - outputs;
    const int E = c.embed_width(), H = c.head_width();
    const bool projected = c.embed_size > 0, transformed = c.transform != HeadTransform::none;
    const bool head_norm = c.transform == HeadTransform::norm, own_head = !c.reads_wte() && outputs > 0;
    const bool head_bias = c.head == HeadKind::tokens ? c.head_bias : outputs > 0, next = c.predicts_next();
    const int64_t next_padding = Config::NEXT_PADDED - Config::NEXT_CLASSES;
    return {{!c.in_encoder, &P::wte, "wte", {c.V}, E, Init::normal, padding},
            {c.position == Position::learned, &P::wpe, "wpe", {c.T + c.position_offset}, E, Init::normal},
            {c.segments > 0, &P::segw, "segw", {c.segments}, E, Init::normal},
            {c.position == Position::t5, &P::relw, "relw", {RELATIVE_BUCKETS}, c.NH, Init::normal},
            {c.embed_norm && c.norm_weight, &P::lnew, "lnew", {E}, 0, norm_init(c)},
            {c.embed_norm && c.norm_bias, &P::lneb, "lneb", {E}, 0, Init::zero},
            {projected, &P::embed_projw, "embed_projw", {c.C}, E, Init::normal},
            {projected, &P::embed_projb, "embed_projb", {c.C}, 0, Init::zero},
            {transformed, &P::transformw, "transformw", {H}, c.C, Init::normal},
            {transformed && c.transform_bias, &P::transformb, "transformb", {H}, 0, Init::zero},
            {head_norm && c.norm_weight, &P::head_normw, "head_normw", {H}, 0, norm_init(c)},
            {head_norm && c.norm_bias, &P::head_normb, "head_normb", {H}, 0, Init::zero},
            {own_head, &P::headw, "headw", {outputs}, H, Init::normal, head_padding},
            {head_bias, &P::headb, "headb", {outputs}, 0, Init::zero, head_padding},
            {next, &P::poolw, "poolw", {c.C}, c.C, Init::normal},
            {next, &P::poolb, "poolb", {c.C}, 0, Init::zero},
            {next, &P::nextw, "nextw", {Config::NEXT_CLASSES}, c.C, Init::normal, next_padding},
            {next, &P::nextb, "nextb", {Config::NEXT_CLASSES}, 0, Init::zero, next_padding},
            {c.residual_scalars, &P::residw, "resid_lambdas", {c.L}, 0, Init::resid_lambda},
            {c.residual_scalars, &P::x0w, "x0_lambdas", {c.L}, 0, Init::x0_lambda},
            {c.smear, &P::smearw, "smear_gatew", {1}, smear_channels(c.C), Init::normal, 0, 1, Use::gate},
            {c.smear, &P::smear_lambda, "smear_lambda", {1}, 0, Init::zero},
            {c.backout, &P::backoutw, "backout_lambda", {1}, 0, Init::backout_lambda}};
}
template <class T> std::vector<Row<Block<T>, T>> block_rows(const Config& c, int l) {
    using B = Block<T>;
    using Use = typename Row<B, T>::Use;
    const int C = c.C, q = c.attention_width(), kv = c.NKV * c.HS, gates = c.heads(l).gates();
    const int G = value_gate_channels(C), F = c.ffn_width(l), FE = c.expert_ffn, E = c.experts;
    const bool weight = c.norm_weight, bias = c.norm_bias, two = c.parallel != Parallel::one;
    const bool norm1 = c.pre_norm() && (l > 0 || c.first_norm), cross = c.encoder_layers > 0;
    const bool relative = c.position == Position::relative_key;
    const bool global = c.projects_globals(l), qk = c.rope(l).norms() && weight,
               all = c.qk_norm == QkNormRope::QkNorm::all;
    const Init last = c.zero_init ? Init::zero : Init::normal_residual;    // each branch's last product
    auto up = [&](int64_t width) { return std::vector<int64_t>(c.gated ? 2 : 1, width); };
    return {{norm1 && weight, &B::ln1w, "ln1w", {C}, 0, norm_init(c)},
            {norm1 && bias, &B::ln1b, "ln1b", {C}, 0, Init::zero},
            {true, &B::qkvw, "qkvw", {q, kv, kv}, C, Init::normal},
            {c.qkv_bias, &B::qkvb, "qkvb", {q, kv, kv}, 0, Init::zero},
            {global, &B::global_qw, "global_qw", {q}, C, Init::normal},
            {global && c.qkv_bias, &B::global_qb, "global_qb", {q}, 0, Init::zero},
            {global, &B::global_kvw, "global_kvw", {kv, kv}, C, Init::normal},
            {global && c.qkv_bias, &B::global_kvb, "global_kvb", {kv, kv}, 0, Init::zero},
            {qk, &B::qw, "qw", {all ? q : c.HS}, 0, norm_init(c)},
            {qk, &B::kw, "kw", {all ? kv : c.HS}, 0, norm_init(c)},
            {relative,
             &B::relative_keyw,
             "relative_keyw",
             {2 * c.bias_distance() + 1},
             c.HS,
             Init::normal,
             0,
             1,
             Use::positions},
            {gates > 0, &B::decayw, "decayw", {gates}, C, Init::normal},
            {gates > 0, &B::decayb, "decayb", {gates}, 0, Init::zero},
            {c.embeds_values(l), &B::value_embedw, "value_embedw", {c.V}, kv, Init::normal, 0, 1, Use::table},
            {c.embeds_values(l), &B::value_gatew, "value_gatew", {c.NKV}, G, Init::normal, 0, 1, Use::gate},
            {true, &B::projw, "projw", {C}, q, last},
            {c.proj_bias, &B::projb, "projb", {C}, 0, Init::zero},
            {c.post_norm() && weight, &B::post1w, "post1w", {C}, 0, norm_init(c)},
            {c.post_norm() && bias, &B::post1b, "post1b", {C}, 0, Init::zero},
            {cross && c.pre_norm() && weight, &B::lncw, "lncw", {C}, 0, norm_init(c)},
            {cross && c.pre_norm() && bias, &B::lncb, "lncb", {C}, 0, Init::zero},
            {cross, &B::cross_qw, "cross_qw", {q}, C, Init::normal},
            {cross && c.qkv_bias, &B::cross_qb, "cross_qb", {q}, 0, Init::zero},
            {cross, &B::cross_kvw, "cross_kvw", {kv, kv}, C, Init::normal},
            {cross && c.qkv_bias, &B::cross_kvb, "cross_kvb", {kv, kv}, 0, Init::zero},
            {cross, &B::cross_projw, "cross_projw", {C}, q, last},
            {cross && c.proj_bias, &B::cross_projb, "cross_projb", {C}, 0, Init::zero},
            {cross && c.post_norm() && weight, &B::postcw, "postcw", {C}, 0, norm_init(c)},
            {cross && c.post_norm() && bias, &B::postcb, "postcb", {C}, 0, Init::zero},
            {c.pre_norm() && two && weight, &B::ln2w, "ln2w", {C}, 0, norm_init(c)},
            {c.pre_norm() && two && bias, &B::ln2b, "ln2b", {C}, 0, Init::zero},
            {c.has_experts(l), &B::routerw, "routerw", {E}, C, Init::normal},
            {c.has_experts(l), &B::expert_upw, "expert_upw", up(FE), C, Init::normal, 0, E},
            {c.has_experts(l), &B::expert_downw, "expert_downw", {C}, FE, last, 0, E},
            {c.gates_shared_expert(l), &B::shared_gatew, "shared_gatew", {1}, C, Init::normal},
            {F > 0, &B::fcw, "fcw", up(F), C, Init::normal},
            {F > 0 && c.up_bias, &B::fcb, "fcb", up(F), 0, Init::zero},
            {F > 0, &B::fc2w, "fc2w", {C}, F, last},
            {F > 0 && c.down_bias, &B::fc2b, "fc2b", {C}, 0, Init::zero},
            {c.post_norm() && weight, &B::post2w, "post2w", {C}, 0, norm_init(c)},
            {c.post_norm() && bias, &B::post2b, "post2b", {C}, 0, Init::zero}};
}
// Adapters of a block's products: their matrices a and b, then their magnitudes.
template <class T> std::vector<Row<Block<T>, T>> adapter_rows(const Config& c, int l) {
    using B = Block<T>;
    const int C = c.C, q = c.attention_width(), kv = c.NKV * c.HS, F = c.ffn_width(l), cross = c.encoder_layers > 0;
    struct Product {
        Adapter::Product p;
        T *B::*a, *B::*b, *B::*m;
        std::array<const char*, 3> names;
        int width;
        int64_t rows;    // 0: the block has no such product
    };
    const Product products[] = {
        {Adapter::qkv, &B::qkv_a, &B::qkv_b, &B::qkv_m, {"qkv_a", "qkv_b", "qkv_m"}, C, q + 2 * kv},
        {Adapter::proj, &B::proj_a, &B::proj_b, &B::proj_m, {"proj_a", "proj_b", "proj_m"}, q, C},
        {Adapter::fc, &B::fc_a, &B::fc_b, &B::fc_m, {"fc_a", "fc_b", "fc_m"}, C, c.up_width(l)},
        {Adapter::fc2, &B::fc2_a, &B::fc2_b, &B::fc2_m, {"fc2_a", "fc2_b", "fc2_m"}, F, F ? C : 0},
        {Adapter::cross_q,
         &B::cross_q_a,
         &B::cross_q_b,
         &B::cross_q_m,
         {"cross_q_a", "cross_q_b", "cross_q_m"},
         C,
         cross * q},
        {Adapter::cross_kv,
         &B::cross_kv_a,
         &B::cross_kv_b,
         &B::cross_kv_m,
         {"cross_kv_a", "cross_kv_b", "cross_kv_m"},
         C,
         cross * 2 * kv},
        {Adapter::cross_proj,
         &B::cross_proj_a,
         &B::cross_proj_b,
         &B::cross_proj_m,
         {"cross_proj_a", "cross_proj_b", "cross_proj_m"},
         q,
         cross * C}};
    std::vector<Row<B, T>> rows, magnitudes;
    for (const Product& x : products) {
        const int R = x.rows ? c.adapter.rank(x.p) : 0;
        rows.push_back({R > 0, x.a, x.names[0], {R}, x.width, Init::uniform});
        rows.push_back({R > 0, x.b, x.names[1], {x.rows}, R, Init::zero});
        magnitudes.push_back({R > 0 && c.adapter.magnitudes, x.m, x.names[2], {x.rows}, 0, Init::row_norms});
    }
    rows.insert(rows.end(), magnitudes.begin(), magnitudes.end());
    return rows;
}
template <class T> std::vector<Row<Params<T>, T>> last_rows(const Config& c) {
    using P = Params<T>;
    return {{!c.sum_norm() && c.norm_weight, &P::lnfw, "lnfw", {c.C}, 0, norm_init(c)},
            {!c.sum_norm() && c.norm_bias, &P::lnfb, "lnfb", {c.C}, 0, Init::zero}};
}

// Makes the tensor of a row, with the family's names in files. block: -1 outside of blocks.
template <class R> Tensor tensor_of(const Config& c, const R& row, int block) {
    const std::string number = std::to_string(block);
    Tensor t = {.name = (c.in_encoder ? "encoder." : "") + (block < 0 ? "" : number + ".") + row.name,
                .cols = row.cols ? row.cols : 1,
                .init = row.init,
                .decay = row.cols > 0 && row.use != R::Use::gate,
                .vector = row.cols == 0};
    t.adapter = t.name.ends_with("_a") || t.name.ends_with("_b") || t.name.ends_with("_m");
    using Use = typename R::Use;
    const bool of_head = t.name == (c.reads_wte() ? "wte" : "headw") || t.name == "transformw" || t.name == "poolw" ||
                         t.name == "nextw";
    t.product = row.cols && (block >= 0 ? row.use == Use::product : of_head || t.name == "embed_projw");
    t.lookup = row.use == Use::table || t.name == "wte";
    t.gate = row.use == Use::gate;
    t.of_positions = row.use == Use::positions || t.name == "wpe" || t.name == "relw";
    if (!row.exists) return t;
    for (int64_t rows : row.parts) t.file_rows += row.experts * rows;
    t.experts = row.experts;
    t.parts = row.parts;
    t.rows = t.file_rows + row.padding;
    // The family's row has our name ("wte") or its stem, the name without its last letter ("qkv" of
    // "qkvw"). In a layer with experts, "shared_" + stem comes first. The name in files ends with
    // .bias if ours ends with b, else with .weight.
    const std::string_view ours = row.name, stem = ours.substr(0, ours.size() - 1);
    const std::string shared = "shared_" + std::string(stem);
    const Family::Name* name = nullptr;
    auto find = [&](const std::vector<Family::Name>& names, auto is_it) {
        for (auto n = names.begin(); !name && n != names.end(); n++) name = is_it(*n) ? &*n : nullptr;
    };
    // A head of its own has its bias beside its weights, not where a tied head has it (BERT).
    const bool bias_beside = ours == "headb" && !c.reads_wte();
    const std::string gated = "gated_" + std::string(stem);
    auto is_gated = [&](const Family::Name& n) { return c.gated && gated == n.ours; };
    find(c.in_encoder ? c.family->encoder_names : c.family->names, is_gated);
    auto is_named = [&](const Family::Name& n) { return (ours == n.ours && !bias_beside) || stem == n.ours; };
    if (c.in_encoder) find(c.family->encoder_names, is_named);
    else if (block >= 0 && c.has_experts(block)) find(c.family->names, [&](auto& n) { return shared == n.ours; });
    if (const Family::Head* head = c.family->head_of(c); head && block < 0) find(head->names, is_named);
    if (!c.in_encoder) find(c.family->names, is_named);
    const bool whole = name && name->file.size() == 1;
    if (!whole && (!name || name->file.size() != row.parts.size())) {    // our name in files
        t.pieces = {{t.name, 0, t.file_rows}};
        return t;
    }
    if (!t.vector || name->layout != FileLayout::transposed) t.layout = name->layout;
    if (c.NKV != c.NH && t.layout == FileLayout::by_head) t.layout = FileLayout::straight;
    const char* ending = t.layout == FileLayout::row ? "" : ours.back() == 'b' ? ".bias" : ".weight";
    const bool each = std::string_view(name->file[0]).find('@') != std::string_view::npos;
    int64_t first = 0;
    for (int expert = 0; expert < (each ? t.experts : 1); expert++)
        for (size_t i = 0; i < name->file.size(); i++) {
            std::string file = std::string(name->file[i]) + ending;
            if (const size_t at = file.find('#'); at != file.npos) file.replace(at, 1, number);
            if (const size_t at = file.find('@'); at != file.npos) file.replace(at, 1, std::to_string(expert));
            if (const std::string_view first_of = c.family->prefixes[0]; c.head == HeadKind::none && !c.in_encoder)
                file = file.substr(file.starts_with(first_of) ? first_of.size() : 0);
            t.pieces.push_back({file, first, whole && !each ? t.file_rows : row.parts[i]});
            first += t.pieces.back().rows;
        }
    return t;
}

// Whether a pattern names the tensor: its own name, or its name in files.
bool named_by(const std::string& pattern, const std::string& name) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}
int pieces_named_by(const std::string& pattern, const Tensor& t) {
    return int(std::ranges::count_if(t.pieces, [&](const Piece& p) { return named_by(pattern, p.name); }));
}
bool is_frozen(const Config& c, const Tensor& t) {
    if (c.trained.empty()) return c.adapter.any() && !t.adapter;
    return std::ranges::none_of(c.trained, [&](const std::string& p) { return tensor_named(p, t); });
}

// Sizes of the flat buffers: where each bucket begins, the end of the trained tensors and of all.
struct Extent {
    std::vector<int64_t> buckets;
    int64_t trained = 0, all = 0;
};
// Calls visit(tensor, field, owner) for every row, in order. The tensor has its bucket and offset,
// and owner->*field is its pointer in p. Frozen tensors lie from offset frozen_from on.
template <class T, class Visit>
Extent walk_from(const Config& c, int ranks, Params<T>* p, int64_t frozen_from, Visit visit) {
    Extent to = {{}, 0, frozen_from};
    auto step = [&](const Config& stack, const auto& row, auto* owner, int block, int bucket) {
        Tensor t = tensor_of(stack, row, block);
        t.bucket = bucket;
        if (t.size()) t.frozen = is_frozen(c, t);
        int64_t& end = t.frozen ? to.all : to.trained;
        t.offset = end;
        end += round_up(t.size(), 64);
        visit(t, row.field, owner);
    };
    auto begin_bucket = [&] {
        to.trained = round_up(to.trained, 64 * int64_t(ranks));
        to.buckets.push_back(to.trained);
    };
    // A stack's blocks and its last norm.
    int bucket = 0;
    auto blocks = [&](const Config& stack, Params<T>* of) {
        for (int l = 0; l < stack.L; l++) {
            begin_bucket();
            bucket++;
            Block<T>* const block = of ? &of->block[size_t(l)] : nullptr;
            for (auto& row : block_rows<T>(stack, l)) step(stack, row, block, l, bucket);
            for (auto& row : adapter_rows<T>(stack, l)) step(stack, row, block, l, bucket);
        }
        for (auto& row : last_rows<T>(stack)) step(stack, row, of, -1, bucket);
    };
    begin_bucket();
    for (auto& row : first_rows<T>(c)) step(c, row, p, -1, 0);
    if (c.encoder_layers) {
        const Config encoder = c.encoder();
        Params<T>* const of = p ? &p->encoder[0] : nullptr;
        for (auto& row : first_rows<T>(encoder)) step(encoder, row, of, -1, 0);
        blocks(encoder, of);
    }
    blocks(c, p);
    to.trained = round_up(to.trained, 64 * int64_t(ranks));
    to.all = std::max(to.all, to.trained);
    return to;
}
Extent extent(const Config& c, int ranks) {
    auto nothing = [](const Tensor&, auto, auto*) {};
    Extent e = walk_from<Parameter>(c, ranks, nullptr, 0, nothing);
    const bool some_frozen = !c.trained.empty() || c.adapter.any();
    if (some_frozen) e.all = walk_from<Parameter>(c, ranks, nullptr, e.trained, nothing).all;
    return e;
}
template <class T, class Visit> void walk(const Config& c, int ranks, Params<T>* p, Visit visit) {
    walk_from(c, ranks, p, extent(c, ranks).trained, visit);
}

}    // namespace

template <class T> Params<T> bind(const Config& c, int ranks, const std::function<T*(const Tensor&)>& pointer_to) {
    Params<T> p;
    p.block.resize(size_t(c.L));
    p.encoder.resize(c.encoder_layers > 0);
    for (Params<T>& encoder : p.encoder) encoder.block.resize(size_t(c.encoder_layers));
    walk<T>(c, ranks, &p,
            [&](const Tensor& t, auto field, auto* owner) { owner->*field = t.size() ? pointer_to(t) : nullptr; });
    for (Params<T>& encoder : p.encoder) encoder.wte = p.wte;
    return p;
}
template Params<Parameter> bind(const Config&, int, const std::function<Parameter*(const Tensor&)>&);
template Params<Gradient> bind(const Config&, int, const std::function<Gradient*(const Tensor&)>&);

std::vector<Tensor> config_tensors(const Config& c, int ranks) {
    std::vector<Tensor> all;
    walk<Parameter>(c, ranks, nullptr, [&](const Tensor& t, auto, auto*) {
        if (t.size()) all.push_back(t);
    });
    return all;
}
int64_t config_flat_size(const Config& c, int ranks) { return extent(c, ranks).trained; }
int64_t config_frozen_size(const Config& c, int ranks) {
    const Extent e = extent(c, ranks);
    return e.all - e.trained;
}
std::vector<Bucket> config_buckets(const Config& c, int ranks) {
    const Extent e = extent(c, ranks);
    std::vector<Bucket> all;
    for (size_t k = 0; k < e.buckets.size(); k++)
        all.push_back({e.buckets[k], (k + 1 < e.buckets.size() ? e.buckets[k + 1] : e.trained) - e.buckets[k]});
    return all;
}
// With adapters, rank 0 saves all of them, because PEFT's format is a single file.
std::vector<int> config_owners(const Config& c, int ranks) {
    std::vector<int64_t> load(static_cast<size_t>(ranks)), sizes;
    for (const Bucket& k : config_buckets(c, ranks)) sizes.push_back(k.size);
    for (const Tensor& t : config_tensors(c, ranks)) sizes[size_t(t.bucket)] += t.frozen ? t.size() : 0;
    std::vector<int> owners(sizes.size(), 0);
    for (size_t k = 0; k < sizes.size() && !c.adapter.any(); k++) {
        const auto least = std::min_element(load.begin(), load.end());
        *least += sizes[k];
        owners[k] = int(least - load.begin());
    }
    return owners;
}
bool tensor_named(const std::string& pattern, const Tensor& t) {
    return named_by(pattern, t.name) || pieces_named_by(pattern, t) > 0;
}
Status named_whole(const std::string& pattern, const Tensor& t, const char* flag) {
    const int pieces = pieces_named_by(pattern, t);
    if (pieces == 0 || pieces == int(t.pieces.size()) || named_by(pattern, t.name)) return {};
    return fail(Exit::usage,
                "%s %s: it names %d of the %d matrices that are trained together as %s; name all of them, or %s", flag,
                pattern.c_str(), pieces, int(t.pieces.size()), t.name.c_str(), t.name.c_str());
}
Status check_trained(const Config& c) {
    const std::vector<Tensor> tensors = config_tensors(c);
    for (const std::string& pattern : c.trained) {
        bool any = false;
        for (const Tensor& t : tensors) {
            TRY(named_whole(pattern, t, "--train-only"));
            any |= tensor_named(pattern, t);
        }
        if (!any)
            return fail(Exit::usage, "--train-only %s: the model has no such tensor; it has %s, %s and so on",
                        pattern.c_str(), tensors[0].name.c_str(), tensors.back().name.c_str());
    }
    return {};
}
int64_t config_parameters(const Config& c) {
    int64_t n = 0;
    for (const Tensor& t : config_tensors(c)) n += t.file_rows * t.cols;
    return n;
}
int64_t config_used(const Config& c) {
    int64_t n = 0;
    for (const Tensor& t : config_tensors(c))
        n += t.file_rows * t.cols / t.experts * (t.experts > 1 ? c.experts_used : 1);
    return n;
}
