// adapter.cpp - see adapter.h.
#include "model/adapter.h"
#include "gpt.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "model/families/families.h"
#include "model/weights.h"

namespace {
constexpr const char* PRODUCT_NAMES[] = {"qkv", "proj", "fc", "fc2", "cross_q", "cross_kv", "cross_proj"};

std::string without_weight(const std::string& name) {
    return name.ends_with(".weight") ? name.substr(0, name.size() - std::string_view(".weight").size()) : name;
}
std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }
}    // namespace

std::vector<AdaptedMatrix> adapted_matrices(const Config& c) {
    std::vector<AdaptedMatrix> all;
    for (const Tensor& t : config_tensors(c))
        for (int i = 0; i < Adapter::PRODUCTS; i++) {
            const Adapter::Product p = Adapter::Product(i);
            if (last_part(t.name) != std::string(PRODUCT_NAMES[p]) + "w") continue;
            int64_t column = 0;
            CHECK(t.pieces.size() <= size_t(Adapter::PIECES), "%s has %zu pieces", t.name.c_str(), t.pieces.size());
            for (const Piece& piece : t.pieces) {
                const int at = int(&piece - &t.pieces[0]), rank = c.adapter.ranks[p][at];
                all.push_back({p, t.bucket - 1, at, t.name, without_weight(piece.name), piece.first, piece.rows, t.cols,
                               column, rank});
                column += rank;
            }
        }
    return all;
}

int64_t trained_parameters(const Config& c) {
    int64_t n = 0;
    for (const Tensor& t : config_tensors(c)) n += t.frozen || t.adapter ? 0 : t.file_rows * t.cols;
    for (const AdaptedMatrix& m : adapted_matrices(c))
        if (m.rank) n += m.rank * (m.cols + m.rows) + (c.adapter.magnitudes ? m.rows : 0);
    return n;
}

std::vector<std::array<RowBlocks, Adapter::PRODUCTS>> adapter_blocks(const Config& c) {
    std::vector<std::array<RowBlocks, Adapter::PRODUCTS>> all(size_t(c.encoder_layers + c.L));
    for (const AdaptedMatrix& m : adapted_matrices(c)) {
        RowBlocks& to = all[size_t(m.block)][m.product];
        to.count++;
        to.row[to.count] = int(m.first + m.rows);
        to.col[to.count] = int(m.column + m.rank);
    }
    return all;
}
std::string adapter_tensor(const std::string& product, char which) {
    return product.substr(0, product.size() - 1) + "_" + which;
}

// Refuses a model whose files divide a product into different numbers of matrices in the encoder
// and the decoder: Adapter::ranks has one rank for each matrix, for both stacks.
static Status same_pieces(const Config& c) {
    size_t pieces[Adapter::PRODUCTS] = {};
    for (const Tensor& t : config_tensors(c))
        for (int p = 0; p < Adapter::PRODUCTS; p++) {
            if (last_part(t.name) != std::string(PRODUCT_NAMES[p]) + "w") continue;
            if (pieces[p] && pieces[p] != t.pieces.size())
                return fail(Exit::usage,
                            "--lora-rank: files of type flatgpt-%s hold the encoder's %s as %zu matrices and the "
                            "decoder's as %zu, expected as many; train adapters of a t5, mt5, bart or marian",
                            c.family->type, PRODUCT_NAMES[p], pieces[p], t.pieces.size());
            pieces[p] = t.pieces.size();
        }
    return {};
}

Result<Adapter> adapter_for(const Config& c, int rank, const std::string& targets) {
    TRY(same_pieces(c));
    Adapter to;
    std::set<std::string> known = {"all", "attention"}, found;
    std::istringstream names(targets);
    std::vector<std::string> asked;
    for (std::string name; std::getline(names, name, ',');) asked.push_back(name);
    for (const AdaptedMatrix& m : adapted_matrices(c)) {
        const bool attention = Adapter::of_attention(m.product);
        const std::string of_file = last_part(m.module), ours = PRODUCT_NAMES[m.product];
        known.insert({of_file, ours});
        for (const std::string& name : asked) {
            if (name != "all" && !(name == "attention" && attention) && name != of_file && name != ours) continue;
            to.ranks[m.product][m.piece] = rank;
            found.insert(name);
        }
    }
    for (const std::string& name : asked)
        if (!found.contains(name))
            return fail(Exit::usage, "--lora-targets: the model has no matrix \"%s\"; expected some of %s",
                        name.c_str(), join({known.begin(), known.end()}, ", ").c_str());
    if (!to.any()) return fail(Exit::usage, "--lora-targets: expected at least one matrix");
    return to;
}

// ---- adapters in the model's passes -------------------------------------------------------------

// Channels of a product's input.
static int input_width(const Config& c, Adapter::Product which, int l) {
    const bool of_heads = which == Adapter::proj || which == Adapter::cross_proj;
    return of_heads ? c.attention_width() : which == Adapter::fc2 ? c.ffn_width(l) : c.C;
}
ProductWeights Gpt::product(Adapter::Product which, int l) const {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Parameter* const weights[][2] = {{p.qkvw, p.qkvb},
                                           {p.projw, p.projb},
                                           {p.fcw, p.fcb},
                                           {p.fc2w, p.fc2b},
                                           {p.cross_qw, p.cross_qb},
                                           {p.cross_kvw, p.cross_kvb},
                                           {p.cross_projw, p.cross_projb}};
    ProductWeights to = {weights[which][0], weights[which][1]};
    if (!p.low_a(which)) return to;
    Input* low = a[size_t(l)].low(which);
    to.adapter = {.a = p.low_a(which),
                  .b = p.low_b(which),
                  .R = c.adapter.rank(which),
                  .scale = c.adapter.scale,
                  .blocks = low_blocks[size_t(l)][which],
                  .low = low,
                  .low_sum = op.has_input_type() ? low_sum : reinterpret_cast<Activation*>(low),
                  .low_gradient = low_gradient,
                  .wide = wide,
                  .magnitude = p.magnitude(which),
                  .inverse_norms = a[size_t(l)].inverse_norms[which],
                  .unscaled = unscaled,
                  .dropped = dropped};
    // Dropout of adapters' inputs has sites behind all others. Those of an encoder-decoder count
    // the blocks of both stacks from 1 << 20 on, because each stack numbers its other sites alone.
    constexpr int SELF = Adapter::cross_q, BOTH_STACKS = 1 << 20;
    const int alone = 3 * c.L + 1 + SELF * l + which,
              of_both = BOTH_STACKS + Adapter::PRODUCTS * (first_bucket - 1 + l) + which;
    const Pass& of = which == Adapter::cross_kv ? encoder->pass : pass;
    if (pass.training && c.adapter.dropout > 0)
        to.adapter.dropout = site_dropout(c.adapter.dropout, encoder || c.in_encoder ? of_both : alone,
                                          of.first_sequence * of.S * input_width(c, which, l));
    return to;
}
ProductGradients Gpt::gradients(Adapter::Product which, int l) const {
    const Block<Gradient>& d = dw.block[size_t(l)];
    Gradient* const of[][2] = {{d.qkvw, d.qkvb},
                               {d.projw, d.projb},
                               {d.fcw, d.fcb},
                               {d.fc2w, d.fc2b},
                               {d.cross_qw, d.cross_qb},
                               {d.cross_kvw, d.cross_kvb},
                               {d.cross_projw, d.cross_projb}};
    return {store.into(of[which][0]), of[which][1], store.into(d.low_a(which)), store.into(d.low_b(which)),
            d.magnitude(which)};
}
void Gpt::refresh_row_norms(int l) {
    if (!c.adapter.magnitudes || row_norms_version[size_t(l)] == store.version) return;
    row_norms_version[size_t(l)] = store.version;
    for (int p = 0; p < Adapter::PRODUCTS; p++)
        adapter_row_norms(op, product(Adapter::Product(p), l), input_width(c, Adapter::Product(p), l));
}
int Gpt::lowest_trained_block() const {
    if (encoder || dw.wte || dw.wpe || dw.relw || dw.lnew || dw.lneb || dw.residw || dw.x0w || dw.smearw ||
        dw.smear_lambda)
        return -1;
    int l = 0;
    while (l < c.L && !store.buckets[size_t(first_bucket + l)].size) l++;
    return l;
}
