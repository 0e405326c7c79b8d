// The operations in which processors differ, by AVX-512, with VNNI where the compiler may use it. portable.h defines them.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr long LANES = 16;
constexpr long VECTORS = 4;
constexpr long ROWS = 6;  // with VECTORS: 24 registers of sums, 4 of weights

using Floats = __m512;
typedef int32_t Integers __attribute__((vector_size(64)));

__mmask16 lanes(long count) { return count >= LANES ? 0xFFFF : (__mmask16)((1u << (count < 0 ? 0 : count)) - 1); }

Floats all(float x) { return _mm512_set1_ps(x); }
Floats load(const float* from) { return _mm512_loadu_ps(from); }
Floats load(const float* from, long n, Floats rest) { return _mm512_mask_loadu_ps(rest, lanes(n), from); }
Integers load(const int32_t* from, long n) { return (Integers)_mm512_maskz_loadu_epi32(lanes(n), from); }
void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
void store(float* to, Floats x, long n) { _mm512_mask_storeu_ps(to, lanes(n), x); }
Floats first(Floats x, long n) { return _mm512_maskz_mov_ps(lanes(n), x); }

Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
Floats magnitude(Floats x) { return _mm512_abs_ps(x); }
Floats round(Floats x) { return _mm512_roundscale_ps(x, 0); }
Floats times_power_of_two(Floats x, Floats power) { return _mm512_scalef_ps(x, power); }
unsigned at_least(Floats x, Floats least) { return _mm512_cmp_ps_mask(x, least, _CMP_GE_OQ); }
bool has_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }

float sum(Floats x) { return _mm512_reduce_add_ps(x); }
float greatest(Floats x) { return _mm512_reduce_max_ps(x); }

Floats row_sums(Floats (&r)[LANES]) {
    // Each pass adds pairs of rows in separate lanes: i and i + 1, then i and i + 2, until each lane is the sum of a row.
    for (int i = 0; i < 16; i += 2) r[i / 2] = _mm512_unpacklo_ps(r[i], r[i + 1]) + _mm512_unpackhi_ps(r[i], r[i + 1]);
    for (int i = 0; i < 8; i += 2) {
        __m512d a = _mm512_castps_pd(r[i]), b = _mm512_castps_pd(r[i + 1]);
        r[i / 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    for (int i = 0; i < 4; i += 2)
        r[i / 2] = _mm512_shuffle_f32x4(r[i], r[i + 1], 0x88) + _mm512_shuffle_f32x4(r[i], r[i + 1], 0xdd);
    return _mm512_shuffle_f32x4(r[0], r[1], 0x88) + _mm512_shuffle_f32x4(r[0], r[1], 0xdd);
}

// ---- products of 8-bit integers ------------------------------------------------------------------------------------

constexpr bool INT8_IS_FASTER = true;

#ifdef __AVX512VNNI__

constexpr long INPUTS = 4;
constexpr int ZERO = 128;  // VNNI multiplies unsigned bytes by signed ones
using Activation = uint8_t;
using Weights = __m512i;

void store_rounded(Activation* to, Floats x, long n) {
    _mm512_mask_cvtepi32_storeu_epi8(to, lanes(n), _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(ZERO)));
}
Weights load_weights(const int8_t* from) { return _mm512_loadu_si512(from); }
inline void add_products(Integers& sums, int32_t inputs, Weights weights) {
    // By the intrinsic function, gcc 12 copies the sums.
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(_mm512_set1_epi32(inputs)), "v"(weights));
}

#else

constexpr long INPUTS = 2;
constexpr int ZERO = 0;
using Activation = int16_t;  // products of bytes, added in pairs, saturate at 16 bits; of 16 bits they are exact
using Weights = __m512i;

void store_rounded(Activation* to, Floats x, long n) {
    _mm512_mask_cvtepi32_storeu_epi16(to, lanes(n), _mm512_cvtps_epi32(x));
}
Weights load_weights(const int8_t* from) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from)); }
inline void add_products(Integers& sums, int32_t inputs, Weights weights) {
    sums += (Integers)_mm512_madd_epi16(_mm512_set1_epi32(inputs), weights);
}

#endif

}  // namespace
