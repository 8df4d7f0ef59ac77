// experts.h - checks of the experts' operations.
#pragma once
#include "linear.h"

// random; random with many ties; expert E / 2 is every row's first choice.
enum class LogitKind { random, ties, one };
Numbers router_logits(int E, int N, LogitKind spread);

// The reference's routes and factors for these logits.
struct ReferenceRoutes {
    std::vector<int> expert, permuted_row, row, counts, offsets;
    Numbers factors;
    ReferenceRoutes(const Numbers& logits, Router r, int B, int S, double* totals = nullptr);
    Routes in() { return {expert.data(), permuted_row.data(), row.data(), counts.data(), offsets.data()}; }
};
// Routes in a table's memory, filled or only allocated.
struct TableRoutes {
    Array<int> expert, permuted_row, row, counts, offsets;
    TableRoutes(const Memory& m, const ReferenceRoutes& from);
    TableRoutes(const Memory& m, Router r, int B, int S);
    Routes in() { return {expert, permuted_row, row, counts, offsets}; }
};

template <class T, class P>
Check check_router_forward(const Ops<T, P>& op, Router r, int B, int S, LogitKind spread, bool with_totals = true);
template <class T, class P>
Check check_router_backward(const Ops<T, P>& op, Router r, int B, int S, LogitKind spread, float balance, float z);
template <class T, class P> Check check_experts_gather(const Ops<T, P>& op, Router r, int N, int C);
template <class T, class P>
Check check_experts_combine(const Ops<T, P>& op, Router r, int N, int C, Residual residual, bool weighted);
// in_place: dx is x
template <class T, class P>
Check check_experts_combine_backward(const Ops<T, P>& op, Router r, int N, int C, bool in_place);
template <class T, class P> Check check_experts_forward(const Ops<T, P>& op, Router r, int N, int C, int OC,
                                                        LogitKind spread, Dtype dtype = DTYPE<P>);
template <class T, class P> Check check_experts_backward(const Ops<T, P>& op, Router r, int N, int C, int OC,
                                                         LogitKind spread, Dtype dtype = DTYPE<P>, bool add = true);
template <class T, class P> Check check_row_gate_forward(const Ops<T, P>& op, int N, int F);
// in_place: dx is dy
template <class T, class P> Check check_row_gate_backward(const Ops<T, P>& op, int N, int F, bool in_place);
