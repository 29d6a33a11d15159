/* Sines and cosines of angles in radians, exact beyond the bits that their names promise: the part of the
 * SDK's libgmath that programs use. Functions that end in _v take four angles. */
#ifndef SIDECORE_GMATH_H
#define SIDECORE_GMATH_H
#include <sidecore_begin.h>

#include <math.h>
#include <simdmath.h>
#include <sidecore_vector_names.h>

static __inline__ float _sin8(float angle) { return sinf(angle); }
static __inline__ float _sin14(float angle) { return sinf(angle); }
static __inline__ float _sin18(float angle) { return sinf(angle); }
static __inline__ float _cos8(float angle) { return cosf(angle); }
static __inline__ float _cos14(float angle) { return cosf(angle); }
static __inline__ float _cos18(float angle) { return cosf(angle); }
static __inline__ vec_float4 _sin8_v(vec_float4 angles) { return sinf4(angles); }
static __inline__ vec_float4 _sin14_v(vec_float4 angles) { return sinf4(angles); }
static __inline__ vec_float4 _sin18_v(vec_float4 angles) { return sinf4(angles); }
static __inline__ vec_float4 _cos8_v(vec_float4 angles) { return cosf4(angles); }
static __inline__ vec_float4 _cos14_v(vec_float4 angles) { return cosf4(angles); }
static __inline__ vec_float4 _cos18_v(vec_float4 angles) { return cosf4(angles); }

#include <sidecore_end.h>
#endif
