// The operations in which processors differ, by AVX2 and FMA, with AVX-VNNI where the compiler may use it. portable.h
// defines them.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr long LANES = 8;
constexpr long VECTORS = 2;
constexpr long ROWS = 6;  // with VECTORS: 12 registers of sums, 2 of weights, 1 of inputs, 1 of products

using Floats = __m256;
typedef int32_t Integers __attribute__((vector_size(32)));

// Return a mask of the first n lanes.
__m256i lanes(long n) {
    static const int32_t ones_then_zeros[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i*)(ones_then_zeros + (n >= LANES ? 0 : n <= 0 ? LANES : LANES - n)));
}

Floats all(float x) { return _mm256_set1_ps(x); }
Floats load(const float* from) { return _mm256_loadu_ps(from); }
Floats load(const float* from, long n, Floats rest) {
    if (n >= LANES) return load(from);
    return _mm256_blendv_ps(rest, _mm256_maskload_ps(from, lanes(n)), _mm256_castsi256_ps(lanes(n)));
}
Integers load(const int32_t* from, long n) { return (Integers)_mm256_maskload_epi32(from, lanes(n)); }
void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
void store(float* to, Floats x, long n) {
    if (n >= LANES) return store(to, x);
    _mm256_maskstore_ps(to, lanes(n), x);
}
Floats first(Floats x, long n) { return n >= LANES ? x : _mm256_and_ps(x, _mm256_castsi256_ps(lanes(n))); }

Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
Floats magnitude(Floats x) { return _mm256_andnot_ps(all(-0.0f), x); }
Floats round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
Floats times_power_of_two(Floats x, Floats power) {
    return x * (Floats)(((Integers)_mm256_cvtps_epi32(power) + 127) << 23);
}
unsigned at_least(Floats x, Floats least) { return _mm256_movemask_ps(_mm256_cmp_ps(x, least, _CMP_GE_OQ)); }
bool has_nan(Floats x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

float sum(Floats x) {
    __m128 four = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
float greatest(Floats x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

Floats row_sums(Floats (&r)[LANES]) {
    for (int i = 0; i < 8; i += 2) r[i / 2] = _mm256_hadd_ps(r[i], r[i + 1]);
    for (int i = 0; i < 4; i += 2) r[i / 2] = _mm256_hadd_ps(r[i], r[i + 1]);
    return _mm256_permute2f128_ps(r[0], r[1], 0x20) + _mm256_permute2f128_ps(r[0], r[1], 0x31);
}

// ---- products of 8-bit integers ------------------------------------------------------------------------------------

constexpr bool INT8_IS_FASTER = true;

#ifdef __AVXVNNI__
#define DOT_PRODUCT _mm256_dpbusd_avx_epi32
#endif

#ifdef DOT_PRODUCT

constexpr long INPUTS = 4;
constexpr int ZERO = 128;  // VNNI multiplies unsigned bytes by signed ones
using Activation = uint8_t;
using Weights = __m256i;

Weights load_weights(const int8_t* from) { return _mm256_loadu_si256((const __m256i*)from); }
inline void add_products(Integers& sums, int32_t inputs, Weights weights) {
    sums = (Integers)DOT_PRODUCT((__m256i)sums, _mm256_set1_epi32(inputs), weights);
}

#else

constexpr long INPUTS = 2;
constexpr int ZERO = 0;
using Activation = int16_t;  // products of bytes, added in pairs, saturate at 16 bits; of 16 bits they are exact
using Weights = __m256i;

Weights load_weights(const int8_t* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from)); }
inline void add_products(Integers& sums, int32_t inputs, Weights weights) {
    sums += (Integers)_mm256_madd_epi16(_mm256_set1_epi32(inputs), weights);
}

#endif

void store_rounded(Activation* to, Floats x, long n) {
    Integers integers = (Integers)_mm256_cvtps_epi32(x) + ZERO;
    __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)integers), _mm256_extracti128_si256((__m256i)integers, 1));
    if (sizeof(Activation) == 1) halves = _mm_packus_epi16(halves, halves);
    std::memcpy(to, &halves, (n < LANES ? n : LANES) * sizeof(Activation));
}

}  // namespace
