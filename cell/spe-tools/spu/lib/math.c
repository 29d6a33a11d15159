/* The mathematical functions, by the x87 unit: its instructions need few bytes of the store, and their
 * 64 bits of mantissa leave room for a result that is right to the last place or nearly so. */
#include <math.h>

typedef long double wide;

#define UNARY(name, assembly)                                                                      \
	static wide name(wide x)                                                                   \
	{                                                                                          \
		__asm__(assembly : "+t"(x));                                                       \
		return x;                                                                          \
	}

UNARY(to_nearest, "frndint")
UNARY(square_root, "fsqrt")

static wide times_power(wide x, wide n)
{
	__asm__("fscale" : "+t"(x) : "u"(n));
	return x;
}

/* Rounding by the control word's two bits: 1 down, 2 up, 3 towards zero. */
static wide rounded(wide x, int mode)
{
	unsigned short old, now;
	__asm__ volatile("fnstcw %0" : "=m"(old));
	now = (old & ~0xc00) | mode << 10;
	__asm__ volatile("fldcw %0" : : "m"(now));
	__asm__ volatile("frndint" : "+t"(x));
	__asm__ volatile("fldcw %0" : : "m"(old));
	return x;
}

static wide log_by(wide factor, wide x)
{
	wide result;
	__asm__("fyl2x" : "=t"(result) : "0"(x), "u"(factor) : "st(1)");
	return result;
}

#define LOG2_E 1.442695040888963407359924681001892137L
#define LOG2_10 3.321928094887362347870319429489390176L
#define LN_2 0.693147180559945309417232121458176568L
#define LOG10_2 0.301029995663981195213738894724493027L
#define PI 3.141592653589793238462643383279502884L

/* 2^x: the integer part scales, the rest is within what the instruction takes. */
static wide power_of_2(wide x)
{
	wide whole, part;
	if (x != x)
		return x;
	if (x > 16384)
		return INFINITY;
	if (x < -16500)
		return 0;
	whole = to_nearest(x);
	part = x - whole;
	__asm__("f2xm1" : "+t"(part));
	return times_power(part + 1, whole);
}

static wide exponential(wide x)
{
	/* The product's low part, which a single multiplication drops, matters for large x. */
	wide high = to_nearest(x * LOG2_E);
	wide rest;
	if (x != x || x > 12000 || x < -12000)
		return power_of_2(x * LOG2_E);
	rest = x - high * 0.693147180369123816490L;
	rest -= high * 1.90821492927058770002e-10L;
	return times_power(power_of_2(rest * LOG2_E), high);
}

static wide wide_pow(wide x, wide y)
{
	wide whole = rounded(y, 3), size;
	int odd;
	if (y == 0 || x == 1)
		return 1;
	if (x != x || y != y)
		return x + y;
	odd = whole == y && rounded(y / 2, 3) * 2 != y;
	size = x < 0 ? -x : x;
	if (x < 0 && whole != y && size != INFINITY)
		return NAN;
	if (size == 0 || size == INFINITY) {
		wide result = (size == 0) == (y > 0) ? 0 : INFINITY;
		return odd && signbit(x) ? -result : result;
	}
	if (y == INFINITY || y == -INFINITY)
		return size == 1 ? 1 : (size > 1) == (y > 0) ? INFINITY : 0;
	if (whole == y && y >= -64 && y <= 64) {
		/* Small powers by multiplication are exact where the result is. */
		int n = y < 0 ? -(int)y : (int)y;
		wide result = 1, factor = size;
		for (; n; n >>= 1, factor *= factor)
			if (n & 1)
				result *= factor;
		if (y < 0)
			result = 1 / result;
		return odd && x < 0 ? -result : result;
	}
	size = power_of_2(y * log_by(1, size));
	return odd && x < 0 ? -size : size;
}

/* Remainders, by as many steps as the instruction needs. */
static wide remainder_to_zero(wide x, wide y)
{
	unsigned short status;
	do
		__asm__("fprem\n\tfnstsw %1" : "+t"(x), "=a"(status) : "u"(y));
	while (status & 0x400);
	return x;
}

static wide remainder_nearest(wide x, wide y)
{
	unsigned short status;
	do
		__asm__("fprem1\n\tfnstsw %1" : "+t"(x), "=a"(status) : "u"(y));
	while (status & 0x400);
	return x;
}

/* The instructions take angles below 2^63; pi to 66 bits would cost near multiples of it, so angles are
 * brought within pi by its two parts first. */
static wide reduced(wide x)
{
	wide turns;
	if (x >= -PI && x <= PI)
		return x;
	turns = to_nearest(x / (2 * PI));
	x -= turns * 6.28318530717958623199592L;
	return x - turns * 2.44929359829470641435e-16L;
}

static wide wide_sin(wide x)
{
	x = reduced(x);
	__asm__("fsin" : "+t"(x));
	return x;
}

static wide wide_cos(wide x)
{
	x = reduced(x);
	__asm__("fcos" : "+t"(x));
	return x;
}

static wide wide_tan(wide x) { return wide_sin(x) / wide_cos(x); }

static wide wide_atan2(wide y, wide x)
{
	wide result;
	__asm__("fpatan" : "=t"(result) : "0"(x), "u"(y) : "st(1)");
	return result;
}

static wide wide_asin(wide x) { return wide_atan2(x, square_root((1 - x) * (1 + x))); }
static wide wide_acos(wide x) { return wide_atan2(square_root((1 - x) * (1 + x)), x); }
static wide wide_atan(wide x) { return wide_atan2(x, 1); }

static wide wide_expm1(wide x)
{
	wide part = x * LOG2_E;
	if (part > -0.5L && part < 0.5L) {
		__asm__("f2xm1" : "+t"(part));
		return part;
	}
	return exponential(x) - 1;
}

static wide wide_log1p(wide x)
{
	wide result;
	if (x > -0.29L && x < 0.29L) {
		__asm__("fyl2xp1" : "=t"(result) : "0"(x), "u"(LN_2) : "st(1)");
		return result;
	}
	return log_by(LN_2, 1 + x);
}

static wide wide_sinh(wide x)
{
	wide e = wide_expm1(x < 0 ? -x : x);
	wide result = e > 1e30L ? e / 2 : (e + e / (e + 1)) / 2;
	return x < 0 ? -result : result;
}

static wide wide_cosh(wide x)
{
	wide e = exponential(x < 0 ? -x : x);
	return (e + 1 / e) / 2;
}

static wide wide_tanh(wide x)
{
	wide e;
	if (x > 50 || x < -50)
		return x > 0 ? 1 : -1;
	e = wide_expm1(2 * x);
	return e / (e + 2);
}

static wide wide_asinh(wide x)
{
	wide size = x < 0 ? -x : x;
	wide result = wide_log1p(size + size * size / (1 + square_root(size * size + 1)));
	return x < 0 ? -result : result;
}

static wide wide_acosh(wide x) { return log_by(LN_2, x + square_root(x * x - 1)); }
static wide wide_atanh(wide x) { return wide_log1p(2 * x / (1 - x)) / 2; }

static wide wide_cbrt(wide x)
{
	wide size = x < 0 ? -x : x, result;
	if (x == 0 || x != x || size == INFINITY)
		return x;
	result = power_of_2(log_by(1, size) / 3);
	result -= (result - size / (result * result)) / 3;
	return x < 0 ? -result : result;
}

static wide wide_hypot(wide x, wide y) { return square_root(x * x + y * y); }

/* Away from zero at halves. */
static wide wide_round(wide x)
{
	wide result = rounded(x < 0 ? -x : x, 3);
	if ((x < 0 ? -x : x) - result >= 0.5L)
		result += 1;
	return signbit(x) ? -result : result;
}

/* Lanczos' sum, g = 7, nine terms. */
static wide wide_lgamma(wide x)
{
	static const double terms[] = { 676.5203681218851, -1259.1392167224028, 771.32342877765313,
		-176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
		1.5056327351493116e-7 };
	wide sum = 0.99999999999980993227684700473478L, t;
	int each;
	if (x < 0.5L)
		return log_by(LN_2, PI / fabsl(wide_sin(PI * x))) - wide_lgamma(1 - x);
	x -= 1;
	for (each = 0; each < 8; each++)
		sum += terms[each] / (x + each + 1);
	t = x + 7.5L;
	return 0.918938533204672741780329736405617639L + (x + 0.5L) * log_by(LN_2, t) - t
		+ log_by(LN_2, sum);
}

static wide wide_tgamma(wide x)
{
	if (x < 0.5L)
		return PI / (wide_sin(PI * x) * wide_tgamma(1 - x));
	return exponential(wide_lgamma(x));
}

/* By its series, or its continued fraction where the series is long. */
static wide wide_erfc(wide x);
static wide wide_erf(wide x)
{
	wide sum = x, term = x;
	int n;
	if (x < 0)
		return -wide_erf(-x);
	if (x > 2.5L)
		return 1 - wide_erfc(x);
	for (n = 1; n < 100; n++) {
		term *= -x * x / n;
		sum += term / (2 * n + 1);
	}
	return 1.128379167095512573896158903121545172L * sum;
}

static wide wide_erfc(wide x)
{
	wide fraction = 0;
	int n;
	if (x < 2.5L)
		return 1 - wide_erf(x);
	for (n = 80; n > 0; n--)
		fraction = n / 2.0L / (x + fraction);
	return exponential(-x * x) / (x + fraction) * 0.564189583547756286948079451560772586L;
}

static wide wide_log(wide x) { return log_by(LN_2, x); }
static wide wide_log2(wide x) { return log_by(1, x); }
static wide wide_log10(wide x) { return log_by(LOG10_2, x); }
static wide wide_exp10(wide x) { return wide_pow(10, x); }
static wide wide_floor(wide x) { return rounded(x, 1); }
static wide wide_ceil(wide x) { return rounded(x, 2); }
static wide wide_trunc(wide x) { return rounded(x, 3); }

#define ONE(name, function)                                                                        \
	double name(double x) { return function(x); }                                              \
	float name##f(float x) { return function(x); }                                             \
	wide name##l(wide x) { return function(x); }
#define TWO(name, function)                                                                        \
	double name(double x, double y) { return function(x, y); }                                 \
	float name##f(float x, float y) { return function(x, y); }                                 \
	wide name##l(wide x, wide y) { return function(x, y); }

ONE(sin, wide_sin)
ONE(cos, wide_cos)
ONE(tan, wide_tan)
ONE(asin, wide_asin)
ONE(acos, wide_acos)
ONE(atan, wide_atan)
ONE(sinh, wide_sinh)
ONE(cosh, wide_cosh)
ONE(tanh, wide_tanh)
ONE(asinh, wide_asinh)
ONE(acosh, wide_acosh)
ONE(atanh, wide_atanh)
ONE(exp, exponential)
ONE(exp2, power_of_2)
ONE(exp10, wide_exp10)
ONE(expm1, wide_expm1)
ONE(log, wide_log)
ONE(log2, wide_log2)
ONE(log10, wide_log10)
ONE(log1p, wide_log1p)
ONE(cbrt, wide_cbrt)
ONE(sqrt, square_root)
ONE(floor, wide_floor)
ONE(ceil, wide_ceil)
ONE(trunc, wide_trunc)
ONE(round, wide_round)
ONE(rint, to_nearest)
ONE(nearbyint, to_nearest)
ONE(fabs, __builtin_fabsl)
ONE(erf, wide_erf)
ONE(erfc, wide_erfc)
ONE(lgamma, wide_lgamma)
ONE(tgamma, wide_tgamma)
TWO(atan2, wide_atan2)
TWO(pow, wide_pow)
TWO(fmod, remainder_to_zero)
TWO(remainder, remainder_nearest)
TWO(hypot, wide_hypot)

static wide wide_fdim(wide x, wide y) { return x > y ? x - y : x != x || y != y ? x + y : 0; }
static wide wide_fmax(wide x, wide y) { return x != x ? y : y != y ? x : x > y ? x : y; }
static wide wide_fmin(wide x, wide y) { return x != x ? y : y != y ? x : x < y ? x : y; }
TWO(fdim, wide_fdim)
TWO(fmax, wide_fmax)
TWO(fmin, wide_fmin)
TWO(copysign, __builtin_copysignl)

double fma(double x, double y, double z) { return (wide)x * y + z; }
float fmaf(float x, float y, float z) { return (double)x * y + z; }
double ldexp(double x, int n) { return times_power(x, n); }
long double ldexpl(long double x, int n) { return times_power(x, n); }
float ldexpf(float x, int n) { return times_power(x, n); }
double scalbn(double x, int n) { return times_power(x, n); }
float scalbnf(float x, int n) { return times_power(x, n); }

double frexp(double x, int *exponent)
{
	union { double value; unsigned long long bits; } view;
	view.value = x;
	*exponent = 0;
	if (x == 0 || x != x || x - x != 0)
		return x;
	if (!(view.bits >> 52 & 0x7ff)) {
		view.value = x * 18014398509481984.0; /* 2^54: no denormal any more */
		*exponent = -54;
	}
	*exponent += (int)(view.bits >> 52 & 0x7ff) - 1022;
	view.bits = (view.bits & ~(0x7ffULL << 52)) | 1022ULL << 52;
	return view.value;
}

int ilogb(double x)
{
	int exponent;
	frexp(x, &exponent);
	return exponent - 1;
}

int ilogbf(float x) { return ilogb(x); }
double logb(double x)
{
	return x == 0 ? -1 / (x * x) : x - x != 0 ? x * x : (double)ilogb(x);
}
float logbf(float x) { return logb(x); }
float frexpf(float x, int *exponent) { return frexp(x, exponent); }

double modf(double x, double *whole)
{
	*whole = trunc(x);
	return x - x != 0 ? 0 : x - *whole;
}

float modff(float x, float *whole)
{
	*whole = truncf(x);
	return x - x != 0 ? 0 : x - *whole;
}

long lrint(double x) { return (long)rint(x); }
long lrintf(float x) { return (long)rintf(x); }
long long llrint(double x) { return (long long)rint(x); }
long lround(double x) { return (long)round(x); }
long lroundf(float x) { return (long)roundf(x); }
long long llround(double x) { return (long long)round(x); }
long long llrintf(float x) { return (long long)rintf(x); }
long long llroundf(float x) { return (long long)roundf(x); }

/* The last step of the instruction leaves the quotient's low bits in the status. */
double remquo(double x, double y, int *quotient)
{
	wide rest = x;
	unsigned short status;
	int bits;
	do
		__asm__("fprem1\n\tfnstsw %1" : "+t"(rest), "=a"(status) : "u"((wide)y));
	while (status & 0x400);
	bits = (status >> 8 & 1) << 2 | (status >> 14 & 1) << 1 | (status >> 9 & 1);
	*quotient = __builtin_signbit(x) != __builtin_signbit(y) ? -bits : bits;
	return rest;
}
float remquof(float x, float y, int *quotient) { return remquo(x, y, quotient); }

/* The number beside x: one more or less of its bits, as these are ordered like the sizes. */
#define NEXT_AFTER(name, real, integer)                                                            \
	real name(real x, real y)                                                                  \
	{                                                                                          \
		union { real value; integer bits; } view;                                          \
		view.value = x;                                                                    \
		if (x != x || y != y)                                                              \
			return x + y;                                                              \
		if (x == y)                                                                        \
			return y;                                                                  \
		if (x == 0) {                                                                      \
			view.bits = 1;                                                             \
			return y > 0 ? view.value : -view.value;                                   \
		}                                                                                  \
		view.bits += (x < y) == (x > 0) ? 1 : -1;                                          \
		return view.value;                                                                 \
	}
NEXT_AFTER(nextafter, double, long long)
NEXT_AFTER(nextafterf, float, int)

void sincos(double x, double *sine, double *cosine)
{
	*sine = sin(x);
	*cosine = cos(x);
}

void sincosf(float x, float *sine, float *cosine)
{
	*sine = sinf(x);
	*cosine = cosf(x);
}

int __fpclassify(double x)
{
	return __builtin_fpclassify(FP_NAN, FP_INFINITE, FP_NORMAL, FP_SUBNORMAL, FP_ZERO, x);
}
int __fpclassifyf(float x)
{
	return __builtin_fpclassify(FP_NAN, FP_INFINITE, FP_NORMAL, FP_SUBNORMAL, FP_ZERO, x);
}
int __signbit(double x) { return __builtin_signbit(x); }
int __signbitf(float x) { return __builtin_signbitf(x); }
int __isnan(double x) { return x != x; }
int __isnanf(float x) { return x != x; }
int __isinf(double x) { return __builtin_isinf_sign(x); }
int __isinff(float x) { return __builtin_isinf_sign(x); }
int __finite(double x) { return x - x == 0; }
int __finitef(float x) { return x - x == 0; }
