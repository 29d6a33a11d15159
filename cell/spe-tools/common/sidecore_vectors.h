/* The vector types that the drivers put in the place of `vector float` and its like. */
#ifndef SIDECORE_VECTORS_H
#define SIDECORE_VECTORS_H
#ifndef __ASSEMBLER__

typedef signed char __spe_vec_char16 __attribute__((vector_size(16)));
typedef unsigned char __spe_vec_uchar16 __attribute__((vector_size(16)));
typedef short __spe_vec_short8 __attribute__((vector_size(16)));
typedef unsigned short __spe_vec_ushort8 __attribute__((vector_size(16)));
typedef int __spe_vec_int4 __attribute__((vector_size(16)));
typedef unsigned int __spe_vec_uint4 __attribute__((vector_size(16)));
typedef long long __spe_vec_llong2 __attribute__((vector_size(16)));
typedef unsigned long long __spe_vec_ullong2 __attribute__((vector_size(16)));
typedef float __spe_vec_float4 __attribute__((vector_size(16)));
typedef double __spe_vec_double2 __attribute__((vector_size(16)));

/* Bytes in the order that elements of another size have: byte k goes to place k ^ turn. */
static __inline__ __attribute__((always_inline, unused)) __spe_vec_uchar16 __spe_turned(__spe_vec_uchar16 a,
	unsigned char turn)
{
	__spe_vec_uchar16 places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
	return __builtin_shuffle(a, places ^ turn);
}

#ifdef __cplusplus
template <class T, class X> static inline T __spe_lane_by(X x, bool plain)
{
	const unsigned char turn = (sizeof(x[0]) - 1) ^ (sizeof((*(T *)0)[0]) - 1);
	return plain || turn == 0 ? (T)x : (T)__spe_turned((__spe_vec_uchar16)x, turn);
}
template <class T, class X> static inline T __spe_lane(X x) { return __spe_lane_by<T>(x, false); }
template <class X> static inline bool __spe_lane_floats(X x)
{
	return (__typeof__(+x[0]))0.5 != 0;
}
template <class T, class X> static inline T __spe_lane_loaded(X x)
{
	return __spe_lane_by<T>(x, sizeof(x[0]) < sizeof((*(T *)0)[0]) && __spe_lane_floats(T()));
}
template <class T, class X> static inline T __spe_lane_stored(X x)
{
	return __spe_lane_by<T>(x, sizeof(x[0]) > sizeof((*(T *)0)[0]) && __spe_lane_floats(x));
}
template <int bytes> struct __spe_bytes { char each[bytes]; };
template <class P> static inline __spe_bytes<1> __spe_width(const P *);
#define __SPE_WIDTH(V, bytes) static inline __spe_bytes<bytes> __spe_width(const __spe_vec_##V *);
__SPE_WIDTH(short8, 2) __SPE_WIDTH(ushort8, 2) __SPE_WIDTH(int4, 4) __SPE_WIDTH(uint4, 4)
__SPE_WIDTH(float4, 4) __SPE_WIDTH(llong2, 8) __SPE_WIDTH(ullong2, 8) __SPE_WIDTH(double2, 8)
#undef __SPE_WIDTH
#endif

/* Effective addresses have 64 bits; a pointer that is declared with __ea has 32 here. */
#if defined(__SPU__) && !defined(__cplusplus)
#define __ea
#endif

#endif
#endif
