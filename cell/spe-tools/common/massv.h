/* MASS's vector functions: y[i] = f(x[i]) for *n elements; names with an s take floats. */
#ifndef _MASSV_H_
#define _MASSV_H_
#include <sidecore_begin.h>

#include <math.h>

#define __MASSV static __inline__ __attribute__((unused))
#define __MASSV_1(name, single, wide)                                                              \
	__MASSV void vs##name(float *y, const float *x, int *n)                                    \
	{                                                                                          \
		int i;                                                                             \
		for (i = 0; i < *n; i++)                                                           \
			y[i] = single(x[i]);                                                       \
	}                                                                                          \
	__MASSV void v##name(double *y, const double *x, int *n)                                   \
	{                                                                                          \
		int i;                                                                             \
		for (i = 0; i < *n; i++)                                                           \
			y[i] = wide(x[i]);                                                         \
	}
#define __MASSV_2(name, single, wide)                                                              \
	__MASSV void vs##name(float *z, const float *x, const float *y, int *n)                    \
	{                                                                                          \
		int i;                                                                             \
		for (i = 0; i < *n; i++)                                                           \
			z[i] = single;                                                             \
	}                                                                                          \
	__MASSV void v##name(double *z, const double *x, const double *y, int *n)                  \
	{                                                                                          \
		int i;                                                                             \
		for (i = 0; i < *n; i++)                                                           \
			z[i] = wide;                                                               \
	}

#define __MASSV_QUARTER(x) sqrt(sqrt(x))

__MASSV_1(acos, acosf, acos)
__MASSV_1(acosh, acoshf, acosh)
__MASSV_1(asin, asinf, asin)
__MASSV_1(asinh, asinhf, asinh)
__MASSV_1(atan, atanf, atan)
__MASSV_1(cbrt, cbrtf, cbrt)
__MASSV_1(cos, cosf, cos)
__MASSV_1(cosh, coshf, cosh)
__MASSV_1(exp, expf, exp)
__MASSV_1(expm1, expm1f, expm1)
__MASSV_1(log, logf, log)
__MASSV_1(log10, log10f, log10)
__MASSV_1(log1p, log1pf, log1p)
__MASSV_1(sin, sinf, sin)
__MASSV_1(sinh, sinhf, sinh)
__MASSV_1(sqrt, sqrtf, sqrt)
__MASSV_1(tan, tanf, tan)
__MASSV_1(tanh, tanhf, tanh)
__MASSV_1(atanh, atanhf, atanh)
__MASSV_1(rec, 1.0f /, 1.0 /)
__MASSV_1(rsqrt, 1.0f / sqrtf, 1.0 / sqrt)
__MASSV_1(rcbrt, 1.0f / cbrtf, 1.0 / cbrt)
__MASSV_1(int, truncf, trunc)
__MASSV_1(nint, roundf, round)
__MASSV_1(exp2, exp2f, exp2)
__MASSV_1(exp2m1, -1.0f + exp2f, -1.0 + exp2)
__MASSV_1(log2, log2f, log2)
__MASSV_1(log21p, 1.44269504f * log1pf, 1.44269504088896340736 * log1p)
__MASSV_1(erf, erff, erf)
__MASSV_1(erfc, erfcf, erfc)
__MASSV_1(lgamma, lgammaf, lgamma)
__MASSV_1(qdrt, (float)__MASSV_QUARTER, __MASSV_QUARTER)
__MASSV_1(rqdrt, (float)1.0 / __MASSV_QUARTER, 1.0 / __MASSV_QUARTER)
__MASSV_2(div, x[i] / y[i], x[i] / y[i])
__MASSV_2(pow, powf(x[i], y[i]), pow(x[i], y[i]))
__MASSV_2(atan2, atan2f(x[i], y[i]), atan2(x[i], y[i]))
__MASSV_2(hypot, hypotf(x[i], y[i]), hypot(x[i], y[i]))
#define vdint vint
#define vdnint vnint

__MASSV void vssincos(float *s, float *c, const float *x, int *n)
{
	int i;
	for (i = 0; i < *n; i++) {
		s[i] = sinf(x[i]);
		c[i] = cosf(x[i]);
	}
}
__MASSV void vsincos(double *s, double *c, const double *x, int *n)
{
	int i;
	for (i = 0; i < *n; i++) {
		s[i] = sin(x[i]);
		c[i] = cos(x[i]);
	}
}

/* Cosine and sine as pairs, as complex numbers have them. */
__MASSV void vscosisin(float *y, const float *x, int *n)
{
	int i;
	for (i = 0; i < *n; i++) {
		y[2 * i] = cosf(x[i]);
		y[2 * i + 1] = sinf(x[i]);
	}
}
__MASSV void vcosisin(double *y, const double *x, int *n)
{
	int i;
	for (i = 0; i < *n; i++) {
		y[2 * i] = cos(x[i]);
		y[2 * i + 1] = sin(x[i]);
	}
}

#include <sidecore_end.h>
#endif
