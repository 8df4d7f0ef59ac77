// importance.cpp - see importance.h.
#include "importance.h"

void add_importance(const Model& model, std::vector<double>& sums) {
    const Config& c = model.c;
    const int64_t width = c.attention_width();
    std::vector<float> w(size_t(c.C * width)), dw(w);
    std::vector<double> dots(size_t(c.NH));
    int l = 0;
    for (const Tensor& t : model.tensors) {
        if (!t.name.ends_with(".projw")) continue;
        model.read(StateKind::weights, t.offset, t.size(), w.data());
        model.read(StateKind::gradients, t.offset, t.size(), dw.data());
        std::fill(dots.begin(), dots.end(), 0.0);
        for (int64_t i = 0; i < t.size(); i++) dots[size_t(i % width / c.HS)] += double(w[size_t(i)]) * dw[size_t(i)];
        for (int h = 0; h < c.NH; h++) sums[size_t(l * c.NH + h)] += std::fabs(dots[size_t(h)]);
        l++;
    }
    CHECK(l == c.L, "%d projections of attention in %d layers", l, c.L);
}

Result<std::vector<double>> head_importance(Model& model, Loader& loader, int S, const Objective& objective,
                                            const std::function<void(int64_t done, int64_t windows)>& progress) {
    const int64_t windows = loader.samples();
    std::vector<int> tokens(static_cast<size_t>(S)), targets(tokens);
    std::vector<double> sums(size_t(model.c.L) * size_t(model.c.NH));
    loader.seek({0, 0});
    for (int64_t done = 0; done < windows; done++) {
        TRY(loader.next(tokens.data(), targets.data()));
        Spans spans;
        objective.apply(done, tokens.data(), targets.data(), S, S, &spans);
        const int64_t counted = std::count_if(targets.begin(), targets.end(), [](int t) { return t >= 0; });
        model.train.begin();
        model.batch.upload(tokens.data(), targets.data(), 1, S, objective.is_plain_causal() ? nullptr : &spans);
        model.forward();
        model.loss(true, float(1 / double(std::max<int64_t>(1, counted))));
        model.backward();
        add_importance(model, sums);
        for (size_t i = 0; i < sums.size(); i++)
            if (!std::isfinite(sums[i]))
                return fail(Exit::run,
                            "the importance of layer %zu, head %zu in window %lld of %lld is not a number: "
                            "%s",
                            i / size_t(model.c.NH), i % size_t(model.c.NH), (long long)done + 1, (long long)windows,
                            NOT_FINITE);
        if (progress) progress(done + 1, windows);
    }
    for (double& sum : sums) sum /= double(windows);
    return sums;
}
