/* What asm statements of the PowerPC become: src/assembly of the drivers writes calls of these.
 *
 * Included by the drivers into source that is preprocessed already, so it includes nothing of the system's, and its
 * names are nobody's. Source that has ppu_intrinsics.h has the reservations already; then SIDECORE_RESERVE_H is
 * defined.
 */
#ifndef SIDECORE_POWERPC_H
#define SIDECORE_POWERPC_H
#pragma GCC system_header
#include "sidecore_reserve.h"

typedef unsigned char __attribute__((may_alias)) __sidecore_u8;
typedef unsigned short __attribute__((may_alias)) __sidecore_u16;
typedef short __attribute__((may_alias)) __sidecore_s16;
typedef unsigned int __attribute__((may_alias)) __sidecore_u32;
typedef int __attribute__((may_alias)) __sidecore_s32;
typedef unsigned long long __attribute__((may_alias)) __sidecore_u64;
typedef float __attribute__((may_alias)) __sidecore_f32;
typedef double __attribute__((may_alias)) __sidecore_f64;

#define __SIDECORE_INLINE static __inline__ __attribute__((always_inline, unused))
#define __sidecore_at(type, address) (*(volatile __sidecore_##type *)(unsigned long)(address))
#define __sidecore_compare(a, b) ((a) < (b) ? 8u : (a) > (b) ? 4u : 2u)
#define __sidecore_order(a, b) ((a) < (b) ? 8u : (a) > (b) ? 4u : (a) == (b) ? 2u : 1u)

/* A register's 64 bits of an operand: integers keep their value, as the PowerPC's calls do. */
#ifdef __cplusplus
template <class T> __SIDECORE_INLINE unsigned long long __sidecore_in(T x) { return (unsigned long long)x; }
template <class T> __SIDECORE_INLINE unsigned long long __sidecore_in(T *x) { return (unsigned long)x; }
#else
#define __sidecore_in(x) __extension__({ \
	__typeof__((x) + 0) __sidecore_x = (x); \
	unsigned long long __sidecore_bits = 0; \
	__builtin_memcpy(&__sidecore_bits, &__sidecore_x, sizeof __sidecore_x < 8 ? sizeof __sidecore_x : 8); \
	_Generic(__sidecore_x, int: (unsigned long long)(int)__sidecore_bits, \
		long: (unsigned long long)(long)__sidecore_bits, default: __sidecore_bits); })
#endif
/* Back into an operand: the register's last bytes. */
#define __sidecore_out(x, bits) __extension__({ \
	__typeof__(x) __sidecore_x; \
	__builtin_memcpy((void *)&__sidecore_x, &bits, sizeof __sidecore_x < 8 ? sizeof __sidecore_x : 8); \
	x = __sidecore_x; })

/* Bits are numbered from the most significant one; a mask that begins behind its end wraps. */
__SIDECORE_INLINE unsigned int __sidecore_mask32(unsigned int begin, unsigned int end)
{
	unsigned int head = 0xffffffffu >> (begin & 31), tail = 0xffffffffu << (31 - (end & 31));
	return begin <= end ? head & tail : head | tail;
}
__SIDECORE_INLINE unsigned long long __sidecore_mask64(unsigned int begin, unsigned int end)
{
	unsigned long long head = ~0ULL >> (begin & 63), tail = ~0ULL << (63 - (end & 63));
	return begin <= end ? head & tail : head | tail;
}
__SIDECORE_INLINE unsigned int __sidecore_turn32(unsigned int x, unsigned int n)
{
	return x << (n & 31) | x >> (-n & 31);
}
__SIDECORE_INLINE unsigned long long __sidecore_turn64(unsigned long long x, unsigned int n)
{
	return x << (n & 63) | x >> (-n & 63);
}
__SIDECORE_INLINE unsigned long long __sidecore_put(unsigned long long old, unsigned long long x,
	unsigned long long mask)
{
	return (old & ~mask) | (x & mask);
}

/* A sum whose carry leaves a register of the host's width. */
__SIDECORE_INLINE unsigned long long __sidecore_sum(unsigned long long a, unsigned long long b, unsigned int in,
	unsigned int *carry)
{
	unsigned long long x = a + b + in;
	if (sizeof(long) == 4) {
		unsigned long long low = (a & 0xffffffffu) + (b & 0xffffffffu) + in;
		*carry = (unsigned int)(low >> 32);
	} else {
		*carry = x < a || (in && x == a);
	}
	return x;
}

/* The time base: of this machine's counter a 32nd, which is about as fast as the Cell's 79.8 MHz. */
__SIDECORE_INLINE unsigned long long __sidecore_time(void) { return __builtin_ia32_rdtsc() >> 5; }

#endif
