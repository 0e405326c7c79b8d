// The operations in which processors differ, in the vectors of GCC and Clang, for every processor: the definition of what
// avx512.h, avx2.h and neon.h have, too. Other operations on vectors are those of the language, such as a + b.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace {

constexpr long LANES = 4;    // floats in a vector
constexpr long VECTORS = 2;  // vectors of outputs that a product computes together,
constexpr long ROWS = 4;     // for so many rows: registers for VECTORS * (ROWS + 1) + 1 vectors

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

// Return x in each lane.
Floats all(float x) { return Floats{x, x, x, x}; }

Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

// Load the first n floats, or all of a vector if n is greater; the other lanes are as in `rest`.
Floats load(const float* from, long n, Floats rest) {
    if (n >= LANES) return load(from);
    for (long i = 0; i < n; i++) rest[i] = from[i];
    return rest;
}

// Load the first n integers; the other lanes are 0.
Integers load(const int32_t* from, long n) {
    Integers x{};
    for (long i = 0; i < LANES && i < n; i++) x[i] = from[i];
    return x;
}

void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

// Store the first n lanes, or all of them.
void store(float* to, Floats x, long n) {
    if (n >= LANES) return store(to, x);
    for (long i = 0; i < n; i++) to[i] = x[i];
}

// Return the first n lanes of x; the other lanes are 0.
Floats first(Floats x, long n) {
    for (long i = n < 0 ? 0 : n; i < LANES; i++) x[i] = 0;
    return x;
}

// Return a * b + c, with one rounding where the processor has an instruction for it.
Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }

// Return the greater number of each lane; b where one of them is NaN.
Floats max(Floats a, Floats b) { return a > b ? a : b; }

Floats magnitude(Floats x) { return (Floats)((Integers)x & 0x7fffffff); }

// Return the nearest integers, of two the even one, for |x| < 2^22.
Floats round(Floats x) {
    const float large = 12582912;  // 1.5 * 2^23: the floats near it are the integers
    return (x + large) - large;
}

// Return x * 2^power, for integers from -126 to 127; NaN where one of them is.
Floats times_power_of_two(Floats x, Floats power) {
    return x * (Floats)((__builtin_convertvector(power, Integers) + 127) << 23);
}

// Return a number whose bit i is 1 where x[i] >= least[i].
unsigned at_least(Floats x, Floats least) {
    unsigned bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (unsigned)(x[i] >= least[i]) << i;
    return bits;
}

bool has_nan(Floats x) {
    Integers is_number = x == x;
    return !(is_number[0] & is_number[1] & is_number[2] & is_number[3]);
}

float sum(Floats x) { return (x[0] + x[2]) + (x[1] + x[3]); }
float greatest(Floats x) { return std::fmax(std::fmax(x[0], x[2]), std::fmax(x[1], x[3])); }

// Return the sum of each of LANES vectors, which it overwrites.
Floats row_sums(Floats (&r)[LANES]) { return Floats{sum(r[0]), sum(r[1]), sum(r[2]), sum(r[3])}; }

// ---- products of 8-bit integers ------------------------------------------------------------------------------------
// A step of a product takes INPUTS activations of a row, 4 bytes, and the weights that belong to them, of LANES outputs.
// All levels give the same sums: they are exact.

constexpr long INPUTS = 2;
constexpr int ZERO = 0;  // what is added to activations, so that they are as the instruction takes them
using Activation = int16_t;

// Store the first n lanes, or all of them, rounded to integers around ZERO.
void store_rounded(Activation* to, Floats x, long n) {
    Integers rounded = __builtin_convertvector(round(x), Integers);
    for (long i = 0; i < LANES && i < n; i++) to[i] = (Activation)rounded[i];
}

// INT8_IS_FASTER says whether products take less time than in fp32. `load_weights` loads the weights of LANES outputs, INPUTS of each. `add_products` adds to each output the products of its
// weights with the activations, whose 4 bytes are in `inputs`.

#ifdef __SSE2__  // on every x86-64: 10 times as fast as what gcc 12 makes of the other form

constexpr bool INT8_IS_FASTER = true;
using Weights = __m128i;

Weights load_weights(const int8_t* from) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)from);
    return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
}
inline void add_products(Integers& sums, int32_t inputs, Weights weights) {
    sums += (Integers)_mm_madd_epi16(_mm_set1_epi32(inputs), weights);
}

#else

constexpr bool INT8_IS_FASTER = false;  // on x86-64 a quarter of the speed of fp32
typedef int16_t Halves __attribute__((vector_size(2 * LANES)));

struct Weights {
    Halves even, odd;
};

Weights load_weights(const int8_t* from) {
    Weights weights;
    for (int i = 0; i < LANES; i++) {
        weights.even[i] = from[2 * i];
        weights.odd[i] = from[2 * i + 1];
    }
    return weights;
}
inline void add_products(Integers& sums, int32_t inputs, const Weights& weights) {
    int16_t x[INPUTS];
    std::memcpy(x, &inputs, sizeof x);
    sums += __builtin_convertvector(weights.even * x[0] + weights.odd * x[1], Integers);  // at most 2 * 127^2 < 2^15
}

#endif

}  // namespace
