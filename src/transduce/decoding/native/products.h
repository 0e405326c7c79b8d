// Products of matrices in int8 and fp32. Rows are independent of one another to the last bit: each sum runs over the inputs
// in their order, whatever the number of rows. Only kernels.cpp includes it.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "level.h"

namespace {

constexpr long PANEL = VECTORS * LANES;  // outputs computed together
Floats zeros() { return all(0.0f); }

// Write a row as integers around ZERO and return the scale that converts them back. A NaN in the row makes the scale NaN.
float quantise(const float* x, long n, Activation* to) {
    Floats most = zeros();
    bool nan = false;
    for (long i = 0; i < n; i += LANES) {
        Floats v = load(x + i, n - i, zeros());
        nan |= has_nan(v);
        most = max(most, magnitude(v));
    }
    float largest = greatest(most);
    if (nan) return std::numeric_limits<float>::quiet_NaN();
    Floats inverse = all(largest > 0 ? 127.0f / largest : 0.0f);
    for (long i = 0; i < n; i += LANES) store_rounded(to + i, load(x + i, n - i, zeros()) * inverse, n - i);
    return largest / 127.0f;
}

struct Linear {  // weights of n outputs and k inputs in panels; without `scales` they are fp32, else int8
    const void* weight;
    const float *bias, *scales;
    const int32_t* zeros;  // the share of ZERO in each sum of integers
    long n, k;
};

struct Output {  // y = W x + bias, then relu if `relu`, then plus `residual` unless that is null; rows `stride` floats apart
    const float* residual;
    float* y;
    long stride;
    bool relu;
};

struct Input {  // rows of k floats, or of groups * INPUTS integers with a scale each
    const float* x;
    const Activation* integers;
    const float* scales;
};

// The weights that a pass of a few rows over a panel moves to the second cache for a later panel: those `bytes` ahead, and
// of the lines of the cache that a step reads numbers `begin` to `end`. The passes share them evenly, so that each one computes while
// memory is read. With weights that are in no cache, 8 or 16 rows take 10 to 20 % less time.
struct Ahead {
    long bytes;
    int begin, end;
};

// Return the number of steps of a product of k inputs in int8.
long groups(long k) { return (k + INPUTS - 1) / INPUTS; }

template <bool INT8>
constexpr long STEP = PANEL * (INT8 ? INPUTS : (long)sizeof(float));  // bytes of a panel that a step of a product reads

// Return the share of pass `number` of `passes`, for the panel `panels` after its own. A single pass takes none: it reads
// the weights in their order, which the processor expects.
Ahead share(long panels, const Linear& w, long number, long passes) {
    if (passes == 1) return {0, 0, 0};
    const long step = w.scales ? STEP<true> : STEP<false>, lines = (step + 63) / 64;
    const long bytes = panels * step * (w.scales ? groups(w.k) : w.k);
    return {bytes, (int)(lines * number / passes), (int)(lines * (number + 1) / passes)};
}

inline void read_ahead(const void* step, const Ahead& ahead) {
    for (int j = ahead.begin; j < ahead.end; j++) __builtin_prefetch((const char*)step + ahead.bytes + j * 64, 0, 2);
}

template <int R>
using Sums = Floats[R][VECTORS];

// Set y to the products of R rows and the panel of int8 weights that begins at output `column`, plus the bias.
template <int R>
inline void multiply_int8(const Input& in, const Linear& w, long row, long column, const Ahead& ahead, Sums<R>& y) {
    const long k = groups(w.k);
    const Activation* rows = in.integers + row * k * INPUTS;
    const int8_t* panel = (const int8_t*)w.weight + column * k * INPUTS;
    Integers sums[R][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) sums[i][j] = Integers{};
    for (long g = 0; g < k; g++) {
        const int8_t* step = panel + g * STEP<true>;
        Weights weights[VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) weights[j] = load_weights(step + j * LANES * INPUTS);
        read_ahead(step, ahead);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            int32_t inputs;
            std::memcpy(&inputs, rows + (i * k + g) * INPUTS, sizeof inputs);
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++) add_products(sums[i][j], inputs, weights[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) {
        const long c = column + j * LANES, n = w.n - c;
        Integers zero = load(w.zeros + c, n);
        Floats scale = load(w.scales + c, n, zeros()), bias = load(w.bias + c, n, zeros());
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            Floats both = scale * all(in.scales[row + i]);
            y[i][j] = multiply_add(__builtin_convertvector(sums[i][j] - zero, Floats), both, bias);
        }
    }
}

// The same in fp32.
template <int R>
inline void multiply_fp32(const Input& in, const Linear& w, long row, long column, const Ahead& ahead, Sums<R>& y) {
    const float *rows = in.x + row * w.k, *panel = (const float*)w.weight + column * w.k;
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) y[i][j] = zeros();
    for (long k = 0; k < w.k; k++) {
        const float* step = panel + k * PANEL;
        Floats weights[VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) weights[j] = load(step + j * LANES);
        read_ahead(step, ahead);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            Floats x = all(rows[i * w.k + k]);
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++) y[i][j] = multiply_add(x, weights[j], y[i][j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) {
        const long c = column + j * LANES;
        Floats bias = load(w.bias + c, w.n - c, zeros());
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) y[i][j] = y[i][j] + bias;
    }
}

// Write the rows of `out` from `to` on that R rows of the input give with the panel that begins at output `column`.
template <int R, bool INT8>
void block(const Input& in, const Linear& w, long row, long column, long to, const Output& out, const Ahead& ahead) {
    Sums<R> y;
    if constexpr (INT8) multiply_int8<R>(in, w, row, column, ahead, y);
    else multiply_fp32<R>(in, w, row, column, ahead, y);
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) {
        const long n = w.n - column - j * LANES;
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            long place = (to + i) * out.stride + j * LANES;
            if (out.relu) y[i][j] = max(zeros(), y[i][j]);
            if (out.residual) y[i][j] = y[i][j] + load(out.residual + place, n, zeros());
            store(out.y + place, y[i][j], n);
        }
    }
}

// Multiply `count` <= R rows by one panel.
template <bool INT8, int R = ROWS>
void few_rows(long count, const Input& in, const Linear& w, long row, long column, long to, const Output& out,
              const Ahead& ahead) {
    if (count == R) return block<R, INT8>(in, w, row, column, to, out, ahead);
    if constexpr (R > 1) few_rows<INT8, R - 1>(count, in, w, row, column, to, out, ahead);
}

void rows_by_panel(const Input& in, const Linear& w, long row, long count, long column, long to, const Output& out,
                   const Ahead& ahead) {
    auto multiply = w.scales ? few_rows<true> : few_rows<false>;
    multiply(count, in, w, row, column, to, out, ahead);
}

// Return the m rows of x as the product takes them; those in int8 stay valid until the next call of this thread.
Input input(const float* x, long m, const Linear& w) {
    static thread_local std::vector<Activation> integers;
    static thread_local std::vector<float> scales;
    if (!w.scales) return {x, nullptr, nullptr};
    long width = groups(w.k) * INPUTS;
    integers.resize(m * width);
    scales.resize(m);
    for (long i = 0; i < m; i++) scales[i] = quantise(x + i * w.k, w.k, integers.data() + i * width);
    return {nullptr, integers.data(), scales.data()};
}

void product(const float* x, long m, const Linear& w, bool relu, const float* residual, float* y) {
    Input in = input(x, m, w);
    const long passes = (m + ROWS - 1) / ROWS;
    for (long column = 0; column < w.n; column += PANEL) {
        Output out{residual ? residual + column : nullptr, y + column, w.n, relu};
        for (long row = 0; row < m; row += ROWS)
            rows_by_panel(in, w, row, std::min(ROWS, m - row), column, row, out, share(1, w, row / ROWS, passes));
    }
}

}  // namespace
