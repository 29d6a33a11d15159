/* The SDK's libmpm: unsigned whole numbers of many quadwords. The first element of the first quadword is
 * the most significant word; sizes count quadwords.
 *
 * Each function takes its operands apart into words, least first, before it writes a result: results may
 * lie where operands lie. Windows (k), Barrett's quotient (u) and Montgomery's factors (p, a, u) that
 * callers hand in change the SDK's speed alone, so they are not looked at.
 */
#ifndef SIDECORE_MPM_H
#define SIDECORE_MPM_H
#include <sidecore_begin.h>

#include <sidecore_vector_names.h>
/* Programs count on it. */
#ifdef __SPU__
#include <spu_intrinsics.h>
#endif

#ifndef MPM_MAX_SIZE
#define MPM_MAX_SIZE 32
#endif
#ifndef MPM_MOD_EXP_MAX_K
#define MPM_MOD_EXP_MAX_K 6
#endif

#define __MPM static __attribute__((unused))
typedef unsigned int __mpm_word;
typedef unsigned long long __mpm_wide;
/* Words of a number of so many quadwords; one more, since an array has at least one. */
#define __MPM_WORDS(name, size) __mpm_word name[4 * (size) + 1]

__MPM void __mpm_take(__mpm_word *to, const vec_uint4 *from, int size)
{
	int i;
	for (i = 0; i < 4 * size; i++)
		to[i] = from[size - 1 - i / 4][3 - i % 4];
}
/* The low quadwords of a number of `words` words. */
__MPM void __mpm_give(vec_uint4 *to, int size, const __mpm_word *from, int words)
{
	int i;
	for (i = 0; i < 4 * size; i++)
		to[size - 1 - i / 4][3 - i % 4] = i < words ? from[i] : 0;
}
__MPM int __mpm_length(const __mpm_word *a, int words)
{
	while (words > 0 && !a[words - 1])
		words--;
	return words;
}
__MPM int __mpm_order(const __mpm_word *a, int as, const __mpm_word *b, int bs)
{
	as = __mpm_length(a, as);
	bs = __mpm_length(b, bs);
	if (as != bs)
		return as < bs ? -1 : 1;
	while (as-- > 0)
		if (a[as] != b[as])
			return a[as] < b[as] ? -1 : 1;
	return 0;
}
/* s = a + b in `words` words; the carry. */
__MPM __mpm_word __mpm_sum(__mpm_word *s, const __mpm_word *a, const __mpm_word *b, int words)
{
	__mpm_wide carry = 0;
	int i;
	for (i = 0; i < words; i++) {
		carry += (__mpm_wide)a[i] + b[i];
		s[i] = (__mpm_word)carry;
		carry >>= 32;
	}
	return (__mpm_word)carry;
}
/* s = a - b in `words` words; the borrow. */
__MPM __mpm_word __mpm_less(__mpm_word *s, const __mpm_word *a, const __mpm_word *b, int words)
{
	__mpm_word borrow = 0;
	int i;
	for (i = 0; i < words; i++) {
		__mpm_wide x = (__mpm_wide)a[i] - b[i] - borrow;
		s[i] = (__mpm_word)x;
		borrow = (__mpm_word)(x >> 32) & 1;
	}
	return borrow;
}
/* p = a * b in as + bs words; p is neither. */
__MPM void __mpm_times(__mpm_word *p, const __mpm_word *a, int as, const __mpm_word *b, int bs)
{
	int i, j;
	for (i = 0; i < as + bs; i++)
		p[i] = 0;
	for (i = 0; i < as; i++) {
		__mpm_wide carry = 0;
		for (j = 0; j < bs; j++) {
			carry += (__mpm_wide)a[i] * b[j] + p[i + j];
			p[i + j] = (__mpm_word)carry;
			carry >>= 32;
		}
		p[i + bs] = (__mpm_word)carry;
	}
}
/* a / b: quotient of as words, remainder of bs words; either may be null. Knuth's algorithm D. Nothing
 * is divided by 0: the remainder is 0 then, and so is the quotient. */
__MPM void __mpm_share(__mpm_word *q, __mpm_word *r, const __mpm_word *a, int as, const __mpm_word *b, int bs)
{
	__mpm_word u[as + 2], v[bs + 1];
	int n = __mpm_length(b, bs), m = __mpm_length(a, as), shift, i, j;
	for (i = 0; q && i < as; i++)
		q[i] = 0;
	for (i = 0; r && i < bs; i++)
		r[i] = n && n > m && i < m ? a[i] : 0;
	if (!n || n > m)
		return;
	shift = __builtin_clz(b[n - 1]);
	for (i = 0; i < n; i++)
		v[i] = b[i] << shift | (i && shift ? b[i - 1] >> (32 - shift) : 0);
	u[m] = shift ? a[m - 1] >> (32 - shift) : 0;
	for (i = 0; i < m; i++)
		u[i] = a[i] << shift | (i && shift ? a[i - 1] >> (32 - shift) : 0);
	for (j = m - n; j >= 0; j--) {
		__mpm_wide top = (__mpm_wide)u[j + n] << 32 | u[j + n - 1];
		__mpm_wide guess = top / v[n - 1], rest = top % v[n - 1], carry = 0;
		__mpm_word borrow = 0;
		while (guess >> 32 || (n > 1 && guess * v[n - 2] > (rest << 32 | u[j + n - 2]))) {
			guess--;
			rest += v[n - 1];
			if (rest >> 32)
				break;
		}
		for (i = 0; i < n; i++) {
			__mpm_wide x;
			carry += guess * v[i];
			x = (__mpm_wide)u[i + j] - (__mpm_word)carry - borrow;
			u[i + j] = (__mpm_word)x;
			borrow = (__mpm_word)(x >> 32) & 1;
			carry >>= 32;
		}
		if ((__mpm_wide)u[j + n] < carry + borrow) {
			/* One too many. */
			guess--;
			u[j + n] += __mpm_sum(u + j, u + j, v, n);
		}
		u[j + n] -= (__mpm_word)carry + borrow;
		if (q)
			q[j] = (__mpm_word)guess;
	}
	for (i = 0; r && i < n; i++)
		r[i] = u[i] >> shift | (shift ? (__mpm_word)((__mpm_wide)u[i + 1] << (32 - shift)) : 0);
}
/* c = b to the power e, modulo m, in ms words. */
__MPM void __mpm_power(__mpm_word *c, const __mpm_word *b, int bs, const __mpm_word *e, int es,
	const __mpm_word *m, int ms)
{
	__mpm_word base[ms + 1], product[2 * ms + 1], one = 1;
	int bit = 32 * __mpm_length(e, es);
	__mpm_share(0, base, b, bs, m, ms);
	__mpm_share(0, c, &one, 1, m, ms);
	while (bit-- > 0) {
		__mpm_times(product, c, ms, c, ms);
		__mpm_share(0, c, product, 2 * ms, m, ms);
		if (e[bit / 32] >> bit % 32 & 1) {
			__mpm_times(product, c, ms, base, ms);
			__mpm_share(0, c, product, 2 * ms, m, ms);
		}
	}
}

/* Sums and differences. */

__MPM vec_uint4 _mpm_add(vec_uint4 *s, vec_uint4 *a, vec_uint4 *b, int size)
{
	__MPM_WORDS(x, size);
	__MPM_WORDS(y, size);
	vec_uint4 carry = { 0, 0, 0, 0 };
	__mpm_take(x, a, size);
	__mpm_take(y, b, size);
	carry[3] = __mpm_sum(x, x, y, 4 * size);
	__mpm_give(s, size, x, 4 * size);
	return carry;
}
__MPM int _mpm_add2(vec_uint4 *s, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	int size = a_size > b_size ? a_size : b_size, i;
	__MPM_WORDS(x, size);
	__MPM_WORDS(y, size);
	for (i = 0; i < 4 * size; i++)
		x[i] = y[i] = 0;
	__mpm_take(x, a, a_size);
	__mpm_take(y, b, b_size);
	x[4 * size] = __mpm_sum(x, x, y, 4 * size);
	size += x[4 * size];
	__mpm_give(s, size, x, 4 * (a_size > b_size ? a_size : b_size) + 1);
	return size;
}
__MPM void _mpm_add3(vec_uint4 *s, int s_size, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	int size = a_size > b_size ? a_size : b_size;
	vec_uint4 sum[size + 1];
	int got = _mpm_add2(sum, a, a_size, b, b_size), i;
	for (i = 0; i < s_size; i++)
		s[s_size - 1 - i] = i < got ? sum[got - 1 - i] : (vec_uint4){ 0, 0, 0, 0 };
}
/* Word by word: the carries are counted in c. */
__MPM void _mpm_add_partial(vec_uint4 *s, vec_uint4 *a, vec_uint4 *b, vec_uint4 *c, int size)
{
	int i;
	for (i = 0; i < size; i++) {
		vec_uint4 sum = a[i] + b[i];
		c[i] -= (vec_uint4)(sum < b[i]);
		s[i] = sum;
	}
}
/* Returns 1 in the last word where nothing was borrowed. */
__MPM vec_uint4 _mpm_sub(vec_uint4 *s, vec_uint4 *a, vec_uint4 *b, int size)
{
	__MPM_WORDS(x, size);
	__MPM_WORDS(y, size);
	vec_uint4 kept = { 0, 0, 0, 0 };
	__mpm_take(x, a, size);
	__mpm_take(y, b, size);
	kept[3] = !__mpm_less(x, x, y, 4 * size);
	__mpm_give(s, size, x, 4 * size);
	return kept;
}
__MPM void _mpm_sub2(vec_uint4 *s, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	int size = a_size > b_size ? a_size : b_size, i;
	__MPM_WORDS(x, size);
	__MPM_WORDS(y, size);
	for (i = 0; i < 4 * size; i++)
		x[i] = y[i] = 0;
	__mpm_take(x, a, a_size);
	__mpm_take(y, b, b_size);
	__mpm_less(x, x, y, 4 * size);
	__mpm_give(s, a_size, x, 4 * size);
}
__MPM void _mpm_neg(vec_uint4 *n, vec_uint4 *a, int size)
{
	__MPM_WORDS(x, size);
	__MPM_WORDS(zero, size);
	int i;
	for (i = 0; i < 4 * size; i++)
		zero[i] = 0;
	__mpm_take(x, a, size);
	__mpm_less(x, zero, x, 4 * size);
	__mpm_give(n, size, x, 4 * size);
}
__MPM void _mpm_abs(vec_uint4 *a, int size)
{
	if (a[0][0] >> 31)
		_mpm_neg(a, a, size);
}
/* Quadwords without those at the begin that are 0. */
__MPM int _mpm_sizeof(vec_uint4 *a, int size)
{
	int i;
	for (i = 0; i < size; i++)
		if (a[i][0] | a[i][1] | a[i][2] | a[i][3])
			return size - i;
	return 0;
}
/* All bytes in the other order. */
__MPM void _mpm_swap_endian(vec_uint4 *a, int size)
{
	__MPM_WORDS(x, size);
	int i;
	__mpm_take(x, a, size);
	for (i = 0; i < 2 * size; i++) {
		__mpm_word low = x[i];
		x[i] = __builtin_bswap32(x[4 * size - 1 - i]);
		x[4 * size - 1 - i] = __builtin_bswap32(low);
	}
	__mpm_give(a, size, x, 4 * size);
}

/* Comparisons: all bits set where they hold. */

__MPM int __mpm_compared(const vec_uint4 *a, int a_size, const vec_uint4 *b, int b_size)
{
	__MPM_WORDS(x, a_size);
	__MPM_WORDS(y, b_size);
	__mpm_take(x, a, a_size);
	__mpm_take(y, b, b_size);
	return __mpm_order(x, 4 * a_size, y, 4 * b_size);
}
__MPM unsigned int _mpm_cmpeq2(vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	return __mpm_compared(a, a_size, b, b_size) == 0 ? 0xffffffffu : 0;
}
__MPM unsigned int _mpm_cmpge2(vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	return __mpm_compared(a, a_size, b, b_size) >= 0 ? 0xffffffffu : 0;
}
__MPM unsigned int _mpm_cmpgt2(vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	return __mpm_compared(a, a_size, b, b_size) > 0 ? 0xffffffffu : 0;
}
__MPM unsigned int _mpm_cmpeq(vec_uint4 *a, vec_uint4 *b, int size) { return _mpm_cmpeq2(a, size, b, size); }
__MPM unsigned int _mpm_cmpge(vec_uint4 *a, vec_uint4 *b, int size) { return _mpm_cmpge2(a, size, b, size); }
__MPM unsigned int _mpm_cmpgt(vec_uint4 *a, vec_uint4 *b, int size) { return _mpm_cmpgt2(a, size, b, size); }

/* Products and quotients. */

__MPM void _mpm_madd(vec_uint4 *d, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size, vec_uint4 *c, int c_size)
{
	int size = a_size + b_size, i;
	__MPM_WORDS(x, a_size);
	__MPM_WORDS(y, b_size);
	__MPM_WORDS(z, c_size > size ? c_size : size);
	__MPM_WORDS(p, size);
	__mpm_take(x, a, a_size);
	__mpm_take(y, b, b_size);
	for (i = 0; i < 4 * size; i++)
		z[i] = 0;
	__mpm_take(z, c, c_size);
	__mpm_times(p, x, 4 * a_size, y, 4 * b_size);
	__mpm_sum(p, p, z, 4 * size);
	__mpm_give(d, size, p, 4 * size);
}
__MPM void _mpm_mul(vec_uint4 *p, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	vec_uint4 zero = { 0, 0, 0, 0 };
	_mpm_madd(p, a, a_size, b, b_size, &zero, 1);
}
__MPM void _mpm_square(vec_uint4 *s, vec_uint4 *a, int size) { _mpm_mul(s, a, size, a, size); }
/* Either result may be null. */
__MPM void __mpm_divided(vec_uint4 *q, vec_uint4 *r, const vec_uint4 *a, int a_size, const vec_uint4 *b,
	int b_size)
{
	__MPM_WORDS(x, a_size);
	__MPM_WORDS(y, b_size);
	__MPM_WORDS(quotient, a_size);
	__MPM_WORDS(rest, b_size);
	__mpm_take(x, a, a_size);
	__mpm_take(y, b, b_size);
	__mpm_share(quotient, rest, x, 4 * a_size, y, 4 * b_size);
	if (q)
		__mpm_give(q, a_size, quotient, 4 * a_size);
	if (r)
		__mpm_give(r, b_size, rest, 4 * b_size);
}
__MPM void _mpm_div(vec_uint4 *q, vec_uint4 *r, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	__mpm_divided(q, r, a, a_size, b, b_size);
}
__MPM void _mpm_div2(vec_uint4 *q, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	__mpm_divided(q, 0, a, a_size, b, b_size);
}
__MPM void _mpm_mod(vec_uint4 *m, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	__mpm_divided(0, m, a, a_size, b, b_size);
}
__MPM void _mpm_fixed_mod_reduction(vec_uint4 *r, const vec_uint4 *a, const vec_uint4 *m, const vec_uint4 *u,
	int n)
{
	(void)u;
	__mpm_divided(0, r, a, 2 * n, m, n);
}
__MPM void _mpm_gcd(vec_uint4 *g, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	int words = 4 * (a_size > b_size ? a_size : b_size), i;
	__mpm_word x[words + 1], y[words + 1], rest[words + 1];
	for (i = 0; i < words; i++)
		x[i] = y[i] = 0;
	__mpm_take(x, a, a_size);
	__mpm_take(y, b, b_size);
	while (__mpm_length(y, words)) {
		__mpm_share(0, rest, x, words, y, words);
		for (i = 0; i < words; i++) {
			x[i] = y[i];
			y[i] = rest[i];
		}
	}
	__mpm_give(g, b_size, x, words);
}

/* Powers and inverses of residues. */

__MPM void __mpm_powered(vec_uint4 *c, const vec_uint4 *b, int b_size, const vec_uint4 *e, int e_size,
	const vec_uint4 *m, int m_size)
{
	__MPM_WORDS(base, b_size);
	__MPM_WORDS(exponent, e_size);
	__MPM_WORDS(modulus, m_size);
	__MPM_WORDS(power, m_size);
	__mpm_take(base, b, b_size);
	__mpm_take(exponent, e, e_size);
	__mpm_take(modulus, m, m_size);
	__mpm_power(power, base, 4 * b_size, exponent, 4 * e_size, modulus, 4 * m_size);
	__mpm_give(c, m_size, power, 4 * m_size);
}
__MPM void _mpm_mod_exp(vec_uint4 *c, const vec_uint4 *b, const vec_uint4 *e, int e_size, const vec_uint4 *m,
	int m_size, int k)
{
	(void)k;
	__mpm_powered(c, b, m_size, e, e_size, m, m_size);
}
__MPM void _mpm_mod_exp2(vec_uint4 *c, const vec_uint4 *b, const vec_uint4 *e, int e_size, const vec_uint4 *m,
	int m_size, int k, const vec_uint4 *u)
{
	(void)k;
	(void)u;
	__mpm_powered(c, b, m_size, e, e_size, m, m_size);
}
__MPM void _mpm_mod_exp3(vec_uint4 *c, const vec_uint4 *b, int b_size, const vec_uint4 *e, int e_size,
	const vec_uint4 *m, int m_size, const vec_uint4 *u)
{
	(void)u;
	__mpm_powered(c, b, b_size, e, e_size, m, m_size);
}
__MPM void _mpm_mont_mod_exp(vec_uint4 *c, const vec_uint4 *b, const vec_uint4 *e, int e_size,
	const vec_uint4 *m, int m_size, int k)
{
	(void)k;
	__mpm_powered(c, b, m_size, e, e_size, m, m_size);
}
__MPM void _mpm_mont_mod_exp2(vec_uint4 *c, const vec_uint4 *b, const vec_uint4 *e, int e_size,
	const vec_uint4 *m, int m_size, int k, vec_uint4 p, const vec_uint4 *a, const vec_uint4 *u)
{
	(void)k;
	(void)p;
	(void)a;
	(void)u;
	__mpm_powered(c, b, m_size, e, e_size, m, m_size);
}
__MPM void _mpm_mont_mod_exp3(vec_uint4 *c, const vec_uint4 *b, int b_size, const vec_uint4 *e, int e_size,
	const vec_uint4 *m, int m_size)
{
	__mpm_powered(c, b, b_size, e, e_size, m, m_size);
}
/* mi * b = 1 modulo a, by Euclid's algorithm: 1, or 0 where there is none. */
__MPM int _mpm_mul_inv2(vec_uint4 *mi, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	int words = 4 * (a_size > b_size ? a_size : b_size), i;
	__mpm_word modulus[words + 1], x[words + 1], y[words + 1], q[words + 1], rest[words + 1];
	/* x = s * b and y = t * b, modulo a. */
	__mpm_word s[words + 1], t[words + 1], next[2 * words + 1], reduced[words + 1], one = 1;
	for (i = 0; i < words; i++)
		modulus[i] = y[i] = s[i] = t[i] = 0;
	__mpm_take(modulus, a, a_size);
	__mpm_take(y, b, b_size);
	for (i = 0; i < words; i++)
		x[i] = modulus[i];
	t[0] = 1;
	while (__mpm_length(y, words)) {
		__mpm_share(q, rest, x, words, y, words);
		__mpm_times(next, q, words, t, words);
		__mpm_share(0, reduced, next, 2 * words, modulus, words);
		/* s - q * t, where that is negative with the modulus added. */
		if (__mpm_less(next, s, reduced, words))
			__mpm_sum(next, next, modulus, words);
		for (i = 0; i < words; i++) {
			x[i] = y[i];
			y[i] = rest[i];
			s[i] = t[i];
			t[i] = next[i];
		}
	}
	if (__mpm_order(x, words, &one, 1))
		return 0;
	__mpm_give(mi, a_size, s, words);
	return 1;
}
__MPM int _mpm_mul_inv3(vec_uint4 *mi, vec_uint4 *a, int a_size, vec_uint4 *b, int b_size)
{
	return _mpm_mul_inv2(mi, a, a_size, b, b_size);
}
__MPM int _mpm_mul_inv(vec_uint4 *mi, vec_uint4 *a, vec_uint4 *b, int size)
{
	return _mpm_mul_inv2(mi, a, size, b, size);
}
/* c = a * b / 2^(128 * size), modulo m: each step makes the lowest word 0 by multiples of m and drops it. */
__MPM void _mpm_mont_mod_mul(vec_uint4 *c, const vec_uint4 *a, const vec_uint4 *b, const vec_uint4 *m, int size,
	vec_uint4 p)
{
	int words = 4 * size, i, j;
	__mpm_word x[words + 1], y[words + 1], n[words + 1], t[2 * words + 2];
	__mpm_take(x, a, size);
	__mpm_take(y, b, size);
	__mpm_take(n, m, size);
	__mpm_times(t, x, words, y, words);
	t[2 * words] = 0;
	for (i = 0; i < words; i++) {
		/* p's last word times the modulus's is -1. */
		__mpm_word factor = t[i] * p[3];
		__mpm_wide carry = 0;
		for (j = 0; j < words; j++) {
			carry += (__mpm_wide)factor * n[j] + t[i + j];
			t[i + j] = (__mpm_word)carry;
			carry >>= 32;
		}
		for (j = i + words; carry && j <= 2 * words; j++) {
			carry += t[j];
			t[j] = (__mpm_word)carry;
			carry >>= 32;
		}
	}
	if (t[2 * words] || __mpm_order(t + words, words, n, words) >= 0)
		__mpm_less(t + words, t + words, n, words);
	__mpm_give(c, size, t + words, words);
}

#include <sidecore_end.h>
#endif
