#!/bin/bash
# Breaks the maths on purpose, one line at a time, and demands that a test notices. Called by `make mutants`.
# Usage: mutants.sh [PATTERN]: only the rows that this regular expression matches.
# A row: file ;; sed expression ;; test cases that must fail. Kernels (layers/*.cu) are tested on the emulator.
#
# Each worker has a tree of its own. The layers' loops are first compiled for this CPU's best instruction set alone;
# only a mutant that survives this is compiled for the others, too. Afterwards the objects from before are put back.
set -u
unset MAKEFLAGS MFLAGS MAKELEVEL    # make's own -j would leave one job to those that are started here
export EMU_CC=90    # all kernels
export WARN=-w    # a mutant may leave a variable unused
export EXTRA='-g0 -Wl,-s'    # small binaries link faster
export FLATGPT_TEST_LIMIT=${FLATGPT_TEST_LIMIT:-120}    # one that never ends is caught by name after that
cd "$(dirname "$0")/.."
rows='
gpt.cpp ;; s/op.activation_backward(dwide, dactivated, t.fch/op.activation_backward(dwide, dactivated, t.fcg/ ;; gpt: gradients of all*
gpt.cpp ;; s/op.norm_backward(dx, d.ln2w, d.ln2b, dt, t.x2/op.norm_backward(dx, d.ln2w, d.ln2b, dt, t.x/ ;; gpt: gradients of all*
gpt.cpp ;; s/op.linear_backward(dt, d.projw, d.projb, dy, t.atty/op.linear_backward(dt, d.projw, d.projb, dy, t.ln1/ ;; gpt: gradients of all*
gpt.cpp ;; s/op.zero(dx, op.bytes(dx, .*// ;; gpt: gradients accumulate*
gpt.cpp ;; s/    op.activation_forward(t.fcg, t.fch, c.activation, c.gated, N, c.F);// ;; kinds: what the backward*
gpt.cpp ;; s/    if (p.qw) turn(l);// ;; kinds: what the backward*
gpt.cpp ;; s/        op.zero(dbranch, .*// ;; kinds: gradients of every kind*
gpt.cpp ;; s/op.add_scaled(scaled, nullptr, dx, c.branch_scale/op.add_scaled(scaled, nullptr, dx, 1/ ;; kinds: gradients of every kind*
gpt.cpp ;; s/if (c.parallel == Parallel::one) op.add_scaled(dt, dt, dffn, 1, n, {});// ;; kinds: gradients of every kind*
gpt.cpp ;; s/|| end.dropout.rate > 0) {/) {/ ;; dropout: gradients*
gpt.cpp ;; s/drop.rate > 0) op.add_scaled(dx, nullptr, dx, 1, n, drop);/drop.rate > 1) op.add_scaled(dx, nullptr, dx, 1, n, drop);/ ;; dropout: gradients*
gpt.cpp ;; s/uint64_t(step_number) \* PLACES/PLACES/ ;; dropout: what a model drops*
gpt.cpp ;; s/philox(step_seed, STREAM/philox(0, STREAM/ ;; dropout: what a model drops*
gpt.cpp ;; s/uint64_t(3 \* l + int(where))/uint64_t(int(where))/ ;; dropout: what a model drops*
gpt.cpp ;; s/sequences + int64_t(plan.rank) \* B/sequences/ ;; gpt ranks: with dropout*
gpt.cpp ;; s/sequences += int64_t(plan.ranks) \* B/sequences += 0/ ;; gpt ranks: with dropout*
model/cache.cpp ;; s/ends = lengths, dropping = false;/ends = lengths;/ ;; dropout: evaluation*
gpt.cpp ;; s/std::swap(dx, dbranch);.*// ;; kinds: gradients of every kind*
gpt.cpp ;; s/in_product ? x : nullptr, N, width, C/nullptr, N, width, C/ ;; kinds: *
gpt.cpp ;; s/if (dbias) op.attention_bias_backward(.*// ;; kinds: gradients of every kind*
gpt.cpp ;; s/if (dbias) op.zero(dbias, .*// ;; kinds: *
gpt.cpp ;; s/ffn_backward(l, c.parallel == Parallel::none ? dt : dffn);/ffn_backward(l, dt);/ ;; kinds: gradients of every kind*
gpt.cpp ;; s/if (c.embed_scale != 1) op.add_scaled(d, .*// ;; kinds: gradients of every kind*
gpt.cpp ;; s/angles)\[c.table_of(l)\]/angles)[0]/ ;; kinds: gradients of every kind*
gpt.cpp ;; s/(cache ? cache->angles : angles)/angles/ ;; kinds: tables of angles*
gpt.cpp ;; s/z.cap \* std::tanh(z.scale \* out\[v\] \/ z.cap)/z.scale * out[v]/ ;; families: *
model/config.cpp ;; s/(l + !global_first) % global_every == 0/(l + global_first) % global_every == 0/ ;; families: *
model/config.cpp ;; s/(l + 1) % rope_skip_every == 0/l % rope_skip_every == 0/ ;; families: *
model/rope.cpp ;; s/return 1 - std::clamp/return std::clamp/ ;; families: logits*
model/rope.cpp ;; s/std::max(std::floor(pair_turning(c.rope_high/std::max(std::floor(pair_turning(c.rope_low/ ;; families: logits*
model/rope.cpp ;; s/(turns - c.rope_low)/(turns - c.rope_high)/ ;; families: logits*
model/rope.cpp ;; s/const double magnitude = !yarn /const double magnitude = yarn / ;; families: logits*
model/rope.cpp ;; s/1 + 0.1 \* std::log/1 + 0.2 * std::log/ ;; families: logits*
model/rope.cpp ;; s/c.windowed(l) \&\& c.rope_local_theta > 0/c.rope_local_theta > 0/ ;; families: logits*
model/families.cpp ;; s/if (family->sized) family->sized(\*this);// ;; families: logits*
model/families.cpp ;; s/F = gated ? /F = !gated ? / ;; config: kinds*
model/rope.cpp ;; s/d \/ (d - 2))/(d - 2) \/ d)/ ;; positions: dynamic*
model/rope.cpp ;; s/ - (double(c.rope_factor) - 1)// ;; positions: dynamic*
model/positions.cpp ;; s/i % 2 ? std::cos/i % 2 ? std::sin/ ;; positions: sinusoids*
model/positions.cpp ;; s/(buckets - exact) + 1e-9/(buckets - exact) - 1e-9/ ;; positions: T5*
model/config.cpp ;; s/.stride = near ? stride : 0/.stride = 0/ ;; families: models of kinds*
model/config.cpp ;; s/.globals = near ? global_tokens : 0/.globals = 0/ ;; families: models of kinds*
model/memory.cpp ;; s/relative_buckets(c.sees != Sees::causal)/relative_buckets(false)/ ;; families: models of kinds*
layers/reference.cpp ;; s/1 \/ std::sqrt(T(h.HS))/1 \/ T(h.HS)/ ;; textbook: *
model/tensors.cpp ;; s/if (c.NKV != c.NH \&\& t.layout == FileLayout::by_head)/if (t.layout == FileLayout::by_head)/ ;; families: logits*
checkpoint/tensors.cpp ;; s/(3 \* h + part) \* int64_t(c.HS), (int64_t(part) \* c.NH + h)/(int64_t(part) * c.NH + h) * int64_t(c.HS), (3 * h + part)/ ;; families: logits*
checkpoint/tensors.cpp ;; s/moved = offset + (r.memory - r.file) \* cols/moved = offset/ ;; families: what is written*
checkpoint/config_json.cpp ;; s/case ConfigKey::inverse: return 1 \/ x;/case ConfigKey::inverse: return x;/ ;; families: logits*
checkpoint/config_json.cpp ;; s/if (form == ConfigKey::any_gelu .*// ;; family config: a key that*
checkpoint/config_json.cpp ;; s/if (there \&\& k.form == ConfigKey::or_none)/if (false)/ ;; family config: a key that*
checkpoint/config_layers.cpp ;; s/else given = scaling;/else scaling.empty();/ ;; family config: rotation*
checkpoint/config_layers.cpp ;; s/(one \* grown + 1) \/ (all/(all * grown + 1) \/ (all/ ;; family config: rotation*
checkpoint/config_layers.cpp ;; s/(l + !first) % n == 0/(l + 1) % n == 0/ ;; families: logits*
checkpoint/config_layers.cpp ;; s/c->window ? c->global_every : 1;/c->global_every;/ ;; family config: what a class cannot*
checkpoint/config_layers.cpp ;; s/turning ? c->turns(l) : l < first/l < first/ ;; family config: which layers*
checkpoint/checkpoint.cpp ;; s/std::vector<int> ends = v.ends;/std::vector<int> ends;/ ;; generation_config.json and lists*
train/start.cpp ;; s/mean\[k % cols\] += double(x\[k\]) \/ double(rows)/mean[k % cols] += double(x[k])/ ;; family train: --resize*
infer/chat.cpp ;; s/cache.table.rewind(0, int(ids.size()));// ;; chat: each turn*
infer/chat.cpp ;; s/prompt.size() - 1));/prompt.size()));/ ;; chat: what is interrupted*
infer/chat.cpp ;; s/limit = std::min(limit, options.context \/ 2);// ;; chat: when the context*
infer/chat.cpp ;; s/uint64_t(options.seed + answers)/uint64_t(options.seed)/ ;; chat: each turn*
infer/chat.cpp ;; s/tokenizer.is_special(id)) continue;/false) continue;/ ;; chat: answers end*
gpt.cpp ;; s/if (spans) h.keys = keys(), h.queries = queries();// ;; objective: documents in one*
gpt.cpp ;; s/if (!cache || h.keys) op.attention_forward/if (!cache) op.attention_forward/ ;; objective: a prompt whose*
gpt.cpp ;; s/all_targets ? double(all_targets) : // ;; objective: the mean is over*
model/spans.cpp ;; s/std::max(s + 1, whole)/s + 1/ ;; objective: spans say*
model/spans.cpp ;; s/s < whole ? from : s/s/ ;; objective: spans say*
infer/objective.cpp ;; s/texts\[0\].prefix - 1, -1/texts[0].prefix, -1/ ;; objective: what is drawn*
infer/objective.cpp ;; s/prefix(first + i, S) + 1/prefix(first + i, S)/ ;; objective: what is drawn*
infer/texts.cpp ;; s/order\[first + n \/ size_t(S)\]/n \/ size_t(S)/ ;; objective: padded*
train_gpt.cu ;; s/first += int64_t(o.batch) \* ranks.count()/first += o.batch/ ;; train objective: 1, 2*
layers/reference.cpp ;; s/if (dlogits) zero(dlogits + int64_t(n) \* Vp.*// ;; objective: gradients*
layers/lm_head.cpp ;; s/dlogits\[at + v\] = 0;/dlogits[at + v] += 0;/ ;; cross entropy: against*
layers/lm_head.cu ;; s/dlogits\[n \* Vp + v\] = from_float<T>(0);/;/ ;; cross entropy: against*
layers/gate.h ;; s/loss <= limits.loss/loss < 1e30/ ;; gpt: a step over*
layers/reference.cpp ;; s/+= r \* (g(c) - g_mean/= r * (g(c) - g_mean/ ;; gpt: gradients of all*
layers/reference.cpp ;; s/ - (xn\[c\] - m) \* r \* gx_mean// ;; gpt: gradients of all*
layers/reference.cpp ;; s/if (db) db\[o\] += d;/if (db) db[o] = d;/ ;; gpt: gradients of all*
layers/reference.cpp ;; s/- delta) \* slope;/- delta);/ ;; gpt: gradients of all*
layers/reference.cpp ;; s/? 1 - capped \* capped/? 1 + capped * capped/ ;; kinds: gradients of every kind*
layers/reference.cpp ;; s/? 1 - x \* x \/ (T(z.cap)/? 1 + x * x \/ (T(z.cap)/ ;; kinds: gradients of every kind*
layers/reference.cpp ;; s/(back ? -1 : 1) \* T(turns/T(turns/ ;; kinds: gradients of every kind*
layers/reference.cpp ;; s/ - xn\[c\] \* r \* mean);/);/ ;; kinds: gradients of every kind*
layers/reference.cpp ;; s/\*slope = sigmoid \* (1 + x \* (1 - sigmoid))/*slope = sigmoid/ ;; kinds: gradients of every kind*
layers/reference.cpp ;; s/\*slope = below + x \* density/*slope = below/ ;; kinds: gradients of every kind*
layers/reference.cpp ;; s/T delta = dot(dy + o, y + o, h.HS);/T delta = 0;/ ;; gpt: gradients of all*
layers/reference.cpp ;; s/1 + 3 \* 0.044715/1 + 2 * 0.044715/ ;; gpt: gradients of all*
layers/reference.cpp ;; s/(v == target\[n\] ? 1 : 0)/(v == target[0] ? 1 : 0)/ ;; gpt: gradients of all*
layers/reference.cpp ;; s/dwpe\[int64_t(s) \* C + c\] += d;/dwpe[int64_t(s) * C + c] = d;/ ;; gpt: gradients of all*
layers/attention/backward.cpp ;; s/ + at) - delta\[i\];/ + at);/ ;; attention: lengths*
layers/attention/backward.cpp ;; s/c.ahead + r + i + 1);/c.ahead + r + i + 2);/ ;; attention: lengths*
layers/attention/tiles.h ;; s/p - h.window + 1) : 0;/p - h.window) : 0;/ ;; attention: windows*
layers/attention/tiles.h ;; s/tiles(h.globals, h.stride) \* h.stride/h.stride/ ;; attention: strides*
layers/attention/forward.cpp ;; s/streams.s\[n\].of(window).to)/streams.s[n].of(window).to - PANEL)/ ;; attention: strides*
layers/attention/backward.cpp ;; s/if (stream.all \&\& in_pattern(c.h, j0 + j)) continue;// ;; attention: strides*
layers/attention/backward.cpp ;; s/if (masked \&\& !half \&\& !c.stream.all)/if (false)/ ;; attention: strides*
layers/attention/backward.cpp ;; s/while (masked \&\& begin < m \&\& limit(begin) <= j) begin++;// ;; attention: prefixes*
layers/attention/backward.cpp ;; s/most(seen, strip) + MR/seen + MR/ ;; attention: documents at*
layers/attention/backward.cpp ;; s/first(end) < j + MR) end++/first(end) < j) end++/ ;; attention: windows*
layers/attention/forward.cpp ;; s/total\[r\] \*= factor;// ;; attention: lengths*
layers/attention/forward.cpp ;; s/total\[r\] += seen;/total[r] += rounded_bf16(seen);/ ;; cpu: what the products*
layers/simd/tile.h ;; s/const vs order = {0, 16,/const vs order = {16, 0,/ ;; attention: *
layers/adamw.cpp ;; s/decays\[at \/ ROW\]/decays[from \/ ROW]/ ;; adamw: *
layers/attention/backward.cpp ;; s/for (int i = 1; i < count; i++) total +=/for (int i = 1; i < 1; i++) total +=/ ;; attention: lengths*
layers/adamw.cpp ;; s/for (; i < n; i++) s\[i % 8\]/for (; i < n; i++) s[0]/ ;; cpu: the sum of squares*
layers/adamw.cpp ;; s/uint64_t(at \/ 4)/uint64_t(at \/ 8)/ ;; adamw: *
layers/adamw.cpp ;; s/step_of(master + at);/;/ ;; adamw: *
layers/simd/vec.h ;; s/0x7fff + (u >> 16 \& 1)) >> 16;/0x8000) >> 16;/ ;; casts:*
layers/linear.cpp ;; s/if (dpre_sum) column_sums/column_sums/ ;; linear: with GELU*
layers/gemv.cpp ;; s/rounded_bf16(at.get(x + i))/at.get(x + i)/ ;; cpu: products with bf16*
layers/norm.cpp ;; s/g - g_mean) - xhat \* gx_mean)/g - g_mean))/ ;; norm: against*
layers/norm.cpp ;; s/(rms ? g : g - g_mean)/g/ ;; norm: against*
layers/norm.cpp ;; s/at.get(w + c) + plus/at.get(w + c)/ ;; norm: with and*
layers/norm.cpp ;; s/if (bias) at.put/if (false) at.put/ ;; norm: against*
layers/rope.cpp ;; s/back ? -at.get(sines + i)/back ? at.get(sines + i)/ ;; rope: against*
layers/rope.cpp ;; s/v \* c + u0 \* s;/v * c + u * s;/ ;; rope: against*
layers/rope.cpp ;; s/(pos\[n\] > 0 ? pos\[n\] : 0)/n % S/ ;; rope: against*
layers/rope.cpp ;; s/ - xhat \* gx_mean));/));/ ;; rope: against*
layers/rope.cpp ;; s/gx_sum += dc \* (at.get(w + c) + t.plus)/gx_sum += dc * at.get(w + c)/ ;; rope: against*
layers/rope.cpp ;; s/partial + q.size, parts, width, k.size/partial, parts, width, k.size/ ;; rope: against*
layers/rope.cpp ;; s/const int n = least(2 \* (half - int(i)), 2 \* VW);/const int n = 2 * VW;/ ;; rope: *
layers/simd/activation.h ;; s/n.phi + n.x \* n.density/n.phi/ ;; activation: as exact*
layers/simd/activation.h ;; s/g.s + x \* g.slope/g.s + g.slope/ ;; activation: as exact*
layers/simd/activation.h ;; s/return {r \* r, 2 \* r};/return {r * r, r};/ ;; activation: as exact*
layers/ffn.cpp ;; s/g \* at.get(up + i) \* c.slope/g * c.slope/ ;; activation: gated*
layers/ffn.cpp ;; s/at.put(d_up + i, g \* c.y)/at.put(d_up + i, g * c.slope)/ ;; activation: gated*
layers/attention/backward.cpp ;; s/ \* d \* score.dz;/ * d;/ ;; attention: a scale*
layers/attention/tiles.h ;; s/return {t \* cap + bias, 1 - t \* t};/return {t * cap + bias, 1 - t};/ ;; attention: a scale*
layers/attention/tiles.h ;; s/last <= reach \&\& last - first == VW - 1/last - first == VW - 1/ ;; bias: *
layers/attention/bias.cpp ;; s/if (last <= -reach) return void(sums\[-reach\] += sum(x));/if (last <= -reach) return;/ ;; bias: the gradient*
layers/norm.cpp ;; s/scale \* drop.factor()/scale/ ;; norm: x plus*
layers/attention/forward.cpp ;; s/c.h.dropout.factor() \/ total/1 \/ total/ ;; attention: dropout*
layers/attention/backward.cpp ;; s/if (h.dropout.rate > 0) drop<half>(t, c, h.dropout, kept, false, .*// ;; attention: dropout*
layers/attention/backward.cpp ;; s/store(ds, kept_lanes(load(ds) \* factor, keep));/store(ds, load(ds) * factor);/ ;; attention: dropout*
layers/attention/kept.h ;; s/low\[j\] = run\[0\]\[k\]/low[j] = run[1][k]/ ;; attention: dropout*
layers/attention/bias.cpp ;; s/kept_lanes(dp \* factor, kept.lanes_of(r, u))/dp * factor/ ;; bias: the gradient*
layers/attention/bias.cpp ;; s/ - t.delta\[i0 + r\]// ;; bias: the gradient*
layers/attention/bias.cpp ;; s/most(0, see.from - j0), to, ds, 0/0, to, ds, 0/ ;; bias: the gradient*
layers/attention/bias.cu ;; s/tiles(s.tiles), count(s.bands), lowest(h.keys ? 1 - s.tiles : 0)/tiles(s.tiles), count(s.bands), lowest(0)/ ;; bias: the gradient*
layers/attention/bias.cu ;; s/ (dp - delta);/ dp;/ ;; bias: the gradient*
layers/attention/bias.cu ;; s/low = x == 0 ? -far : x - c.h.reach/low = x - c.h.reach/ ;; bias: the gradient*
layers/attention/attention.cuh ;; s/-int(distance), t.reach/int(distance), t.reach/ ;; bias: attention*
layers/attention/tiles.h ;; s/to_key, vf) \* slope;/to_key, vf) * -slope;/ ;; attention: a scale*
layers/attention/cached.cpp ;; s/key - p).z/key - p + 1).z/ ;; attention cached: a scale*
layers/attention/cached.cpp ;; s/score\[j\] \*= held.v.factors/score[j] *= held.k.factors/ ;; attention cached: narrow*
layers/attention/cached.cpp ;; s/tiles(first, stride) - tiles(globals, stride)/tiles(first, stride)/ ;; attention cached: strides*
layers/attention/cached.cpp ;; s/most(0, p + 1 - h.window - 256)/most(0, p + 1 - h.window)/ ;; attention cached: *
layers/attention/cached.cpp ;; s/u = u0 \* cos\[c\] - v0/u = u0 * cos[c] + v0/ ;; attention cached: copied*
model/cache.cpp ;; s/last < s.pages.size() \&\& users(s.pages\[last\]) > 1/false/ ;; cache: copies of a sequence*
model/cache.cpp ;; s/cache.table.drop(b, cache.sink_pages);/cache.table.drop(b, 0);/ ;; cache: rolling equals*
model/cache.cpp ;; s/dropped.resize(turned.size(), s.dropped);/dropped.resize(turned.size(), Pages::SIZE);/ ;; cache: rolling equals*
model/cache.cpp ;; s/copies.push_back({page, s.first\[size_t(i)\]});/copies.push_back({page, page});/ ;; cache: rolling equals*
model/rope.cpp ;; s/!yarn || turn /!yarn / ;; cache: rolling equals*
layers/embedding.cpp ;; s/(pos\[n\] > 0 ? pos\[n\] : 0)/pos[n % S]/ ;; embedding: forward*
layers/lm_head.cpp ;; s/(1 - t \* t) \* l.scale/set1(l.scale)/ ;; cross entropy: scaled*
layers/lm_head.cpp ;; s/: scale \* of_target.slope\[0\];/: scale;/ ;; cross entropy: scaled*
layers/simd/tanh.h ;; s/ + (y.whole - 1);/ + y.whole;/ ;; cross entropy: scaled*
layers/simd/vec.h ;; s/for (int j = 1; j < parts; j++)/for (int j = 2; j < parts; j++)/ ;; norm: against*
layers/lm_head.cpp ;; s/e\[target\] -= plain ? scale/e[target] -= plain ? 1/ ;; cross entropy: *
layers/lm_head.cpp ;; s/total \*= scalar_exp(top - now);// ;; cross entropy: *
layers/ffn.cpp ;; s/(at.get(x + from + i)).slope/(at.get(x + from + i)).y/ ;; activation: as exact*
layers/embedding.cpp ;; s/at.put(p + c, at.get(p + c) + at.get(d + c));/at.put(p + c, at.get(d + c));/ ;; embedding: *
layers/embedding.cu ;; s/peers & ((1u << lane) - 1)/0 * peers/ ;; embedding: *
layers/embedding.cu ;; s/else if (run == after) put<W, false>(tails + own, sum);// ;; embedding: *
layers/lm_head.cu ;; s/sum \*= exp(top - most);// ;; cross entropy: *
layers/lm_head.cu ;; s/from_float<T>(v < V ? /from_float<T>(v <= V ? / ;; cross entropy: *
layers/lm_head.cu ;; s/z.scale \* (1 - part \* part)/z.scale/ ;; cross entropy: scaled*
layers/lm_head.cu ;; s/ \* scale \* shape.slope(logit)/ * scale/ ;; cross entropy: scaled*
layers/softcap.cuh ;; s/x < 0 ? -t : t/t/ ;; cross entropy: scaled*
layers/lm_head.cu ;; s/__syncthreads();    \/\/ the target.*// ;; cross entropy: *
layers/norm.cu ;; s/held.fetch(turn ^ 1, first + step/held.fetch(turn, first + step/ ;; norm: many*
layers/norm.cu ;; s/(g - centred \* slope)/g/ ;; norm: against*
layers/norm.cu ;; s/xn\[k\]\[i\] \* r \* factor/xn[k][i] * factor/ ;; norm: against*
layers/norm.cu ;; s/if (!w) norm.plus = 1;// ;; norm: with and without*
layers/norm.cu ;; s/is_rms<K>(norm) ? 0 : __shfl_sync/__shfl_sync/ ;; norm: with and without*
layers/parts.cuh ;; s/for (int i = 1; i < 32; i++)/for (int i = 2; i < 32; i++)/ ;; norm: against*
layers/rope.cu ;; s/v0 \* cos\[i\] + u0 \* sin\[i\]/v0 * cos[i] - u0 * sin[i]/ ;; rope: against*
layers/rope.cu ;; s/c.sine = -1;/c.sine = 1;/ ;; rope: against*
layers/rope.cu ;; s/ - xs.x\[i\] \* slope// ;; rope: against*
layers/rope.cu ;; s/__syncthreads();    \/\/ all have been written// ;; rope: *
layers/rope.cu ;; s/if (y != x) c.copied += h.NKV;// ;; rope: values are*
layers/rope.cu ;; s/(n == blockIdx.x ? 0 : sum) +/sum +/ ;; rope: many*
layers/rope.cu ;; s/head - h.NH : head) \* h.HS/0 : head) * h.HS/ ;; rope: against*
layers/norm.cu ;; s/        __syncthreads();$/        ;/ ;; norm: *
layers/activation.cuh ;; s/z < 0 ? a \* r : r/r/ ;; activation: against*
layers/activation.cuh ;; s/phi + x \* 0.3989422804f/phi + x * 0.3889422804f/ ;; activation: as exact*
layers/activation.cuh ;; s/2 \* positive}/positive}/ ;; activation: as exact*
layers/ffn.cu ;; s/u\[k\]\[j\] \* a.slope/a.slope/ ;; activation: gated*
layers/ffn.cu ;; s/u\[k\].set(j, dy \* a.value)/u[k].set(j, dy)/ ;; activation: gated*
layers/ffn.cu ;; s/u\[k\]\[j\] + scaled(j, v\[k\]\[j\])/u[k][j] + v[k][j]/ ;; norm: x plus*
layers/ffn.cu ;; s/return bits >> skip;/return bits;/ ;; norm: x plus*
layers/adamw.cu ;; s/if (s.skipped) return;// ;; adamw: against*
layers/adamw.cu ;; s/word(random, i + j)/word(random, j)/ ;; adamw: *
layers/attention/plain_backward.cu ;; s/dp\[r\]\[c\] - mean;/dp[r][c];/ ;; attention: every*
layers/attention/plain_backward.cu ;; s/if (SHAPED) ds \*= scores.steepness.*// ;; attention: a scale*
layers/attention/plain_backward.cu ;; s/p \* scores.steepness(scores.inside(s\[r\]\[c\]));/p;/ ;; attention: a scale*
layers/attention/plain_backward.cu ;; s/p = keeps(h, w.b, head, i, j) ? p : 0;// ;; attention: dropout*
layers/attention/plain_backward.cu ;; s/dp\[r\]\[c\] = keeps(h, w.b, head, i, j) ? dp\[r\]\[c\] \* factor : 0;/dp[r][c] = keeps(h, w.b, head, i, j) ? dp[r][c] * factor : dp[r][c];/ ;; attention: dropout*
layers/attention/sm80.cuh ;; s/KEYS ? k \/ 2 : k % 2, e = odd/k % 2, e = odd/ ;; attention sm80: dropout
layers/attention/sm80_backward.cu ;; s/if (SPARSE \&\& c.scores.drops \&\& !(stays.*// ;; attention sm80: dropout
layers/attention/sm80_backward.cu ;; s/x = kept ? x \* factor : 0; });/x *= factor; });/ ;; attention sm80: dropout
layers/attention/bias.cu ;; s/keeps(h, at.b, at.head, i, j) ? dp \* h.dropout.factor() : 0/dp/ ;; bias: the gradient*
layers/attention/attention.cuh ;; s/float(2 \* (head - p) + 1)/float(2 * (head - p))/ ;; attention: a scale*
layers/attention/cached.cu ;; s/ - query.slope\[g\] \* float(query.p - key\[u\])/ - query.slope[g] * 1/ ;; attention cached: a scale*
layers/attention/plain_backward.cu ;; s/ \&\& !(stream.all \&\& in_pattern(h, row + r))// ;; attention: strides*
layers/attention/plain_backward.cu ;; s/sees.from <= j \&\& j < sees.to/j <= i/ ;; attention: windows*
layers/attention/plain.cuh ;; s/return t < stream.keys \&\& /return / ;; attention: strides*
layers/attention/plain.cuh ;; s/__syncthreads();    \/\/ p is there.*// ;; attention: the same bits*
layers/attention/cached.cu ;; s/rescale(other, top, finite(top));// ;; attention cached: one*
layers/attention/cached.cu ;; s/&finished\[item\], unsigned(count - 1)/\&finished[item], 1000000u/ ;; cuda attention cached: a recorded*
layers/attention/sm80.cu ;; s/sum\[m\]\[r\] \*= shrink;// ;; attention sm80: large*
layers/attention/attention.cuh ;; s/min(span.to, j + h.window)/min(span.to, j + h.window + 1)/ ;; attention sm80: windows*
layers/attention/sm80.cuh ;; s/(c.streams.s\[i\].below(end.from) + KEYS - 1)/c.streams.s[i].below(end.from)/ ;; attention sm80: strides*
layers/attention/sm80.cuh ;; s/row + r - column - step \* c/row + r - column - c/ ;; attention sm80: strides*
layers/attention/sm80_backward.cu ;; s/ \&\& !(SPARSE \&\& stream.all \&\& in_pattern(c.h, t))// ;; attention sm80: strides*
layers/attention/sm80_backward.cu ;; s/head = head0 + i \/ per_head/head = head0/ ;; attention sm80: windows*
layers/attention/sm80_backward.cu ;; s/if (SHAPED) value \*= c.scores.steepness(x);// ;; attention sm80: soft caps*
layers/attention/sm80_backward.cu ;; s/if (SHAPED) lse += slope \* distance.at(m, n, e);// ;; attention sm80: soft caps*
layers/attention/sm80.cu ;; s/scale = SHAPED ? 1 :/scale =/ ;; attention sm80: soft caps*
layers/attention/sm80_backward.cu ;; s/__syncthreads();    \/\/ k and.*// ;; attention sm80: *
layers/cuda.cu ;; /^void take/,/^}/s/.*cudaStreamWaitEvent.*// ;; cuda device: each batch*
layers/cuda.cu ;; /^void upload_ahead/,/^}/s/.*cudaStreamWaitEvent.*// ;; cuda device: each batch*
layers/cuda.cu ;; s/.*CUDA_CHECK(cudaEventSynchronize(done\[half\]));// ;; cuda device: uploads*
layers/cuda.cu ;; s/if (b.graphs) b.outgrown.push_back(b.scratch);/if (false);/ ;; cuda device: scratch grows*
layers/linear.cu ;; s/beta = f.add ? 1 : 0/beta = 0/ ;; linear: gradients add*
layers/linear.cu ;; s/if (hex(c.algorithm) == known) return use(c);/;/ ;; cuda linear: recorded choices*
layers/linear_kernels.cuh ;; s/for (int i = 0; i < split; i++) s +=/for (int i = 0; i < 1; i++) s +=/ ;; linear: a long row*
layers/attention/sm90.cu ;; s/mbarrier_wait(&s.v_full\[before.slot\], before.parity);// ;; attention sm90: every*
layers/attention/sm90.cu ;; s/key >= rows\[1\].from \&\& // ;; attention sm90: windows*
layers/attention/sm90.cu ;; s/ \&\& key + BN <= rows\[0\].to;/;/ ;; attention sm90: prefixes*
layers/attention/sm90.cu ;; s/{-1e30f, -1e30f}/{-INFINITY, -INFINITY}/ ;; attention sm90: prefixes*
layers/attention/sm90_backward.cu ;; s/at < keys\[r\].from || // ;; attention sm90: every*
layers/attention/sm90.cu ;; s/if (SHAPED) shape(S, a.scores, slope, view.row, key);// ;; attention sm90: soft caps*
layers/attention/sm90_backward.cu ;; s/S\[i\] \* steepness \*/S[i] */ ;; attention sm90: soft caps*
layers/attention/sm90_backward.cu ;; s/p.head(int(step) \/ p.tiles)/p.head(0)/ ;; attention sm90: soft caps*
layers/attention/sm90_backward.cu ;; s/named_barrier(DS, CONSUMERS \* WARPGROUP);// ;; attention sm90*
layers/attention/sm90_backward.cu ;; s/^    fence_async();$// ;; attention sm90*
layers/linear.cpp ;; s/.add = true,/.add = false,/ ;; linear: against*
layers/linear.cpp ;; s/column_sums(dpre_sum, dpre, N, C)/column_sums(dpre_sum, dpre, N - 1, C)/ ;; linear: with GELU*
layers/matmul.cpp ;; s/first == 0 \&\& s0 == 0/true/ ;; linear: the same bits*
layers/matmul.cpp ;; s/g.add || k.k > 0/g.add/ ;; linear: against*
layers/matmul.cpp ;; s/turn ^= 1/turn = 0/ ;; linear: the same bits*
layers/matmul.cpp ;; s/k.k + k.n == g.K/k.k == 0/ ;; linear: with GELU*
layers/simd/pack.h ;; s/if (high) total\[j/if (false) total[j/ ;; linear: against*
layers/simd/gelu.h ;; s/3 \* K2 \* CUBIC/2 * K2 * CUBIC/ ;; linear: with GELU*
model/shards.cpp ;; s/if (comm) comm->join(work_mark\[work_buffer(k)\]);// ;; gpt ranks: 2 and 4*
gpt.cpp ;; s/if (!cache) shards.await_parameters(1 + l);// ;; gpt ranks: 2 and 4*
gpt.cpp ;; s/shards.gradients_done(1 + l, last);/shards.gradients_done(1 + l, true);/ ;; gpt ranks: gradients are sent*
model/shards.cpp ;; s/    op.copy(op.at(gradients(k), rank .*// ;; gpt ranks: 2 and 4*
gpt.cpp ;; s/step_targets)) \* plan.ranks;/step_targets));/ ;; gpt ranks: 2 and 4*
model/shards.cpp ;; s/op.copy(.totals.reports\[rank\].loss.*// ;; gpt ranks: a NaN*
model/shards.cpp ;; s/b.offset + rank \* size, size,/b.offset, size,/ ;; gpt ranks: 2 and 4*
model/shards.cpp ;; s/op.zero(gradients(k), .*// ;; gpt ranks: 2 and 4*
model/shards.cpp ;; s/op.copy(whole + rank \* s.size,/op.copy(whole,/ ;; gpt ranks: the same of tensors*
model/shards.cpp ;; s/return from_floats(to.at(at),/return from_floats(to.at(0),/ ;; start: weights*
comm/mpi.cpp ;; s/add(sum, own + i, block, r == 0)/add(sum, own, block, r == 0)/ ;; mpi: collectives between 1*
comm/mpi.cpp ;; s/std::min(row, n - r \* row)/row/ ;; mpi: collectives between 1*
comm/mpi.cpp ;; s/wait_until(enqueued + 1 - QUEUE);// ;; mpi: collectives between 1*
layers/onednn.cpp ;; s/own() { return cpu_ops_isa<P>(isa); }/own() { return *onednn_ops<P>(isa); }/ ;; linear: against the reference? small
layers/onednn.cpp ;; s/ \&\& call.rows > GEMV_ROWS;/;/ ;; cpu: scratch held*
layers/onednn.cpp ;; s/return halves ? cpu_scratch_size/return false ? cpu_scratch_size/ ;; cpu: scratch held*
layers/attention/cached.cpp ;; s/return call.S == 1 ? decode_scratch(call.B, call.p, call.heads)/return call.S == 1 ? 0/ ;; cpu: scratch held*
layers/scratch.h ;; s/return rope_scratch(c.rows, c.heads, c.turn)/return 0/ ;; model on cuda: scratch held*
layers/scratch.h ;; s/return norm_scratch(c.rows, c.in)/return 0/ ;; model on cuda: scratch held*
layers/operations.inc ;; s/attention(8, 2, B, S, h)/attention(10, 2, B, S, h)/ ;; count: FLOPs of a step*
model/work.h ;; s/(S - growing) \* window/S * window/ ;; count: pairs of*
model/work.h ;; s/2.0 \* products \* N/2.0 * N/ ;; count: FLOPs of a step*
model/count.cpp ;; s/scratch = std::max(scratch, /scratch = std::min(scratch, / ;; count: memory foretold*
model/count.cpp ;; s/(batch || operation == Operation::upload)/(batch)/ ;; count: a generated token*
model/forecast.cpp ;; s/wire = std::max(wire, device) + seconds;/wire = device + seconds;/ ;; scale: what a step*
layers/cpu.cpp ;; s/c.tiles || pretend :/c.tiles :/ ;; cpu: whose products*
layers/cpu.cpp ;; s/has_amx \&\& !refuse/has_amx/ ;; cpu: whose products*
layers/table.cpp ;; s/l.attention_rounds = .*// ;; selftest: attention in bf16*
layers/attention/forward.cpp ;; s/total\[r\] += seen;/total[r] += rounded_bf16(seen);/ ;; selftest: attention in bf16*
layers/attention/backward.cpp ;; s/to_pairs(g\[0\]\[i\], g\[1\]\[i\])/to_pairs(e[0][i], g[1][i])/ ;; selftest: attention in bf16*
tools/bench.cpp ;; s/any = any || is;/any = true;/ ;; bench: a filter*
test/count.h ;; s/    Limit::start(limit);/;/ ;; limit:*
data/shard.cpp ;; s/s.tokenizer == tokenizer.fingerprint()/s.vocab == tokenizer.vocab_size()/ ;; shard: names*
data/tokenize.cpp ;; s/if (documents) TRY(end_document/if (documents < 0) TRY(end_document/ ;; tokenize: the tail*
files/text_file.cpp ;; s/given = 3;/given = 0;/ ;; text file: gzip*
data/merge.cpp ;; s/if (rank\[i\] < rank\[best\]) best/if (rank[i] <= rank[best]) best/ ;; tokenizers: each*
data/merge.cpp ;; s/if (!beside\[size_t(a << 8 | b)\]) return at;/return at;/ ;; tokenizers: each*
data/merge.cpp ;; s/joined.set(a);/;/ ;; tokenizers: a token*
data/normalize.cpp ;; s/last = base == std::string_view::npos ? i : base;/last = i;/ ;; tokenizers: normal*
data/normalize.cpp ;; s/!out.empty() \&\& !follows) out.insert(0, step.to)/!out.empty()) out.insert(0, step.to)/ ;; tokenizers: a text*
data/added.cpp ;; s/t->rstrip \&\& // ;; tokenizers: each*
data/added.cpp ;; s/while (t->lstrip/while (t->rstrip/ ;; tokenizers: each*
data/added.cpp ;; s/if (text.substr(0, at).ends_with(name)) return false;.*// ;; tokenizers: a text*
data/pretokenize.cpp ;; s/r.match \&\& !previous;/r.match;/ ;; tokenizers: what*
data/pretokenize.cpp ;; s/code.get(), spelled, step.invert/code.get(), piece, step.invert/ ;; tokenizers: each*
data/pretokenize.cpp ;; s/ \&\& c != .\/.// ;; tokenizers: what*
data/sentencepiece.cpp ;; s/return sa > sb;/return sa < sb;/ ;; tokenizers: tokenizer.model*
data/tokenizer_gguf.cpp ;; s/p.nfc == nfc \&\& p.ignore_merges == v.ignore_merges/true/ ;; tokenizers: what a GGUF*
data/tokenizer_gguf.cpp ;; s/if (ids != theirs.encode(text))/if (false)/ ;; tokenizers: what a GGUF*
data/tokenizer_gguf.cpp ;; s/g.scores\[size_t(v.merges\[i\].id)\] = -float(i);/g.scores[size_t(v.merges[i].id)] = float(i);/ ;; tokenizers: GGUF*
data/tokenizer_gguf.cpp ;; s/bytes(both) != bytes(l) + bytes(r)/false/ ;; tokenizers: hostile GGUF*
data/tokenizer_gguf.cpp ;; s/bytes || a.special ? token/true ? token/ ;; tokenizers: what a GGUF*
data/tokenizer_config.cpp ;; s/v.ends.empty() ? end_of_text() : -1/end_of_text()/ ;; generation_config.json and*
data/loader.cpp ;; s/__int128(place.index) \* before.back() \/ epoch/place.index/ ;; loader: some*
infer/generate.cpp ;; s/int(std::min<int64_t>(B, windows - done));/B;/ ;; evaluate: *
infer/generate.cpp ;; s/documents >= 16)/documents >= 0)/ ;; generate: a text without*
infer/generate.cpp ;; s/return stopped || (append(decoder.finish(), stop, out) \&\& give/return stopped || (give/ ;; generate: a character that*
checkpoint/checkpoint.cpp ;; s/if (\*dir != best) unwanted/unwanted/ ;; checkpoint: prune keeps the best*
checkpoint/gguf_tensors.cpp ;; s/const int64_t file = h + 2 \* i + s, ours = h + s \* (HS \/ 2) + i;/const int64_t file = h + 2 * i + s, ours = file;/ ;; gguf model: tensors*
checkpoint/gguf_tensors.cpp ;; s/i == 1 ? c.NKV : 0/i == 1 ? 0 : 0/ ;; gguf model: tensors*
checkpoint/gguf_tensors.cpp ;; s/const float add = .*/const float add = 0;/ ;; gguf model: tensors*
checkpoint/gguf_tensors.cpp ;; s/v -= p.add;/v -= 0;/ ;; gguf model: there and back*
checkpoint/gguf_tensors.cpp ;; s/layers \/ 8) % 3 == 2/layers \/ 8) % 3 == 1/ ;; gguf model: which tensor*
checkpoint/gguf_tensors.cpp ;; s/std::isfinite(sum) \&\& most <= 65504/most <= 65504/ ;; gguf model: what llama*
checkpoint/gguf_config.cpp ;; s/config_set(\*c, row, inverse ? 1 \/ value : value)/config_set(*c, row, value)/ ;; gguf model: tensors*
checkpoint/gguf_config.cpp ;; s/bool(f->kinds.window) == window/true/ ;; gguf model: tensors*
checkpoint/gguf_config.cpp ;; s/(1 + 3 \* part) \* 2 \* M_PI/(1 + 4 * part) * 2 * M_PI/ ;; gguf model: *
layers/quantised.cpp ;; s/s % 4\] >> s \/ 4 \* 2/s % 4] >> s \/ 4/ ;; quantised: each format*
layers/quantised.cpp ;; s/p\[4 + j\] >> 6 << 4/p[4 + j] >> 6 << 3/ ;; quantised: each format*
layers/quantised.cpp ;; s/- 4 + 4 \* third/+ 4 * third/ ;; quantised: each format*
layers/quantised.cpp ;; s/q\[16 + j\] = quads\[j\] >> 4 | int(high >> (16 + j)/q[16 + j] = quads[j] >> 4 | int(high >> (15 + j)/ ;; quantised: each format*
layers/quantise.cpp ;; s/if (error < best_error) best_error = error, best = line;/best = line;/ ;; quantised: the error*
layers/quantise.cpp ;; s/step <= 10/step <= 0/ ;; quantised: the error*
layers/quantise.cpp ;; s/if (below) low = std::min(low, 0.0f);// ;; quantised: odd*
layers/quantise.cpp ;; s/(offset >> 4 << 6)/(offset >> 4 << 5)/ ;; quantised: the error*
base/half.h ;; s/0xFFF + (bits >> 13 \& 1)/0x1000/ ;; half: every*
files/gguf.cpp ;; s/t.bytes > room - t.at/t.bytes > room/ ;; gguf: crafted*
files/gguf.cpp ;; s/if (t.at < end) return/if (false) return/ ;; gguf: crafted*
files/crc.cpp ;; s/square = ONE >> 8;/square = ONE >> 7;/ ;; crc32c: the instruction*
files/crc.h ;; s/#pragma once/#pragma once\n#include "data\/bpe.h"/ ;; house: includes*
checkpoint/tensors.cpp ;; s/floats.end(), 0.0f)/floats.end(), 1.0f)/ ;; start: weights loaded*
checkpoint/tensors.cpp ;; s/(c0 + c) \* p.rows + r0/(c0 + c) * p.rows/ ;; start: weights loaded*
checkpoint/tensors.cpp ;; s/t.offset + p.first \* t.cols, rows/t.offset, rows/ ;; config: a tensor may*
checkpoint/tensors.cpp ;; s/at = t.offset + p.first \* t.cols, rows/at = t.offset, rows/ ;; config: a tensor may*
checkpoint/tensors.cpp ;; s/(p.first + r0) \* t.cols/r0 * t.cols/ ;; config: a tensor may*
checkpoint/config_json.cpp ;; s/if (!beyond.empty()) j\["archi.*// ;; config: what GPT-2 has not*
train/start.cpp ;; s/config_here ? ModelSource(o.model) : TRY/TRY/ ;; shape: a config.json alone*
train/start.cpp ;; s/asked.window = 0;// ;; shape: a config.json alone*
train/start.cpp ;; s/ || began_with_it())/)/ ;; shape: what cannot be*
base/command.cpp ;; s/f.max > INT_MAX && // ;; cli: messages say*
model/tensors.cpp ;; s/t.size() ? place(t) : nullptr/place(t)/ ;; config: a tensor may*
model/config.cpp ;; s/config_value(before, rows\[i\]) != config_value(now, rows\[i\]))/false)/ ;; config: fields follow*
model/config.cpp ;; s/.window = near ? window : 0/.window = 0/ ;; gpt: a window*
model/memory.cpp ;; s/std::max(c.C, c.attention_width())/c.C/ ;; gpt: gradients of all*
gpt.cpp ;; s/dy, t.atty, p.projw, N, h.width(), C)/dy, t.atty, p.projw, N, C, C)/ ;; gpt: gradients of all*
model/cache.cpp ;; s/int64_t(pages) \* c.NKV \* Pages::SIZE, row/int64_t(pages) * Pages::SIZE, row/ ;; kinds: generation with*
infer/template_lexer.cpp ;; s/else if (block) take("\\n");// ;; template: *
infer/template_lexer.cpp ;; s/sign != .+. \&\& block/false/ ;; template: *
infer/template_lexer.cpp ;; s/open.empty() \&\& take_end/take_end/ ;; template: *
infer/template_parser.cpp ;; s/if (!sees_name("not")) return compare();/if (!sees_name("not")) return binary(0);/ ;; template: *
infer/template.cpp ;; s/if (exec(\*n.kids\[3\]) == Flow::leave) break;/exec(*n.kids[3]);/ ;; template: *
infer/template.cpp ;; s/Scope scope(\*this, f.frame);/Scope scope(*this);/ ;; template: *
infer/template.cpp ;; s/std::max(b.integer, -size - 1) + size/b.integer + 1/ ;; template: *
infer/template_value.cpp ;; s/ - (a % b != 0 \&\& (a % b < 0) != (b < 0))// ;; template: *
infer/template_value.cpp ;; s/safe \&\& !v.safe ? escaped_html(v.text()) : v.text()/v.text()/ ;; template: *
infer/template_value.cpp ;; s/meter.charge(v.is(Kind::string) ? total \/ 16 + times \/ 16 : total);// ;; template: none runs*
infer/template_text.cpp ;; s/size < 1e-4 || size >= 1e16/size >= 1e17/ ;; template: *
infer/template_filters.cpp ;; s/truth(c.self) ? iterated(c.self, c.meter()) : Value(Kind::list, {})/iterated(c.self, c.meter())/ ;; template: *
infer/template_methods.cpp ;; s/(AT_END ? c.self/(!AT_END ? c.self/ ;; template: *
'
all=build/mutants cores=$(nproc)
workers=$((cores < 4 ? cores : 4))
jobs=$(((cores + workers - 1) / workers))
[ $jobs -gt 1 ] || export OMP_NUM_THREADS=2    # two threads in each worker: wrong sharing shows
cpu() { grep -qw "$1" /proc/cpuinfo; }
best=base
cpu avx2 && best=avx2
cpu avx512bw && best=avx512
cpu avx512_bf16 && best=avx512bf16

compile() {    # tree, arguments of make
    make -C "$1" -j$jobs NVCC= "${@:2}" >"$1/build/log" 2>&1
}
passes() {    # tree, binary, test cases; the first failure ends it
    (cd "$1" && timeout -k 10 900 "$2" -tc="$3" -aa=1 >build/log 2>&1)
}
binary_of() {    # file
    case $1 in
        *.cu | *.cuh | layers/scratch.h) echo build/emu/test_cuda ;;    # scratch.h: sizes for the CUDA kernels
        *) echo build/test_all ;;
    esac
}
can_run() {    # a row's file: is it compiled, and can its tests run?
    case $1 in
        layers/onednn.cpp) grep -q dnnl build/optional ;;
        comm/mpi.cpp) command -v mpirun >/dev/null ;;
    esac
}
goals_of() {    # binary, file
    [ "$1" != build/test_all ] || echo flatgpt
    [ "$2" != comm/mpi.cpp ] || echo build/test_ranks
    echo "$1"
}

try() {    # tree, row: prints the verdict
    local tree=$1 file=${2%% ;; *} cases=${2##* ;; } change=${2#* ;; } binary goals later=() object
    change=${change% ;; *}
    binary=$(binary_of "$file")
    mapfile -t goals < <(goals_of "$binary" "$file")
    while IFS= read -r object; do later+=(-o "$object"); done < <(cd "$tree" && find build/layers -name '*.base.o' \
        -o -name '*.avx2.o' -o -name '*.avx512.o' -o -name '*.avx512bf16.o' | grep -v "\.$best\.o$")
    cp -p "$tree/$file" "$tree/build/original"
    touch "$tree/build/began"
    sed -i "$change" "$tree/$file"
    if cmp -s "$tree/$file" "$tree/build/original"; then echo "FAILED   $file: the line to break is gone: $change"
    elif ! compile "$tree" "${later[@]}" "${goals[@]}"; then echo "FAILED   $file: the mutant does not compile: $change"
    elif passes "$tree" "$binary" "$cases" && compile "$tree" "${goals[@]}" && passes "$tree" "$binary" "$cases"; then
        echo "SURVIVED $file: $change"
    elif grep -q FAILED "$tree/build/log"; then echo "caught   $file: $change"
    else echo "FAILED   $file: the tests did not run: $(tail -1 "$tree/build/log")"
    fi
    cp -p "$tree/build/original" "$tree/$file"
    (cd "$tree/build" && rm -f flatgpt test_all test_ranks emu/test_cuda &&
        find . -type f \( -name '*.o' -o -name '*.d' \) -newer began -print0 |
            (cd ../../before && xargs -0r cp -p --parents -t "$OLDPWD"))
}

rm -rf $all && mkdir -p $all/0/build $all/claimed || exit 1
git ls-files -z | xargs -0 cp -a --parents -t $all/0
find build -mindepth 1 -maxdepth 1 ! -name mutants ! -name asan ! -name fuzz ! -name demo -exec cp -a {} $all/0/build/ \;
compile $all/0 flatgpt build/test_all build/test_ranks build/emu/test_cuda || { tail $all/0/build/log; exit 1; }
list=() clean_all= clean_cuda=
while IFS= read -r row; do
    [ -n "$row" ] && can_run "${row%% ;; *}" && [[ $row =~ ${1:-} ]] || continue
    list+=("$row")
    case $(binary_of "${row%% ;; *}") in
        build/test_all) clean_all+="${clean_all:+,}${row##* ;; }" ;;
        *) clean_cuda+="${clean_cuda:+,}${row##* ;; }" ;;
    esac
done <<<"$rows"
[ ${#list[@]} -gt 0 ] || { echo "mutants.sh: no row matches $1" >&2; exit 2; }
unbroken() {    # binary, test cases: a test that fails without a mutant proves nothing
    [ -z "$2" ] || passes $all/0 "$1" "$2" ||
        echo "FAILED   before anything is broken: $(grep -a ^FAILED $all/0/build/log || tail -1 $all/0/build/log)"
}
cp -a $all/0/build $all/before
for ((w = 1; w < workers; w++)); do cp -a $all/0 $all/$w; done
{
    for ((w = 0; w < workers; w++)); do
        {
            [ $w -gt 0 ] || { unbroken build/test_all "$clean_all"; unbroken build/emu/test_cuda "$clean_cuda"; }
            for ((i = 0; i < ${#list[@]}; i++)); do
                mkdir $all/claimed/$i 2>/dev/null && try $all/$w "${list[i]}"
            done
        } &
    done
    wait
} | tee $all/verdicts
passed=$(grep -c ^caught $all/verdicts)
failed=$((${#list[@]} - passed + $(grep -c "^FAILED   before" $all/verdicts)))
echo
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
