/* MASS's functions of one vector have the names of the SIMD math library. */
#ifndef _MASS_SIMD_H_
#define _MASS_SIMD_H_
#include <simdmath.h>
#endif
