/* Building blocks of both sides' vector intrinsics. */
#ifndef SIDECORE_VECTOR_PARTS_H
#define SIDECORE_VECTOR_PARTS_H
#include <sidecore_begin.h>

#include <sidecore_vector_names.h>

#define __SPU_INLINE static __inline__ __attribute__((always_inline, unused))

/* Choice of one of two expressions by a constant, types included. */
#ifdef __cplusplus
template <bool first> struct __spu_chooser {
	template <class A, class B> static inline A of(A a, B) { return a; }
};
template <> struct __spu_chooser<false> {
	template <class A, class B> static inline B of(A, B b) { return b; }
};
#endif

/* x as a vector of type T: a vector as it is, a scalar in all elements. */
#ifdef __cplusplus
template <class T, class X, bool vector> struct __spu_alike {
	static inline T of(X x) { return (T)x; }
};
template <class T, class X> struct __spu_alike<T, X, false> {
	static inline T of(X x)
	{
		T result;
		for (unsigned int each = 0; each < sizeof(T) / sizeof(result[0]); each++)
			result[each] = x;
		return result;
	}
};
template <class T> struct __spu_plain { typedef T type; };
template <class T> struct __spu_plain<const T> { typedef T type; };
template <class T, class X> inline typename __spu_plain<T>::type __spu_like_of(X x)
{
	return __spu_alike<typename __spu_plain<T>::type, X, sizeof(X) == 16>::of(x);
}
template <class X> struct __spu_of {
	typedef X type __attribute__((vector_size(16)));
};
template <class X> inline typename __spu_of<X>::type __spu_splat_of(X x)
{
	return __spu_like_of<typename __spu_of<X>::type>(x);
}
#endif

__SPU_INLINE vec_int4 __spu_mulo_s(vec_short8 a, vec_short8 b)
{
	return ((vec_int4)a >> 16) * ((vec_int4)b >> 16);
}

__SPU_INLINE vec_uint4 __spu_mulo_u(vec_ushort8 a, vec_ushort8 b)
{
	return ((vec_uint4)a >> 16) * ((vec_uint4)b >> 16);
}

__SPU_INLINE vec_int4 __spu_mule_s(vec_short8 a, vec_short8 b)
{
	return ((vec_int4)((vec_uint4)a << 16) >> 16) * ((vec_int4)((vec_uint4)b << 16) >> 16);
}

__SPU_INLINE vec_uint4 __spu_mule_u(vec_ushort8 a, vec_ushort8 b)
{
	return ((vec_uint4)a & 0xffff) * ((vec_uint4)b & 0xffff);
}

/* High halfword of a times low halfword of b, into the high half. */
__SPU_INLINE vec_int4 __spu_mulh(vec_short8 a, vec_short8 b)
{
	return (vec_int4)((((vec_uint4)a & 0xffff) * ((vec_uint4)b >> 16)) << 16);
}

__SPU_INLINE vec_short8 __spu_extend_b(vec_char16 a) { return (vec_short8)a >> 8; }
__SPU_INLINE vec_int4 __spu_extend_h(vec_short8 a) { return (vec_int4)a >> 16; }

__SPU_INLINE vec_llong2 __spu_extend_w(vec_int4 a)
{
	return (vec_llong2){a[1], a[3]};
}

__SPU_INLINE vec_double2 __spu_extend_f(vec_float4 a)
{
	return (vec_double2){a[0], a[2]};
}

__SPU_INLINE vec_float4 __spu_roundtf(vec_double2 a)
{
	return (vec_float4){(float)a[0], 0, (float)a[1], 0};
}

/* 2^n as a float; scales are at most 2^155 on the SPU, so two factors. */
__SPU_INLINE vec_float4 __spu_scaled(vec_float4 a, int n)
{
	int half = n / 2;
	vec_float4 first = (vec_float4)((vec_int4){0} + ((127 + half) << 23));
	vec_float4 second = (vec_float4)((vec_int4){0} + ((127 + n - half) << 23));
	return n ? a * first * second : a;
}

/* From integers to nearest, as AltiVec does. */
__SPU_INLINE vec_float4 __spu_convtf_s(vec_int4 a, int n)
{
	return __spu_scaled(__builtin_convertvector(a, vec_float4), -n);
}

__SPU_INLINE vec_float4 __spu_convtf_u(vec_uint4 a, int n)
{
	return __spu_scaled(__builtin_convertvector(a, vec_float4), -n);
}

/* From integers without what does not fit, as the SPU does: what was rounded up is one bit less. */
__SPU_INLINE vec_float4 __spu_cut_s(vec_int4 a, int n)
{
	vec_float4 near = __builtin_convertvector(a, vec_float4);
	vec_int4 back = __builtin_convertvector(near, vec_int4);
	/* 2^31 is behind every integer, and comes back as the least one. */
	vec_int4 up = (near > 0.0f) & ((back > a) | (back < 0)), down = (near < 0.0f) & (back < a);
	return __spu_scaled((vec_float4)((vec_int4)near + (up | down)), -n);
}

__SPU_INLINE vec_float4 __spu_cut_u(vec_uint4 a, int n)
{
	/* 24 bits from the highest one on, wherever that is: both halves are exact. */
	vec_int4 high = (vec_int4)(a >> 8) & ~(vec_int4)(a >> 31 == 0), low = (vec_int4)a & ~(vec_int4)(a >> 31 != 0);
	vec_float4 top = __builtin_convertvector(high, vec_float4) * 256.0f, rest = __spu_cut_s(low, 0);
	return __spu_scaled(top + rest, -n);
}

/* To integers both saturate. Patterns are compared: those of AltiVec's infinities and of what is no number are the
 * SPU's largest numbers. */
__SPU_INLINE vec_int4 __spu_convts(vec_float4 a, int n)
{
	vec_float4 scaled = __spu_scaled(a, n);
	vec_int4 large = (vec_int4)scaled >= 0x4f000000;
	vec_int4 result = __builtin_convertvector(scaled, vec_int4);
	return (result & ~large) | (0x7fffffff & large);
}

__SPU_INLINE vec_uint4 __spu_convtu(vec_float4 a, int n)
{
	vec_float4 scaled = __spu_scaled(a, n);
	vec_int4 high = (vec_int4)scaled >= 0x4f000000;
	vec_int4 over = (vec_int4)scaled >= 0x4f800000;
	vec_int4 positive = (vec_int4)scaled > 0;
	vec_float4 less = scaled - (vec_float4)((vec_int4)((vec_float4){0} + 2147483648.0f) & high);
	vec_int4 low = __builtin_convertvector(less, vec_int4);
	return (vec_uint4)((((low ^ (high & (int)0x80000000)) & positive) & ~over) | over);
}

/* An SPU's floats have neither infinities nor numbers below the normal ones: the reciprocal of nothing is
 * the largest number, which times nothing is nothing. */
__SPU_INLINE vec_float4 __spu_bounded(vec_float4 r, vec_float4 a, vec_uint4 sign)
{
	vec_uint4 none = (vec_uint4)(((vec_uint4)a & 0x7f800000) == 0);
	return (vec_float4)(((vec_uint4)r & ~none) | ((sign | 0x7f7fffff) & none));
}

__SPU_INLINE vec_float4 __spu_re(vec_float4 a)
{
	return __spu_bounded(1.0f / a, a, (vec_uint4)a & 0x80000000);
}

__SPU_INLINE vec_float4 __spu_rsqrte(vec_float4 a)
{
	vec_float4 size = (vec_float4)((vec_uint4)a & 0x7fffffff);
	return __spu_bounded(1.0f / __builtin_ia32_sqrtps(size), a, (vec_uint4){0, 0, 0, 0});
}

__SPU_INLINE vec_float4 __spu_quotient(vec_float4 a, vec_float4 b)
{
	vec_uint4 some = (vec_uint4)(((vec_uint4)a & 0x7f800000) != 0);
	vec_float4 r = __spu_bounded(a / b, b, ((vec_uint4)a ^ (vec_uint4)b) & 0x80000000);
	return (vec_float4)((vec_uint4)r & some);
}

__SPU_INLINE vec_uint4 __spu_genc(vec_uint4 a, vec_uint4 b) { return (vec_uint4)(a + b < a) & 1; }

__SPU_INLINE vec_uint4 __spu_gencx(vec_uint4 a, vec_uint4 b, vec_uint4 c)
{
	vec_uint4 sum = a + b;
	return ((vec_uint4)(sum < a) | (vec_uint4)(sum + (c & 1) < sum)) & 1;
}

/* 1 where nothing is borrowed. */
__SPU_INLINE vec_uint4 __spu_genb(vec_uint4 a, vec_uint4 b) { return (vec_uint4)(a >= b) & 1; }

__SPU_INLINE vec_uint4 __spu_genbx(vec_uint4 a, vec_uint4 b, vec_uint4 c)
{
	vec_uint4 borrow = 1 - (c & 1);
	return ((vec_uint4)(a > b) | ((vec_uint4)(a == b) & (vec_uint4)(borrow == 0))) & 1;
}

__SPU_INLINE vec_uchar16 __spu_absd(vec_uchar16 a, vec_uchar16 b)
{
	vec_uchar16 above = (vec_uchar16)(a > b);
	return ((a - b) & above) | ((b - a) & ~above);
}

__SPU_INLINE vec_ushort8 __spu_sumb(vec_uchar16 a, vec_uchar16 b)
{
	vec_ushort8 r = {0};
	int word;
	for (word = 0; word < 4; word++) {
		r[2 * word] = b[4 * word] + b[4 * word + 1] + b[4 * word + 2] + b[4 * word + 3];
		r[2 * word + 1] = a[4 * word] + a[4 * word + 1] + a[4 * word + 2] + a[4 * word + 3];
	}
	return r;
}

__SPU_INLINE vec_ullong2 __spu_testsv(vec_double2 a, int kinds)
{
	vec_ullong2 bits = (vec_ullong2)a, size = bits & 0x7fffffffffffffffULL, r = {0};
	int each;
	for (each = 0; each < 2; each++) {
		int negative = bits[each] >> 63, kind = 0;
		if (size[each] > 0x7ff0000000000000ULL)
			kind = 0x40;
		else if (size[each] == 0x7ff0000000000000ULL)
			kind = negative ? 0x10 : 0x20;
		else if (size[each] == 0)
			kind = negative ? 0x04 : 0x08;
		else if (size[each] < 0x0010000000000000ULL)
			kind = negative ? 0x01 : 0x02;
		r[each] = kind & kinds ? ~0ULL : 0;
	}
	return r;
}

__SPU_INLINE vec_uchar16 __spu_cntb(vec_uchar16 a)
{
	a = a - ((a >> 1) & 0x55);
	a = (a & 0x33) + ((a >> 2) & 0x33);
	return (a + (a >> 4)) & 0x0f;
}

__SPU_INLINE vec_uint4 __spu_cntlz(vec_uint4 a)
{
	vec_uint4 r;
	int each;
	for (each = 0; each < 4; each++)
		r[each] = a[each] ? __builtin_clz(a[each]) : 32;
	return r;
}

/* The least significant bit of each element; element 0 gives the highest bit. */
__SPU_INLINE vec_uint4 __spu_gather(vec_uchar16 a, int size)
{
	unsigned int bits = 0;
	int each;
	for (each = 0; each < 16; each += size)
		bits = bits << 1 | (a[each] & 1);
	return (vec_uint4){bits, 0, 0, 0};
}

__SPU_INLINE vec_uchar16 __spu_maskb(unsigned int bits)
{
	vec_uchar16 r;
	int each;
	for (each = 0; each < 16; each++)
		r[each] = bits >> (15 - each) & 1 ? 0xff : 0;
	return r;
}

__SPU_INLINE vec_ushort8 __spu_maskh(unsigned int bits)
{
	vec_ushort8 r;
	int each;
	for (each = 0; each < 8; each++)
		r[each] = bits >> (7 - each) & 1 ? 0xffff : 0;
	return r;
}

__SPU_INLINE vec_uint4 __spu_maskw(unsigned int bits)
{
	vec_uint4 place = {8, 4, 2, 1};
	return (vec_uint4)((((vec_uint4){0} + bits) & place) == place);
}

__SPU_INLINE vec_uint4 __spu_orx(vec_uint4 a)
{
	return (vec_uint4){a[0] | a[1] | a[2] | a[3], 0, 0, 0};
}

#define __SPU_PLACES ((vec_uchar16){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})

__SPU_INLINE vec_uchar16 __spu_shuffle(vec_uchar16 a, vec_uchar16 b, vec_uchar16 pattern, int size)
{
	unsigned char turn = size - 1;
	/* Byte j here is byte j ^ turn of the SPU's register, in the pattern's order and in its values. */
	vec_uchar16 own = __builtin_shuffle(pattern, __SPU_PLACES ^ turn);
	vec_uchar16 moved = __builtin_shuffle(a, b, (own & 31) ^ turn);
	vec_uchar16 special = (vec_uchar16)((vec_char16)own < 0);
	vec_uchar16 ones = (vec_uchar16)((own & 0xe0) == 0xc0);
	vec_uchar16 high = (vec_uchar16)((own & 0xe0) == 0xe0) & 0x80;
	return (moved & ~special) | ones | high;
}

__SPU_INLINE vec_uchar16 __spu_rotate_bytes(vec_uchar16 a, int n, int size)
{
	unsigned char turn = size - 1, by = n & 15;
	return __builtin_shuffle(a, (((__SPU_PLACES ^ turn) + by) & 15) ^ turn);
}

__SPU_INLINE vec_uchar16 __spu_left_bytes(vec_uchar16 a, int n, int size)
{
	unsigned char turn = size - 1, by = n & 31;
	vec_uchar16 from = (__SPU_PLACES ^ turn) + by;
	return __builtin_shuffle(a, (from & 15) ^ turn) & (vec_uchar16)(from < 16);
}

__SPU_INLINE vec_uchar16 __spu_right_bytes(vec_uchar16 a, int n, int size)
{
	unsigned char turn = size - 1, by = n & 31;
	vec_uchar16 from = (__SPU_PLACES ^ turn) - by;
	return __builtin_shuffle(a, (from & 15) ^ turn) & (vec_uchar16)(from < 16);
}

#ifdef __SIZEOF_INT128__
/* The quadword as one number, most significant byte first on the SPU. */
__SPU_INLINE unsigned __int128 __spu_number(vec_uchar16 a, int size)
{
	vec_uchar16 own = __builtin_shuffle(a, __SPU_PLACES ^ 15 ^ (unsigned char)(size - 1));
	return (unsigned __int128)((vec_ullong2)own)[1] << 64 | ((vec_ullong2)own)[0];
}

__SPU_INLINE vec_uchar16 __spu_of_number(unsigned __int128 x, int size)
{
	vec_ullong2 own = {(unsigned long long)x, (unsigned long long)(x >> 64)};
	return __builtin_shuffle((vec_uchar16)own, __SPU_PLACES ^ 15 ^ (unsigned char)(size - 1));
}

__SPU_INLINE vec_uchar16 __spu_rotate_bits(vec_uchar16 a, int n, int size)
{
	unsigned __int128 x = __spu_number(a, size);
	n &= 7;
	return n ? __spu_of_number(x << n | x >> (128 - n), size) : a;
}

__SPU_INLINE vec_uchar16 __spu_left_bits(vec_uchar16 a, int n, int size)
{
	return __spu_of_number(__spu_number(a, size) << (n & 7), size);
}

__SPU_INLINE vec_uchar16 __spu_right_bits(vec_uchar16 a, int n, int size)
{
	return __spu_of_number(__spu_number(a, size) >> (n & 7), size);
}
#endif

#include <sidecore_end.h>
#endif
