/* The SIMD math library: functions of the elements of a vector, by the scalar ones. A name with an
 * underscore before it is the inline form, which here is the same. */
#ifndef _SIMDMATH_H_
#define _SIMDMATH_H_
#include <sidecore_begin.h>

#include <math.h>
#include <stdlib.h>
#include <sidecore_vector_names.h>

#define __SIMDMATH static __inline__ __attribute__((always_inline, unused))

/* name##f4 and name##d2 of one and of two arguments. */
#define __SIMDMATH_ALL(R, T, count, name, parameters, arguments, expression)                       \
	__SIMDMATH R name parameters                                                               \
	{                                                                                          \
		R __r = {0};                                                                       \
		int i;                                                                             \
		for (i = 0; i < count; i++)                                                        \
			__r[i] = expression;                                                       \
		return __r;                                                                        \
	}                                                                                          \
	__SIMDMATH R _##name parameters { return name arguments; }
#define __SIMDMATH_1(name, single, expression)                                                     \
	__SIMDMATH_ALL(vec_float4, float, 4, name##f4, (vec_float4 x), (x), single(x[i]))          \
	__SIMDMATH_ALL(vec_double2, double, 2, name##d2, (vec_double2 x), (x), expression(x[i]))
#define __SIMDMATH_2(name, single, expression)                                                     \
	__SIMDMATH_ALL(vec_float4, float, 4, name##f4, (vec_float4 x, vec_float4 y), (x, y),       \
		       single(x[i], y[i]))                                                         \
	__SIMDMATH_ALL(vec_double2, double, 2, name##d2, (vec_double2 x, vec_double2 y), (x, y),   \
		       expression(x[i], y[i]))
#define __SIMDMATH_TEST_1(name, expression)                                                        \
	__SIMDMATH_ALL(vec_uint4, float, 4, name##f4, (vec_float4 x), (x),                         \
		       (expression) ? 0xffffffffu : 0)                                             \
	__SIMDMATH_ALL(vec_ullong2, double, 2, name##d2, (vec_double2 x), (x),                     \
		       (expression) ? 0xffffffffffffffffULL : 0)
#define __SIMDMATH_TEST_2(name, expression)                                                        \
	__SIMDMATH_ALL(vec_uint4, float, 4, name##f4, (vec_float4 x, vec_float4 y), (x, y),        \
		       (expression) ? 0xffffffffu : 0)                                             \
	__SIMDMATH_ALL(vec_ullong2, double, 2, name##d2, (vec_double2 x, vec_double2 y), (x, y),   \
		       (expression) ? 0xffffffffffffffffULL : 0)
#define __SIMDMATH_INTEGERS(name, single, wide)                                                    \
	__SIMDMATH_ALL(vec_int4, float, 4, name##f4, (vec_float4 x), (x), single(x[i]))            \
	__SIMDMATH_ALL(vec_llong2, double, 2, name##d2, (vec_double2 x), (x), wide(x[i]))

__SIMDMATH_1(acos, acosf, acos)
__SIMDMATH_1(acosh, acoshf, acosh)
__SIMDMATH_1(asin, asinf, asin)
__SIMDMATH_1(asinh, asinhf, asinh)
__SIMDMATH_1(atan, atanf, atan)
__SIMDMATH_1(atanh, atanhf, atanh)
__SIMDMATH_1(cbrt, cbrtf, cbrt)
__SIMDMATH_1(ceil, ceilf, ceil)
__SIMDMATH_1(cos, cosf, cos)
__SIMDMATH_1(cosh, coshf, cosh)
__SIMDMATH_1(erf, erff, erf)
__SIMDMATH_1(erfc, erfcf, erfc)
__SIMDMATH_1(exp, expf, exp)
__SIMDMATH_1(exp2, exp2f, exp2)
__SIMDMATH_1(expm1, expm1f, expm1)
__SIMDMATH_1(fabs, __builtin_fabsf, __builtin_fabs)
__SIMDMATH_1(floor, floorf, floor)
__SIMDMATH_1(lgamma, lgammaf, lgamma)
__SIMDMATH_1(log, logf, log)
__SIMDMATH_1(log10, log10f, log10)
__SIMDMATH_1(log1p, log1pf, log1p)
__SIMDMATH_1(log2, log2f, log2)
__SIMDMATH_1(logb, logb, logb)
#ifdef __SPU__
/* Floats are cut; doubles go by the register of rounding. */
#ifdef __cplusplus
extern "C"
#endif
double __sidecore_rounded(double, int);
#define __SIMDMATH_WHOLE(x) __sidecore_rounded(x, i)
__SIMDMATH_1(nearbyint, truncf, __SIMDMATH_WHOLE)
__SIMDMATH_1(rint, truncf, __SIMDMATH_WHOLE)
#define __SIMDMATH_CUT truncf
#define __SIMDMATH_NEAREST __SIMDMATH_WHOLE
#else
__SIMDMATH_1(nearbyint, nearbyintf, nearbyint)
__SIMDMATH_1(rint, rintf, rint)
#define __SIMDMATH_CUT rintf
#define __SIMDMATH_NEAREST rint
#endif
__SIMDMATH_1(round, roundf, round)
__SIMDMATH_1(sin, sinf, sin)
__SIMDMATH_1(sinh, sinhf, sinh)
__SIMDMATH_1(sqrt, __builtin_sqrtf, __builtin_sqrt)
__SIMDMATH_1(tan, tanf, tan)
__SIMDMATH_1(tanh, tanhf, tanh)
__SIMDMATH_1(tgamma, tgammaf, tgamma)
__SIMDMATH_1(trunc, truncf, trunc)
__SIMDMATH_1(negate, -, -)
__SIMDMATH_ALL(vec_double2, double, 2, recipd2, (vec_double2 x), (x), 1.0 / x[i])
__SIMDMATH_ALL(vec_double2, double, 2, rsqrtd2, (vec_double2 x), (x), 1.0 / __builtin_sqrt(x[i]))
/* Floats of the SPU have no infinities. */
#ifdef __SPU__
#include <sidecore_vector_parts.h>
__SIMDMATH vec_float4 recipf4(vec_float4 x) { return __spu_re(x); }
__SIMDMATH vec_float4 rsqrtf4(vec_float4 x) { return __spu_rsqrte(x); }
__SIMDMATH vec_float4 divf4(vec_float4 x, vec_float4 y) { return __spu_quotient(x, y); }
#else
__SIMDMATH vec_float4 recipf4(vec_float4 x) { return 1.0f / x; }
__SIMDMATH_ALL(vec_float4, float, 4, rsqrtf4, (vec_float4 x), (x), 1.0f / __builtin_sqrtf(x[i]))
__SIMDMATH vec_float4 divf4(vec_float4 x, vec_float4 y) { return x / y; }
#endif
__SIMDMATH vec_float4 _recipf4(vec_float4 x) { return recipf4(x); }
#ifdef __SPU__
__SIMDMATH vec_float4 _rsqrtf4(vec_float4 x) { return rsqrtf4(x); }
#endif

__SIMDMATH_2(atan2, atan2f, atan2)
__SIMDMATH_2(copysign, __builtin_copysignf, __builtin_copysign)
__SIMDMATH_2(fdim, fdimf, fdim)
__SIMDMATH_2(fmax, fmaxf, fmax)
__SIMDMATH_2(fmin, fminf, fmin)
__SIMDMATH_2(fmod, fmodf, fmod)
__SIMDMATH_2(hypot, hypotf, hypot)
__SIMDMATH_2(nextafter, nextafterf, nextafter)
__SIMDMATH_2(pow, powf, pow)
__SIMDMATH_2(remainder, remainderf, remainder)

__SIMDMATH vec_float4 _divf4(vec_float4 x, vec_float4 y) { return divf4(x, y); }
__SIMDMATH vec_double2 divd2(vec_double2 x, vec_double2 y) { return x / y; }
__SIMDMATH vec_double2 _divd2(vec_double2 x, vec_double2 y) { return x / y; }
__SIMDMATH vec_float4 fmaf4(vec_float4 x, vec_float4 y, vec_float4 z) { return x * y + z; }
__SIMDMATH vec_float4 _fmaf4(vec_float4 x, vec_float4 y, vec_float4 z) { return x * y + z; }
__SIMDMATH vec_double2 fmad2(vec_double2 x, vec_double2 y, vec_double2 z) { return x * y + z; }
__SIMDMATH vec_double2 _fmad2(vec_double2 x, vec_double2 y, vec_double2 z) { return x * y + z; }

__SIMDMATH_TEST_1(isnan, __builtin_isnan(x[i]))
__SIMDMATH_TEST_1(isinf, __builtin_isinf(x[i]))
__SIMDMATH_TEST_1(isfinite, __builtin_isfinite(x[i]))
__SIMDMATH_TEST_1(isnormal, __builtin_isnormal(x[i]))
__SIMDMATH_TEST_1(is0denorm, !__builtin_isnormal(x[i]) && __builtin_isfinite(x[i]))
__SIMDMATH_TEST_1(signbit, __builtin_signbit(x[i]))
__SIMDMATH_TEST_2(isequal, x[i] == y[i])
__SIMDMATH_TEST_2(isgreater, __builtin_isgreater(x[i], y[i]))
__SIMDMATH_TEST_2(isgreaterequal, __builtin_isgreaterequal(x[i], y[i]))
__SIMDMATH_TEST_2(isless, __builtin_isless(x[i], y[i]))
__SIMDMATH_TEST_2(islessequal, __builtin_islessequal(x[i], y[i]))
__SIMDMATH_TEST_2(islessgreater, __builtin_islessgreater(x[i], y[i]))
__SIMDMATH_TEST_2(isunordered, __builtin_isunordered(x[i], y[i]))
__SIMDMATH_INTEGERS(ilogb, ilogb, ilogb)
__SIMDMATH_ALL(vec_llong2, double, 2, llrintd2, (vec_double2 x), (x), (long long)__SIMDMATH_NEAREST(x[i]))
__SIMDMATH_ALL(vec_llong2, double, 2, llroundd2, (vec_double2 x), (x), llround(x[i]))
typedef struct llroundf4_s { vec_llong2 vll[2]; } llroundf4_t;
typedef llroundf4_t llrintf4_t;
#define __SIMDMATH_LONG(name, call)                                                                \
	__SIMDMATH llroundf4_t name(vec_float4 x)                                                  \
	{                                                                                          \
		llroundf4_t r = {{{call(x[0]), call(x[1])}, {call(x[2]), call(x[3])}}};            \
		return r;                                                                          \
	}                                                                                          \
	__SIMDMATH llroundf4_t _##name(vec_float4 x) { return name(x); }
#define __SIMDMATH_LONG_CUT(x) ((long long)__SIMDMATH_CUT(x))
__SIMDMATH_LONG(llrintf4, __SIMDMATH_LONG_CUT)
__SIMDMATH_LONG(llroundf4, llround)
__SIMDMATH_ALL(vec_int4, float, 4, irintf4, (vec_float4 x), (x), (int)__SIMDMATH_CUT(x[i]))
__SIMDMATH_ALL(vec_int4, float, 4, iroundf4, (vec_float4 x), (x), (int)roundf(x[i]))
__SIMDMATH_ALL(vec_float4, float, 4, ldexpf4, (vec_float4 x, vec_int4 y), (x, y), ldexpf(x[i], y[i]))
__SIMDMATH_ALL(vec_double2, double, 2, ldexpd2, (vec_double2 x, vec_llong2 y), (x, y),
	       ldexp(x[i], (int)y[i]))

__SIMDMATH_ALL(vec_float4, float, 4, scalbnf4, (vec_float4 x, vec_int4 y), (x, y), ldexpf(x[i], y[i]))
__SIMDMATH_ALL(vec_double2, double, 2, scalbllnd2, (vec_double2 x, vec_llong2 y), (x, y),
	       ldexp(x[i], y[i] > 5000 ? 5000 : y[i] < -5000 ? -5000 : (int)y[i]))
__SIMDMATH_ALL(vec_int4, float, 4, fpclassifyf4, (vec_float4 x), (x),
	       __builtin_fpclassify(FP_NAN, FP_INFINITE, FP_NORMAL, FP_SUBNORMAL, FP_ZERO, x[i]))
__SIMDMATH_ALL(vec_llong2, double, 2, fpclassifyd2, (vec_double2 x), (x),
	       __builtin_fpclassify(FP_NAN, FP_INFINITE, FP_NORMAL, FP_SUBNORMAL, FP_ZERO, x[i]))
/* Forms that need not be exact. */
__SIMDMATH vec_float4 divf4_fast(vec_float4 x, vec_float4 y) { return divf4(x, y); }
__SIMDMATH vec_float4 _divf4_fast(vec_float4 x, vec_float4 y) { return divf4(x, y); }
__SIMDMATH vec_float4 recipf4_fast(vec_float4 x) { return recipf4(x); }
__SIMDMATH vec_float4 _recipf4_fast(vec_float4 x) { return recipf4(x); }
__SIMDMATH vec_float4 sqrtf4_fast(vec_float4 x) { return sqrtf4(x); }
__SIMDMATH vec_float4 _sqrtf4_fast(vec_float4 x) { return sqrtf4(x); }
__SIMDMATH vec_float4 rsqrtf4_fast(vec_float4 x) { return rsqrtf4(x); }
__SIMDMATH vec_float4 _rsqrtf4_fast(vec_float4 x) { return rsqrtf4(x); }
__SIMDMATH vec_float4 ceilf4_fast(vec_float4 x) { return ceilf4(x); }
__SIMDMATH vec_float4 _ceilf4_fast(vec_float4 x) { return ceilf4(x); }
__SIMDMATH vec_float4 floorf4_fast(vec_float4 x) { return floorf4(x); }
__SIMDMATH vec_float4 _floorf4_fast(vec_float4 x) { return floorf4(x); }
__SIMDMATH vec_float4 fmodf4_fast(vec_float4 x, vec_float4 y) { return fmodf4(x, y); }
__SIMDMATH vec_float4 _fmodf4_fast(vec_float4 x, vec_float4 y) { return fmodf4(x, y); }

__SIMDMATH vec_int4 absi4(vec_int4 x) { return (x ^ (x >> 31)) - (x >> 31); }
__SIMDMATH vec_int4 _absi4(vec_int4 x) { return absi4(x); }
__SIMDMATH vec_llong2 llabsi2(vec_llong2 x) { return (vec_llong2){llabs(x[0]), llabs(x[1])}; }
__SIMDMATH vec_llong2 _llabsi2(vec_llong2 x) { return llabsi2(x); }
__SIMDMATH vec_int4 negatei4(vec_int4 x) { return -x; }
__SIMDMATH vec_int4 _negatei4(vec_int4 x) { return -x; }
__SIMDMATH vec_llong2 negatell2(vec_llong2 x) { return -x; }
__SIMDMATH vec_llong2 _negatell2(vec_llong2 x) { return -x; }

typedef struct { vec_int4 quot, rem; } divi4_t;
typedef struct { vec_uint4 quot, rem; } divu4_t;
typedef struct { vec_llong2 quot, rem; } lldivi2_t;
typedef struct { vec_ullong2 quot, rem; } lldivu2_t;
#define __SIMDMATH_DIV(name, V, count)                                                             \
	__SIMDMATH name##_t name(V x, V y)                                                         \
	{                                                                                          \
		name##_t r = {{0}, {0}};                                                           \
		int i;                                                                             \
		for (i = 0; i < count; i++) {                                                      \
			r.quot[i] = y[i] ? x[i] / y[i] : 0;                                        \
			r.rem[i] = y[i] ? x[i] % y[i] : x[i];                                      \
		}                                                                                  \
		return r;                                                                          \
	}                                                                                          \
	__SIMDMATH name##_t _##name(V x, V y) { return name(x, y); }
__SIMDMATH_DIV(divi4, vec_int4, 4)
__SIMDMATH_DIV(divu4, vec_uint4, 4)
__SIMDMATH_DIV(lldivi2, vec_llong2, 2)
__SIMDMATH_DIV(lldivu2, vec_ullong2, 2)

#define __SIMDMATH_SINCOS(name, V, sine, cosine, count)                                            \
	__SIMDMATH void name(V x, V *s, V *c)                                                      \
	{                                                                                          \
		int i;                                                                             \
		V sines = {0}, cosines = {0};                                                      \
		for (i = 0; i < count; i++) {                                                      \
			sines[i] = sine(x[i]);                                                     \
			cosines[i] = cosine(x[i]);                                                 \
		}                                                                                  \
		*s = sines;                                                                        \
		*c = cosines;                                                                      \
	}                                                                                          \
	__SIMDMATH void _##name(V x, V *s, V *c) { name(x, s, c); }
__SIMDMATH_SINCOS(sincosf4, vec_float4, sinf, cosf, 4)
__SIMDMATH_SINCOS(sincosd2, vec_double2, sin, cos, 2)

#define __SIMDMATH_REMQUO(name, V, W, call, count)                                                 \
	__SIMDMATH V name(V x, V y, W *quotients)                                                  \
	{                                                                                          \
		V r = {0};                                                                         \
		W all = {0};                                                                       \
		int i;                                                                             \
		for (i = 0; i < count; i++) {                                                      \
			int quotient;                                                              \
			r[i] = call(x[i], y[i], &quotient);                                        \
			all[i] = quotient;                                                         \
		}                                                                                  \
		*quotients = all;                                                                  \
		return r;                                                                          \
	}                                                                                          \
	__SIMDMATH V _##name(V x, V y, W *quotients) { return name(x, y, quotients); }
__SIMDMATH_REMQUO(remquof4, vec_float4, vec_int4, remquof, 4)
__SIMDMATH_REMQUO(remquod2, vec_double2, vec_llong2, remquo, 2)

#define __SIMDMATH_PARTS(name, V, W, E, call, count)                                               \
	__SIMDMATH V name(V x, W *parts)                                                           \
	{                                                                                          \
		V r = {0};                                                                         \
		W all = {0};                                                                       \
		int i;                                                                             \
		for (i = 0; i < count; i++) {                                                      \
			E part;                                                                    \
			r[i] = call(x[i], &part);                                                  \
			all[i] = part;                                                             \
		}                                                                                  \
		*parts = all;                                                                      \
		return r;                                                                          \
	}                                                                                          \
	__SIMDMATH V _##name(V x, W *parts) { return name(x, parts); }
__SIMDMATH_PARTS(modff4, vec_float4, vec_float4, float, modff, 4)
__SIMDMATH_PARTS(modfd2, vec_double2, vec_double2, double, modf, 2)
__SIMDMATH_PARTS(frexpf4, vec_float4, vec_int4, int, frexpf, 4)
__SIMDMATH_PARTS(frexpd2, vec_double2, vec_llong2, int, frexp, 2)
#ifndef __cplusplus
/* Programs also hand over words, which a pointer to doublewords writes high half first. */
#define __SIMDMATH_HALVES(name, call, ...)                                                         \
	({                                                                                         \
		__auto_type __parts = (name);                                                      \
		vec_llong2 __wide;                                                                 \
		vec_double2 __result = call(__VA_ARGS__, &__wide);                                 \
		if (sizeof((*__parts)[0]) == 4)                                                    \
			__wide = __wide << 32 | (__wide >> 32 & 0xffffffff);                       \
		*(vec_llong2 *)__parts = __wide;                                                   \
		__result;                                                                          \
	})
#define frexpd2(x, parts) __SIMDMATH_HALVES(parts, frexpd2, x)
#define _frexpd2(x, parts) __SIMDMATH_HALVES(parts, frexpd2, x)
#define remquod2(x, y, parts) __SIMDMATH_HALVES(parts, remquod2, x, y)
#define _remquod2(x, y, parts) __SIMDMATH_HALVES(parts, remquod2, x, y)
#endif

#include <sidecore_end.h>
#endif
