/* MASS's functions of one vector have the names of the SIMD math library, and a few of their own. */
#ifndef _MASS_SIMD_H_
#define _MASS_SIMD_H_

#include <simdmath.h>

#define __MASS_QUARTER(x) sqrt(sqrt(x))
__SIMDMATH_1(qdrt, (float)__MASS_QUARTER, __MASS_QUARTER)
__SIMDMATH_1(rqdrt, (float)1.0 / __MASS_QUARTER, 1.0 / __MASS_QUARTER)
__SIMDMATH_1(rcbrt, 1.0f / cbrtf, 1.0 / cbrt)

#endif
