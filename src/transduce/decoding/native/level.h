// The operations in which processors differ, by the instructions that the compiler may use. portable.h defines them.

#pragma once

#if defined(PORTABLE)
#include "portable.h"
#elif defined(__AVX512BW__)
#include "avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "avx2.h"
#elif defined(__aarch64__)
#include "neon.h"
#else
#include "portable.h"
#endif
