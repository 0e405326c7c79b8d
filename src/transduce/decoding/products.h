// Products of matrices in int8 and fp32 with AVX-512 and VNNI. Rows are independent of one another to the last bit: each sum
// runs over the inputs in their order, whatever the number of rows. Included by kernels.cpp alone.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace {

constexpr long LANES = 16;             // floats in a register
constexpr long PANEL = 4 * LANES;      // outputs computed together
constexpr long ROWS = 6;               // rows computed together: 24 registers of sums, 4 of weights
constexpr int ZERO = 128;              // added to int8 activations, which are stored as unsigned bytes

__mmask16 first(long count) { return count >= LANES ? 0xFFFF : (__mmask16)((1u << std::max(count, 0L)) - 1); }

// Write a row as bytes around ZERO and return the scale that converts them back. A NaN in the row makes the scale NaN.
float quantise(const float* x, long n, uint8_t* to) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 nan = 0;
    for (long i = 0; i < n; i += LANES) {
        __m512 v = _mm512_maskz_loadu_ps(first(n - i), x + i);
        nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
    }
    float largest = _mm512_reduce_max_ps(most);
    if (nan) return std::numeric_limits<float>::quiet_NaN();
    __m512 inverse = _mm512_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
    for (long i = 0; i < n; i += LANES) {
        __mmask16 m = first(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), inverse);
        __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(ZERO));
        _mm512_mask_cvtepi32_storeu_epi8(to + i, m, q);
    }
    return largest / 127.0f;
}

struct Linear {  // weights of n outputs and k inputs in panels; without `scales` they are fp32, else int8
    const void* weight;
    const float *bias, *scales;
    const int32_t* zeros;  // the share of ZERO in each sum of bytes
    long n, k;
};

struct Output {  // y = W x + bias, then relu if `relu`, then plus `residual` unless that is null; rows `stride` floats apart
    const float* residual;
    float* y;
    long stride;
    bool relu;
};

struct Input {  // rows of k floats, or of k4 * 4 bytes with a scale each
    const float* x;
    const uint8_t* bytes;
    const float* scales;
};

// The weights that a pass of a few rows over a panel moves to the second cache for a later panel: those `bytes` ahead, and
// of every LINES lines of the cache numbers `begin` to `end`. The passes share them evenly, so that each one computes while
// memory is read. With weights that are in no cache, 8 or 16 rows take 10 to 20 % less time.
struct Ahead {
    long bytes;
    int begin, end;
};

constexpr int LINES = 4;  // of 64 bytes, that PANEL outputs read at once: 4 inputs in int8, one in fp32

// Return the share of pass `number` of `passes`, for the panel `panels` after its own. A single pass takes none: it reads
// the weights in their order, which the processor expects.
Ahead share(long panels, const Linear& w, long number, long passes) {
    long bytes = panels * PANEL * (w.scales ? (w.k + 3) / 4 * 4 : w.k * (long)sizeof(float));
    if (passes == 1) return {0, 0, 0};
    return {bytes, (int)(LINES * number / passes), (int)(LINES * (number + 1) / passes)};
}

void read_ahead(const void* line, const Ahead& ahead) {
    for (int j = ahead.begin; j < ahead.end; j++) _mm_prefetch((const char*)line + ahead.bytes + j * 64, _MM_HINT_T1);
}

// Multiply R rows by the panel of weights that begins at output `column`, (k4, PANEL, 4) bytes or (k, PANEL) floats.
template <int R, bool INT8>
void block(const Input& in, const Linear& w, long row, long column, long to, const Output& out, const Ahead& ahead) {
    __m512 y[R][4];
    if constexpr (INT8) {
        long k4 = (w.k + 3) / 4;
        const uint8_t* rows = in.bytes + row * k4 * 4;
        const int8_t* panel = (const int8_t*)w.weight + column * k4 * 4;
        __m512i sums[R][4];
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) sums[i][j] = _mm512_setzero_si512();
        for (long k = 0; k < k4; k++) {
            __m512i weights[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) weights[j] = _mm512_loadu_si512(panel + (k * 4 + j) * 64);
            read_ahead(panel + k * 256, ahead);
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) {
                int32_t four;
                std::memcpy(&four, rows + (i * k4 + k) * 4, 4);
                __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) asm("vpdpbusd %2, %1, %0" : "+v"(sums[i][j]) : "v"(x), "v"(weights[j]));
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            long c = column + j * LANES;
            __mmask16 m = first(w.n - c);
            __m512i zero = _mm512_maskz_loadu_epi32(m, w.zeros + c);
            __m512 scale = _mm512_maskz_loadu_ps(m, w.scales + c), bias = _mm512_maskz_loadu_ps(m, w.bias + c);
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) {
                __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(in.scales[row + i]));
                y[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums[i][j], zero)), both, bias);
            }
        }
    } else {
        const float *rows = in.x + row * w.k, *panel = (const float*)w.weight + column * w.k;
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) y[i][j] = _mm512_setzero_ps();
        for (long k = 0; k < w.k; k++) {
            __m512 weights[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) weights[j] = _mm512_loadu_ps(panel + k * PANEL + j * LANES);
            read_ahead(panel + k * PANEL, ahead);
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) {
                __m512 x = _mm512_set1_ps(rows[i * w.k + k]);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) y[i][j] = _mm512_fmadd_ps(x, weights[j], y[i][j]);
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512 bias = _mm512_maskz_loadu_ps(first(w.n - column - j * LANES), w.bias + column + j * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) y[i][j] = _mm512_add_ps(y[i][j], bias);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __mmask16 m = first(w.n - column - j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            long place = (to + i) * out.stride + j * LANES;
            if (out.relu) y[i][j] = _mm512_max_ps(_mm512_setzero_ps(), y[i][j]);
            if (out.residual) y[i][j] = _mm512_add_ps(y[i][j], _mm512_maskz_loadu_ps(m, out.residual + place));
            _mm512_mask_storeu_ps(out.y + place, m, y[i][j]);
        }
    }
}

// Multiply `count` <= ROWS rows by one panel.
template <bool INT8>
void few_rows(long count, const Input& in, const Linear& w, long row, long column, long to, const Output& out,
              const Ahead& ahead) {
    switch (count) {
        case 6: return block<6, INT8>(in, w, row, column, to, out, ahead);
        case 5: return block<5, INT8>(in, w, row, column, to, out, ahead);
        case 4: return block<4, INT8>(in, w, row, column, to, out, ahead);
        case 3: return block<3, INT8>(in, w, row, column, to, out, ahead);
        case 2: return block<2, INT8>(in, w, row, column, to, out, ahead);
        case 1: return block<1, INT8>(in, w, row, column, to, out, ahead);
    }
}

void rows_by_panel(const Input& in, const Linear& w, long row, long count, long column, long to, const Output& out,
                   const Ahead& ahead) {
    auto multiply = w.scales ? few_rows<true> : few_rows<false>;
    multiply(count, in, w, row, column, to, out, ahead);
}

// Return the m rows of x as the product takes them; those in int8 stay valid until the next call of this thread.
Input input(const float* x, long m, const Linear& w) {
    static thread_local std::vector<uint8_t> bytes;
    static thread_local std::vector<float> scales;
    if (!w.scales) return {x, nullptr, nullptr};
    long width = (w.k + 3) / 4 * 4;
    bytes.resize(m * width);
    scales.resize(m);
    for (long i = 0; i < m; i++) scales[i] = quantise(x + i * w.k, w.k, bytes.data() + i * width);
    return {nullptr, bytes.data(), scales.data()};
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
