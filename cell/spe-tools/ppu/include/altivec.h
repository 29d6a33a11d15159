/* AltiVec for the host's code: the vector types, and names of the operations, which are macros of a second
 * preprocessing (altivec_macros.h).
 *
 * Element 0 is the first in memory, as on the PPE. Bytes within an element have this machine's order:
 * operations that count bytes translate by the element's size, which is exact where the types at hand are
 * those that the data has.
 */
#ifndef _ALTIVEC_H
#define _ALTIVEC_H
#include <sidecore_begin.h>

#include <sidecore_vector_names.h>
#include <sidecore_vector_parts.h>

/* The driver's step looks for this name. */
typedef int __sidecore_altivec_macros;

#define __ALTIVEC_INLINE static __inline__ __attribute__((always_inline, unused))

/* Sums, differences and products that saturate. */
#define __ALTIVEC_SATURATE(name, V, E, W, least, most, expression)                                 \
	__ALTIVEC_INLINE V name(V a, V b)                                                          \
	{                                                                                          \
		V r;                                                                               \
		unsigned int i;                                                                    \
		for (i = 0; i < sizeof(a) / sizeof(a[0]); i++) {                                   \
			W x = expression;                                                          \
			r[i] = (E)(x < (W)(least) ? (W)(least) : x > (W)(most) ? (W)(most) : x);   \
		}                                                                                  \
		return r;                                                                          \
	}
#define __ALTIVEC_BOTH(V, E, tag, least, most)                                                     \
	__ALTIVEC_SATURATE(__vec_adds_##tag, V, E, long long, least, most,                         \
			   (long long)a[i] + (long long)b[i])                                      \
	__ALTIVEC_SATURATE(__vec_subs_##tag, V, E, long long, least, most,                         \
			   (long long)a[i] - (long long)b[i])
__ALTIVEC_BOTH(vec_char16, signed char, sb, -128, 127)
__ALTIVEC_BOTH(vec_uchar16, unsigned char, ub, 0, 255)
__ALTIVEC_BOTH(vec_short8, short, sh, -32768, 32767)
__ALTIVEC_BOTH(vec_ushort8, unsigned short, uh, 0, 65535)
__ALTIVEC_BOTH(vec_int4, int, sw, -2147483648LL, 2147483647LL)
__ALTIVEC_BOTH(vec_uint4, unsigned int, uw, 0, 4294967295LL)

/* High parts of products, to which c is added before the sum saturates: the part alone may have 17 bits. */
__ALTIVEC_INLINE vec_short8 __vec_madds(vec_short8 a, vec_short8 b, vec_short8 c, int round)
{
	unsigned int i;
	for (i = 0; i < 8; i++) {
		int x = ((a[i] * b[i] + round) >> 15) + c[i];
		c[i] = (short)(x < -32768 ? -32768 : x > 32767 ? 32767 : x);
	}
	return c;
}

/* Two vectors into one of half the element's size. */
#define __ALTIVEC_PACK(name, V, R, E, W, least, most)                                              \
	__ALTIVEC_INLINE R name(V a, V b)                                                          \
	{                                                                                          \
		R r;                                                                               \
		unsigned int i, half = sizeof(a) / sizeof(a[0]);                                   \
		for (i = 0; i < half; i++) {                                                       \
			W x = a[i], y = b[i];                                                      \
			r[i] = (E)(x < (W)(least) ? (W)(least) : x > (W)(most) ? (W)(most) : x);   \
			r[half + i] =                                                              \
				(E)(y < (W)(least) ? (W)(least) : y > (W)(most) ? (W)(most) : y);  \
		}                                                                                  \
		return r;                                                                          \
	}
__ALTIVEC_PACK(__vec_packs_sh, vec_short8, vec_char16, signed char, int, -128, 127)
__ALTIVEC_PACK(__vec_packs_uh, vec_ushort8, vec_uchar16, unsigned char, int, 0, 255)
__ALTIVEC_PACK(__vec_packsu_sh, vec_short8, vec_uchar16, unsigned char, int, 0, 255)
__ALTIVEC_PACK(__vec_packs_sw, vec_int4, vec_short8, short, int, -32768, 32767)
__ALTIVEC_PACK(__vec_packs_uw, vec_uint4, vec_ushort8, unsigned short, unsigned int, 0, 65535)
__ALTIVEC_PACK(__vec_packsu_sw, vec_int4, vec_ushort8, unsigned short, int, 0, 65535)

__ALTIVEC_INLINE vec_uchar16 __vec_pack_h(vec_ushort8 a, vec_ushort8 b)
{
	return __builtin_shuffle((vec_uchar16)a, (vec_uchar16)b, __SPU_PLACES * 2);
}

__ALTIVEC_INLINE vec_ushort8 __vec_pack_w(vec_uint4 a, vec_uint4 b)
{
	vec_ushort8 from = {0, 2, 4, 6, 8, 10, 12, 14};
	return __builtin_shuffle((vec_ushort8)a, (vec_ushort8)b, from);
}

/* Halves of a vector into twice the element's size: from element `first` on. */
#define __ALTIVEC_UNPACK(name, V, R)                                                               \
	__ALTIVEC_INLINE R name(V a, int first)                                                    \
	{                                                                                          \
		R r;                                                                               \
		unsigned int i;                                                                    \
		for (i = 0; i < sizeof(r) / sizeof(r[0]); i++)                                     \
			r[i] = a[first + i];                                                       \
		return r;                                                                          \
	}
__ALTIVEC_UNPACK(__vec_unpack_b, vec_char16, vec_short8)
__ALTIVEC_UNPACK(__vec_unpack_h, vec_short8, vec_int4)

/* Products of bytes at even (0) and odd (1) places. */
#define __ALTIVEC_MUL(name, V, R, W)                                                               \
	__ALTIVEC_INLINE R name(V a, V b, int first)                                               \
	{                                                                                          \
		R r;                                                                               \
		unsigned int i;                                                                    \
		for (i = 0; i < sizeof(r) / sizeof(r[0]); i++)                                     \
			r[i] = (W)a[2 * i + first] * (W)b[2 * i + first];                          \
		return r;                                                                          \
	}
__ALTIVEC_MUL(__vec_mul_sb, vec_char16, vec_short8, int)
__ALTIVEC_MUL(__vec_mul_ub, vec_uchar16, vec_ushort8, unsigned int)
__ALTIVEC_MUL(__vec_mul_sh, vec_short8, vec_int4, int)
__ALTIVEC_MUL(__vec_mul_uh, vec_ushort8, vec_uint4, unsigned int)

/* Sums across, which wrap. */
#define __ALTIVEC_MSUM(name, A, B, R, W, count)                                                    \
	__ALTIVEC_INLINE R name(A a, B b, R c)                                                     \
	{                                                                                          \
		vec_uint4 sum = (vec_uint4)c;                                                      \
		int i;                                                                             \
		for (i = 0; i < 4 * count; i++)                                                    \
			sum[i / count] += (unsigned int)((W)a[i] * (W)b[i]);                       \
		return (R)sum;                                                                     \
	}
__ALTIVEC_MSUM(__vec_msum_ub, vec_uchar16, vec_uchar16, vec_uint4, unsigned int, 4)
__ALTIVEC_MSUM(__vec_msum_sb, vec_char16, vec_uchar16, vec_int4, int, 4)
__ALTIVEC_MSUM(__vec_msum_uh, vec_ushort8, vec_ushort8, vec_uint4, unsigned int, 2)
__ALTIVEC_MSUM(__vec_msum_sh, vec_short8, vec_short8, vec_int4, int, 2)

__ALTIVEC_INLINE int __vec_saturated(long long x)
{
	return x > 2147483647LL ? 2147483647 : x < -2147483648LL ? (int)0x80000000 : (int)x;
}

__ALTIVEC_INLINE vec_int4 __vec_msums_sh(vec_short8 a, vec_short8 b, vec_int4 c)
{
	int i;
	for (i = 0; i < 4; i++)
		c[i] = __vec_saturated((long long)a[2 * i] * b[2 * i] + (long long)a[2 * i + 1] * b[2 * i + 1] +
				       c[i]);
	return c;
}

__ALTIVEC_INLINE vec_uint4 __vec_msums_uh(vec_ushort8 a, vec_ushort8 b, vec_uint4 c)
{
	int i;
	for (i = 0; i < 4; i++) {
		unsigned long long sum = (unsigned long long)a[2 * i] * b[2 * i] +
					 (unsigned long long)a[2 * i + 1] * b[2 * i + 1] + c[i];
		c[i] = sum > 0xffffffffu ? 0xffffffffu : (unsigned int)sum;
	}
	return c;
}

/* Sums of the elements in each word, and a word, which saturate. */
#define __ALTIVEC_SUM4S(name, A, R, W, least, most, count)                                         \
	__ALTIVEC_INLINE R name(A a, R b)                                                          \
	{                                                                                          \
		int i, j;                                                                          \
		for (i = 0; i < 4; i++) {                                                          \
			long long x = b[i];                                                        \
			for (j = 0; j < count; j++)                                                \
				x += a[count * i + j];                                             \
			b[i] = (W)(x < (least) ? (least) : x > (most) ? (most) : x);               \
		}                                                                                  \
		return b;                                                                          \
	}
__ALTIVEC_SUM4S(__vec_sum4s_ub, vec_uchar16, vec_uint4, unsigned int, 0LL, 4294967295LL, 4)
__ALTIVEC_SUM4S(__vec_sum4s_sb, vec_char16, vec_int4, int, -2147483648LL, 2147483647LL, 4)
__ALTIVEC_SUM4S(__vec_sum4s_sh, vec_short8, vec_int4, int, -2147483648LL, 2147483647LL, 2)

/* To integers: nothing of what is no number. */
__ALTIVEC_INLINE vec_int4 __vec_cts(vec_float4 a, int n)
{
	return __spu_convts(a, n) & (vec_int4)(a == a);
}

__ALTIVEC_INLINE vec_uint4 __vec_ctu(vec_float4 a, int n)
{
	return __spu_convtu(a, n) & (vec_uint4)(a == a);
}

/* Pixels of 8, 8, 8 and 8 bits as ones of 1, 5, 5 and 5. */
__ALTIVEC_INLINE vec_ushort8 __vec_packpx(vec_uint4 a, vec_uint4 b)
{
	vec_ushort8 r;
	int i;
	for (i = 0; i < 8; i++) {
		unsigned int w = i < 4 ? a[i] : b[i - 4];
		r[i] = (unsigned short)((w >> 24 & 1) << 15 | (w >> 19 & 31) << 10 | (w >> 11 & 31) << 5 |
					(w >> 3 & 31));
	}
	return r;
}

/* Pixels of 1, 5, 5 and 5 bits from element `first` on, as words of four bytes each. */
__ALTIVEC_INLINE vec_uint4 __vec_unpack_pixels(vec_ushort8 a, int first)
{
	vec_uint4 r;
	int i;
	for (i = 0; i < 4; i++) {
		unsigned int p = a[first + i];
		r[i] = (p >> 15 ? 0xff000000u : 0) | (p >> 10 & 31) << 16 | (p >> 5 & 31) << 8 | (p & 31);
	}
	return r;
}

/* The parts of a quadword from an address on, at the left, and before it, at the right; zeros beside. Bytes
 * are counted from the most significant one of each element, in memory (wide bytes each) as in the vector.
 */
__ALTIVEC_INLINE vec_uchar16 __vec_lvlx(const void *p, unsigned int wide)
{
	unsigned int from = (__UINTPTR_TYPE__)p & 15, turn = wide - 1, i;
	const unsigned char *q = (const unsigned char *)p - from;
	vec_uchar16 r = {0};
	for (i = 0; i + from < 16; i++)
		r[i ^ turn] = q[(i + from) ^ turn];
	return r;
}

__ALTIVEC_INLINE vec_uchar16 __vec_lvrx(const void *p, unsigned int wide)
{
	unsigned int before = (__UINTPTR_TYPE__)p & 15, turn = wide - 1, i;
	const unsigned char *q = (const unsigned char *)p - before;
	vec_uchar16 r = {0};
	for (i = 0; i < before; i++)
		r[(16 - before + i) ^ turn] = q[i ^ turn];
	return r;
}

__ALTIVEC_INLINE void __vec_stvlx(vec_uchar16 a, void *p, unsigned int own, unsigned int wide)
{
	unsigned int from = (__UINTPTR_TYPE__)p & 15, i;
	unsigned char *q = (unsigned char *)p - from;
	for (i = 0; i + from < 16; i++)
		q[(i + from) ^ (wide - 1)] = a[i ^ (own - 1)];
}

__ALTIVEC_INLINE void __vec_stvrx(vec_uchar16 a, void *p, unsigned int own, unsigned int wide)
{
	unsigned int before = (__UINTPTR_TYPE__)p & 15, i;
	unsigned char *q = (unsigned char *)p - before;
	for (i = 0; i < before; i++)
		q[i ^ (wide - 1)] = a[(16 - before + i) ^ (own - 1)];
}

__ALTIVEC_INLINE vec_int4 __vec_sum2s(vec_int4 a, vec_int4 b)
{
	return (vec_int4){0, __vec_saturated((long long)a[0] + a[1] + b[1]), 0,
			  __vec_saturated((long long)a[2] + a[3] + b[3])};
}

__ALTIVEC_INLINE vec_int4 __vec_sums(vec_int4 a, vec_int4 b)
{
	return (vec_int4){0, 0, 0, __vec_saturated((long long)a[0] + a[1] + a[2] + a[3] + b[3])};
}

__ALTIVEC_INLINE vec_uint4 __vec_cmpb(vec_float4 a, vec_float4 b)
{
	return ((vec_uint4)(a <= b) ^ -1u) << 31 | (((vec_uint4)(a >= -b) ^ -1u) & 1) << 30;
}

#define __ALTIVEC_ROUND(name, call)                                                                \
	__ALTIVEC_INLINE vec_float4 name(vec_float4 a)                                             \
	{                                                                                          \
		return (vec_float4){call(a[0]), call(a[1]), call(a[2]), call(a[3])};               \
	}
__ALTIVEC_ROUND(__vec_ceil, __builtin_ceilf)
__ALTIVEC_ROUND(__vec_floor, __builtin_floorf)
__ALTIVEC_ROUND(__vec_round, __builtin_rintf)
__ALTIVEC_ROUND(__vec_trunc, __builtin_truncf)
__ALTIVEC_ROUND(__vec_expte, __builtin_exp2f)
__ALTIVEC_ROUND(__vec_loge, __builtin_log2f)

/* Patterns for data that is not aligned: bytes in memory's order. */
__ALTIVEC_INLINE vec_uchar16 __vec_lvsl(const void *p, int size)
{
	return (__SPU_PLACES + (unsigned char)((unsigned long)p & 15));
}

__ALTIVEC_INLINE vec_uchar16 __vec_lvsr(const void *p, int size)
{
	return (__SPU_PLACES + (unsigned char)(16 - ((unsigned long)p & 15)));
}

/* Bytes of two vectors by a pattern, whose numbers count as on the PPE. */
__ALTIVEC_INLINE vec_uchar16 __vec_perm(vec_uchar16 a, vec_uchar16 b, vec_uchar16 pattern, int size)
{
	return __spu_shuffle(a, b, pattern & 31, size);
}

__ALTIVEC_INLINE vec_uchar16 __vec_sld(vec_uchar16 a, vec_uchar16 b, int n, int size)
{
	return __spu_shuffle(a, b, __SPU_PLACES + (unsigned char)(n & 15), size);
}

__ALTIVEC_INLINE vec_uchar16 __vec_merge(vec_uchar16 a, vec_uchar16 b, int first, int size)
{
	vec_uchar16 from;
	int i;
	for (i = 0; i < 16; i++)
		from[i] = (i / size / 2 * size + i % size + first) | (i / size % 2 ? 16 : 0);
	return __builtin_shuffle(a, b, from);
}

#ifdef __cplusplus
template <class E, bool vector> struct __vec_loaded { typedef E type; };
template <class E> struct __vec_loaded<E, false> { typedef E type __attribute__((vector_size(16))); };
template <class E> struct __vec_bare { typedef E type; };
template <class E> struct __vec_bare<const E> { typedef E type; };
template <class E> struct __vec_bare<volatile E> { typedef E type; };
template <class P> inline typename __vec_loaded<typename __vec_bare<P>::type, sizeof(P) == 16>::type
__vec_ld(__INTPTR_TYPE__ n, P *p)
{
	typedef typename __vec_loaded<typename __vec_bare<P>::type, sizeof(P) == 16>::type T;
	return *(const T *)(((__UINTPTR_TYPE__)p + n) & ~(__UINTPTR_TYPE__)15);
}
#endif

#include <sidecore_end.h>
#endif
