// The operations in which processors differ, by NEON of AArch64, with dot products where the compiler may use them.
// portable.h defines them.

#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr long LANES = 4;
constexpr long VECTORS = 4;
constexpr long ROWS = 6;  // with VECTORS: 24 registers of sums, 4 of weights

using Floats = float32x4_t;
using Integers = int32x4_t;

Floats all(float x) { return vdupq_n_f32(x); }
Floats load(const float* from) { return vld1q_f32(from); }
Floats load(const float* from, long n, Floats rest) {
    if (n >= LANES) return load(from);
    for (long i = 0; i < n; i++) rest[i] = from[i];
    return rest;
}
Integers load(const int32_t* from, long n) {
    if (n >= LANES) return vld1q_s32(from);
    Integers x{};
    for (long i = 0; i < n; i++) x[i] = from[i];
    return x;
}
void store(float* to, Floats x) { vst1q_f32(to, x); }
void store(float* to, Floats x, long n) {
    if (n >= LANES) return store(to, x);
    for (long i = 0; i < n; i++) to[i] = x[i];
}
Floats first(Floats x, long n) {
    for (long i = n < 0 ? 0 : n; i < LANES; i++) x[i] = 0;
    return x;
}

Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
Floats max(Floats a, Floats b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // vmaxq_f32 takes a NaN from either
Floats magnitude(Floats x) { return vabsq_f32(x); }
Floats round(Floats x) { return vrndnq_f32(x); }
Floats times_power_of_two(Floats x, Floats power) {
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(power), vdupq_n_s32(127)), 23)));
}
unsigned at_least(Floats x, Floats least) {
    const uint32x4_t bits = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vcgeq_f32(x, least), bits));
}
bool has_nan(Floats x) { return vminvq_u32(vceqq_f32(x, x)) == 0; }

float sum(Floats x) { return vaddvq_f32(x); }
float greatest(Floats x) { return vmaxnmvq_f32(x); }

Floats row_sums(Floats (&r)[LANES]) { return vpaddq_f32(vpaddq_f32(r[0], r[1]), vpaddq_f32(r[2], r[3])); }

// ---- products of 8-bit integers ------------------------------------------------------------------------------------

constexpr long INPUTS = 4;
constexpr int ZERO = 0;
using Activation = int8_t;
using Weights = int8x16_t;

void store_rounded(Activation* to, Floats x, long n) {
    int16x4_t halves = vmovn_s32(vcvtnq_s32_f32(x));
    int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
    std::memcpy(to, &bytes, n < LANES ? n : LANES);
}
Weights load_weights(const int8_t* from) { return vld1q_s8(from); }

#ifdef __ARM_FEATURE_DOTPROD

constexpr bool INT8_IS_FASTER = true;  // an instruction has 16 products, in fp32 4; not measured

inline void add_products(Integers& sums, int32_t inputs, Weights weights) {
    sums = vdotq_s32(sums, weights, vreinterpretq_s8_s32(vdupq_n_s32(inputs)));
}

#else

constexpr bool INT8_IS_FASTER = false;  // not measured: 6 instructions for 16 products, in fp32 4

inline void add_products(Integers& sums, int32_t inputs, Weights weights) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(inputs));
    int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(x)), high = vmull_high_s8(weights, x);
    sums = vaddq_s32(sums, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}

#endif

}  // namespace
