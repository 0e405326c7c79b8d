// The most likely tokens of rows by their logits, which are never all in memory. Only kernels.cpp includes it.

#pragma once

#include "products.h"

namespace {

// Return e^x for x <= 0, to 2 units in the last place; NaN stays NaN.
Floats exponential(Floats x) {
    x = max(all(-87.3f), x);  // the smallest result that is no subnormal number
    Floats n = round(x * all(1.44269504f));
    Floats r = multiply_add(n, all(-0.693359375f), x);
    r = multiply_add(n, all(2.12194440e-4f), r);
    Floats p = all(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = multiply_add(p, r, all(c));
    p = multiply_add(p, r * r, r) + all(1.0f);
    return times_power_of_two(p, n);
}

constexpr long GROUP = 512 / PANEL * PANEL;  // logits of a row that are computed, then ranked, while they are in the first cache
const Floats LOWEST = all(-std::numeric_limits<float>::infinity());
const Floats NONE = all(std::numeric_limits<float>::quiet_NaN());  // at least no number

// The most likely tokens of one row so far, best first, of equals the lowest id first, and the sum of e^(logit - highest).
struct Best {
    long count;
    float* values;
    int64_t* ids;
    float highest, mass;

    void clear() {
        highest = -std::numeric_limits<float>::infinity(), mass = 0;
        std::fill(values, values + count, highest);
        std::fill(ids, ids + count, 0);
    }

    // Take in the logits of n tokens: those called `named`, ascending, or (null) those from `begin` on. `barred` ones are
    // never among the best.
    void add(const float* logits, long begin, long n, const int64_t* named, const int64_t* barred, long n_barred) {
        const float least_of_all = -std::numeric_limits<float>::infinity();
        Floats most = LOWEST, mass_of_group = zeros();
        for (long j = 0; j < n; j += LANES) most = max(load(logits + j, n - j, LOWEST), most);  // keeps `most` where a logit is NaN
        float before = highest, bar = values[count - 1];
        highest = std::max(highest, greatest(most));
        if (bar == least_of_all && count + n_barred <= LANES) {  // each lane has a logit that is at least the lowest of the greatest
            float lanes[LANES];
            store(lanes, most);
            std::nth_element(lanes, lanes + count + n_barred - 1, lanes + LANES, std::greater<float>());
            bar = std::nextafter(lanes[count + n_barred - 1], least_of_all);
        }
        Floats top = all(highest), above = all(bar);
        for (long j = 0; j < n; j += LANES) {
            Floats v = load(logits + j, n - j, NONE);
            mass_of_group = mass_of_group + first(exponential(v - top), n - j);
            for (unsigned high = at_least(v, above); high; high &= high - 1) {
                float value = logits[j + __builtin_ctz(high)];
                long column = j + __builtin_ctz(high);
                int64_t id = named ? named[column] : begin + column;
                auto follows = [&](long place) { return value > values[place] || (value == values[place] && id < ids[place]); };
                if (value < bar || !follows(count - 1) || std::find(barred, barred + n_barred, id) != barred + n_barred) continue;
                long place = count - 1;
                for (; place > 0 && follows(place - 1); place--) values[place] = values[place - 1], ids[place] = ids[place - 1];
                values[place] = value, ids[place] = id;
                bar = std::max(bar, values[count - 1]);
                above = all(bar);
            }
        }
        if (before < highest) mass *= std::exp(before - highest);
        mass += sum(mass_of_group);
    }

    // Turn the logits into log-probabilities.
    void finish() {
        float log_mass = highest + std::log(mass);
        for (long place = 0; place < count; place++) values[place] -= log_mass;
    }
};

struct Tokens {  // rows of the output matrix, and the tokens that they belong to, ascending; null: 0 to n
    Linear output;
    const int64_t* ids;
};

// Find the `count` most likely tokens of each row among `common` ones and (unless null) those of own[i] for row i.
void best_among(const Tokens& common, const Tokens* const* own, const float* x, long n, long count, const int64_t* barred,
                long n_barred, float* values, int64_t* ids) {
    static thread_local std::vector<Best> states;
    static thread_local std::vector<float> logits(ROWS * GROUP);
    states.resize(n);
    for (long i = 0; i < n; i++) states[i] = {count, values + i * count, ids + i * count}, states[i].clear();
    Input in = input(x, n, common.output);
    auto add = [&](const Tokens& tokens, long first, long last) {
        for (long begin = 0; begin < tokens.output.n; begin += GROUP) {
            long width = std::min(GROUP, tokens.output.n - begin);
            const int64_t* names = tokens.ids ? tokens.ids + begin : nullptr;
            const long passes = (last - first + ROWS - 1) / ROWS;
            for (long row = first; row < last; row += ROWS) {
                long some = std::min(ROWS, last - row);
                Ahead ahead = share(GROUP / PANEL, tokens.output, (row - first) / ROWS, passes);
                for (long j = 0; j < width; j += PANEL)
                    rows_by_panel(in, tokens.output, row, some, begin + j, 0, {nullptr, &logits[j], GROUP, false}, ahead);
                for (long i = 0; i < some; i++) states[row + i].add(&logits[i * GROUP], begin, width, names, barred, n_barred);
            }
        }
    };
    add(common, 0, n);
    for (long first = 0, last = 0; own && first < n; first = last) {
        while (last < n && own[last] == own[first]) last++;
        add(*own[first], first, last);
    }
    for (Best& state : states) state.finish();
}

}  // namespace
