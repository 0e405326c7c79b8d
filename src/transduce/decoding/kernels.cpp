// The kernels of translation on a CPU with AVX-512 and VNNI: products in int8, attention over an index of rows, and the
// best tokens of each row. Rows are independent of one another to the last bit. kernels.py describes the functions.

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr long LANES = 16;             // floats in a register
constexpr long PANEL = 4 * LANES;      // outputs computed together
constexpr long ROWS = 6;               // rows computed together: 24 registers of sums, 4 of weights
constexpr int ZERO = 128;              // added to int8 activations, which are stored as unsigned bytes

__mmask16 first(long count) { return count >= LANES ? 0xFFFF : (__mmask16)((1u << std::max(count, 0L)) - 1); }

// Return the product of two rows of n floats as LANES partial sums.
__m512 product(const float* a, const float* b, long n) {
    __m512 sum = _mm512_setzero_ps();
    for (long i = 0; i < n; i += LANES) {
        __mmask16 m = first(n - i);
        sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, a + i), _mm512_maskz_loadu_ps(m, b + i), sum);
    }
    return sum;
}

// Return the sum of each of LANES rows of LANES floats.
__m512 row_sums(const float* rows) {
    __m512 r[LANES];
    for (int i = 0; i < LANES; i++) r[i] = _mm512_loadu_ps(rows + i * LANES);
    // Each pass adds pairs of rows in separate lanes: i and i + 1, then i and i + 2, until each lane is the sum of a row.
    for (int i = 0; i < 16; i += 2) r[i / 2] = _mm512_add_ps(_mm512_unpacklo_ps(r[i], r[i + 1]), _mm512_unpackhi_ps(r[i], r[i + 1]));
    for (int i = 0; i < 8; i += 2) {
        __m512d a = _mm512_castps_pd(r[i]), b = _mm512_castps_pd(r[i + 1]);
        r[i / 2] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 4; i += 2)
        r[i / 2] = _mm512_add_ps(_mm512_shuffle_f32x4(r[i], r[i + 1], 0x88), _mm512_shuffle_f32x4(r[i], r[i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(r[0], r[1], 0x88), _mm512_shuffle_f32x4(r[0], r[1], 0xdd));
}

// Return e^x for x <= 0, to 2 units in the last place; NaN stays NaN.
__m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.3f), x);  // returns the second operand if one of them is NaN
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

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

struct Output {  // y = sums * scales + bias, then relu if `relu`, then plus `residual` unless that is null
    const float *scales, *bias, *residual;
    float* y;
    long n;
    bool relu;
};

// Multiply R rows of bytes (R, k4 * 4) by a panel of weights (k4, PANEL, 4).
template <int R>
void block(const uint8_t* rows, const float* row_scales, const int8_t* panel, const int32_t* zeros, long k4, long row,
           long column, const Output& out) {
    __m512i sums[R][4];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sums[i][j] = _mm512_setzero_si512();
    for (long k = 0; k < k4; k++) {
        __m512i w[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) w[j] = _mm512_loadu_si512(panel + (k * 4 + j) * 64);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            int32_t four;
            std::memcpy(&four, rows + (i * k4 + k) * 4, 4);
            __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) asm("vpdpbusd %2, %1, %0" : "+v"(sums[i][j]) : "v"(x), "v"(w[j]));
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        long c = column + j * LANES;
        __mmask16 m = first(out.n - c);
        __m512i zero = _mm512_maskz_loadu_epi32(m, zeros + c);
        __m512 scale = _mm512_maskz_loadu_ps(m, out.scales + c), bias = _mm512_maskz_loadu_ps(m, out.bias + c);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            long place = (row + i) * out.n + c;
            __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(row_scales[i]));
            __m512 y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums[i][j], zero)), both, bias);
            if (out.relu) y = _mm512_max_ps(_mm512_setzero_ps(), y);
            if (out.residual) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(m, out.residual + place));
            _mm512_mask_storeu_ps(out.y + place, m, y);
        }
    }
}

}  // namespace

extern "C" {

// Pack W (n, k) fp32 into bytes (panels, k4, PANEL, 4), scales (n), and zeros (n), the share of ZERO in each sum.
void pack_int8(const float* w, long n, long k, int8_t* packed, float* scales, int32_t* zeros) {
    long k4 = (k + 3) / 4, panels = (n + PANEL - 1) / PANEL;
    std::memset(packed, 0, panels * k4 * PANEL * 4);
    for (long j = 0; j < n; j++) {
        float largest = 0;
        for (long i = 0; i < k; i++) largest = std::max(largest, std::fabs(w[j * k + i]));
        float inverse = largest > 0 ? 127.0f / largest : 0.0f;
        int32_t sum = 0;
        for (long i = 0; i < k; i++) {
            int8_t q = (int8_t)std::nearbyint(w[j * k + i] * inverse);
            packed[((j / PANEL * k4 + i / 4) * PANEL + j % PANEL) * 4 + i % 4] = q;
            sum += q;
        }
        scales[j] = largest / 127.0f;
        zeros[j] = ZERO * sum;
    }
}

// Compute y (m, n) = W x + bias of x (m, k), relu, plus residual (null: none). Each row of x has its own scale.
void linear_int8(const float* x, long m, long k, const int8_t* packed, const float* scales, const int32_t* zeros,
                 const float* bias, long n, long relu, const float* residual, float* y) {
    static thread_local std::vector<uint8_t> bytes;
    static thread_local std::vector<float> row_scales;
    long k4 = (k + 3) / 4;
    bytes.resize(m * k4 * 4);
    row_scales.resize(m);
    for (long i = 0; i < m; i++) row_scales[i] = quantise(x + i * k, k, bytes.data() + i * k4 * 4);
    Output out{scales, bias, residual, y, n, relu != 0};
    for (long column = 0; column < n; column += PANEL) {
        const int8_t* panel = packed + column * k4 * 4;
        long row = 0;
        auto rows = [&] { return bytes.data() + row * k4 * 4; };
        for (; row + ROWS <= m; row += ROWS) block<ROWS>(rows(), &row_scales[row], panel, zeros, k4, row, column, out);
        switch (m - row) {
            case 5: block<5>(rows(), &row_scales[row], panel, zeros, k4, row, column, out); break;
            case 4: block<4>(rows(), &row_scales[row], panel, zeros, k4, row, column, out); break;
            case 3: block<3>(rows(), &row_scales[row], panel, zeros, k4, row, column, out); break;
            case 2: block<2>(rows(), &row_scales[row], panel, zeros, k4, row, column, out); break;
            case 1: block<1>(rows(), &row_scales[row], panel, zeros, k4, row, column, out); break;
        }
    }
}

// Compute the attention of n queries over keys and values. Query i attends to the first lengths[j] of the rows
// index[j * width ...], where j = which[i]. Rows of queries are q_stride floats apart, rows of keys and of values
// kv_stride floats. Heads are side by side.
void attend(const float* queries, long q_stride, const float* keys, const float* values, long kv_stride,
            const int32_t* index, long width, const int32_t* lengths, const int32_t* which, long n, long heads, long d_k,
            long d_v, float* out) {
    static thread_local std::vector<float> scores, products;  // (heads, padded), (heads, LANES keys, LANES)
    products.resize(heads * LANES * LANES);
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt((float)d_k));
    for (long i = 0; i < n; i++) {
        const int32_t* rows = index + which[i] * width;
        long length = lengths[which[i]], padded = (length + LANES - 1) / LANES * LANES;
        scores.resize(heads * padded);
        for (long begin = 0; begin < length; begin += LANES) {
            for (long t = begin; t < std::min(begin + LANES, length); t++)  // the outer loop over keys reads each row of keys once, in order
                for (long h = 0; h < heads; h++)
                    _mm512_storeu_ps(&products[(h * LANES + t - begin) * LANES],
                                     product(queries + i * q_stride + h * d_k, keys + rows[t] * kv_stride + h * d_k, d_k));
            for (long h = 0; h < heads; h++)
                _mm512_storeu_ps(&scores[h * padded + begin], _mm512_mul_ps(scale, row_sums(&products[h * LANES * LANES])));
        }
        for (long h = 0; h < heads; h++) {
            float* row = &scores[h * padded];
            __m512 most = _mm512_set1_ps(-std::numeric_limits<float>::infinity()), mass = _mm512_setzero_ps();
            for (long t = 0; t < length; t += LANES)
                most = _mm512_mask_max_ps(most, first(length - t), most, _mm512_loadu_ps(row + t));
            __m512 highest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
            for (long t = 0; t < length; t += LANES) {
                __m512 e = exponential(_mm512_sub_ps(_mm512_loadu_ps(row + t), highest));
                _mm512_storeu_ps(row + t, e);
                mass = _mm512_mask_add_ps(mass, first(length - t), mass, e);
            }
            __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(mass));
            float* to = out + (i * heads + h) * d_v;
            for (long d = 0; d < d_v; d += PANEL) {
                __m512 sums[4] = {};
                __mmask16 m[4];
                for (int j = 0; j < 4; j++) m[j] = first(d_v - d - j * LANES);
                for (long t = 0; t < length; t++) {
                    const float* value = values + rows[t] * kv_stride + h * d_v + d;
                    __m512 weight = _mm512_set1_ps(row[t]);
#pragma GCC unroll 4
                    for (int j = 0; j < 4; j++)
                        sums[j] = _mm512_fmadd_ps(weight, _mm512_maskz_loadu_ps(m[j], value + j * LANES), sums[j]);
                }
                for (int j = 0; j < 4; j++) _mm512_mask_storeu_ps(to + d + j * LANES, m[j], _mm512_mul_ps(sums[j], share));
            }
        }
    }
}

// Find the `count` greatest of each row of logits (n, v). Return log-probabilities, best first, and ids. Equal ones are
// in the order of their ids.
void best(const float* logits, long n, long v, long count, float* values, int64_t* ids) {
    for (long i = 0; i < n; i++) {
        const float* row = logits + i * v;
        float* top = values + i * count;
        int64_t* who = ids + i * count;
        std::fill(top, top + count, -std::numeric_limits<float>::infinity());
        std::fill(who, who + count, 0);
        float least = -std::numeric_limits<float>::infinity();
        __m512 bar = _mm512_set1_ps(least);
        for (long j = 0; j < v; j += LANES) {
            __mmask16 m = first(v - j);
            __mmask16 above = _mm512_mask_cmp_ps_mask(m, _mm512_maskz_loadu_ps(m, row + j), bar, _CMP_GT_OQ);
            for (; above; above &= above - 1) {
                long id = j + __builtin_ctz(above);
                if (!(row[id] > least)) continue;
                long place = count - 1;
                for (; place > 0 && row[id] > top[place - 1]; place--) top[place] = top[place - 1], who[place] = who[place - 1];
                top[place] = row[id], who[place] = id;
                least = top[count - 1];
                bar = _mm512_set1_ps(least);
            }
        }
        __m512 highest = _mm512_set1_ps(top[0]), mass = _mm512_setzero_ps();
        for (long j = 0; j < v; j += LANES) {
            __mmask16 m = first(v - j);
            mass = _mm512_add_ps(mass, _mm512_maskz_mov_ps(m, exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, row + j), highest))));
        }
        float log_mass = top[0] + std::log(_mm512_reduce_add_ps(mass));
        for (long place = 0; place < count; place++) top[place] -= log_mass;
    }
}

}  // extern "C"
