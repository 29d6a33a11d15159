/* Intrinsics of the PPE that have a meaning on this machine.
 *
 * The time base counts at the rate of the Cell's (79.8 MHz), from the system's monotonic clock, as the
 * decrementer of our SPUs does.
 */
#ifndef _PPU_INTRINSICS_H
#define _PPU_INTRINSICS_H
#include <sidecore_begin.h>

#include <stdint.h>
#include <time.h>
#include <sidecore_reserve.h>

#define __PPU_INLINE static __inline__ __attribute__((always_inline, unused))

__PPU_INLINE uint64_t __mftb(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	/* 79.8 million a second; seconds apart, so that nothing overflows. */
	return (uint64_t)now.tv_sec * 79800000u + (uint64_t)now.tv_nsec * 798u / 10000u;
}

/* Of the special registers a program may read, the time base alone has a meaning here. */
#define __mfspr(number) ((number) == 268 ? __mftb() : (number) == 269 ? __mftb() >> 32 : 0)
#define __mtspr(number, x) ((void)(x))
#define __mftbu() ((unsigned int)(__mftb() >> 32))
#define __mftbl() ((unsigned int)__mftb())

#define __sync() __sync_synchronize()
#define __lwsync() __sync_synchronize()
#define __ptesync() __sync_synchronize()
#define __eieio() __sync_synchronize()
#define __iospace_eieio() __sync_synchronize()
#define __isync() __asm__ volatile("lfence" : : : "memory")
#define __nop() __asm__ volatile("nop")
#define __cctpl() ((void)0)
#define __cctpm() ((void)0)
#define __cctph() ((void)0)
#define __db8cyc() __asm__ volatile("pause")
#define __db10cyc() __asm__ volatile("pause")
#define __db12cyc() __asm__ volatile("pause")
#define __db16cyc() __asm__ volatile("pause")

/* The cache is coherent and written back by itself. */
#define __dcbt(p) __builtin_prefetch((const void *)(p))
#define __dcbtst(p) __builtin_prefetch((const void *)(p), 1)
#define __dcbf(p) __asm__ volatile("clflush (%0)" : : "r"((const void *)(p)) : "memory")
#define __dcbst(p) __sync_synchronize()
#define __dcbt_TH1000(address, direction, unlimited, id) ((void)0)
#define __dcbt_TH1010(go, stop, units, transient, unlimited, id) ((void)0)
#define __icbi(p) ((void)(p))
#define __protected_stream_set(direction, address, id) ((void)0)
#define __protected_stream_count(count, id) ((void)0)
#define __protected_stream_go() ((void)0)
#define __protected_stream_stop(id) ((void)0)
#define __protected_stream_stop_all() ((void)0)
#define __protected_unlimited_stream_set(direction, address, id) ((void)0)

/* A line of zeros: 128 bytes on the Cell. */
__PPU_INLINE void __dcbz(void *p)
{
	__builtin_memset((void *)((uintptr_t)p & ~(uintptr_t)127), 0, 128);
}

#define __cntlzw(x) __ppu_cntlzw(x)
__PPU_INLINE unsigned int __ppu_cntlzw(unsigned int x) { return x ? __builtin_clz(x) : 32; }
#define __cntlzd(x) __ppu_cntlzd(x)
__PPU_INLINE unsigned int __ppu_cntlzd(uint64_t x) { return x ? __builtin_clzll(x) : 64; }
#define __mulhw(a, b) ((int)((int64_t)(int)(a) * (int)(b) >> 32))
#define __mulhwu(a, b) ((unsigned int)((uint64_t)(unsigned int)(a) * (unsigned int)(b) >> 32))
#ifdef __SIZEOF_INT128__
#define __mulhd(a, b) ((int64_t)((__int128)(int64_t)(a) * (int64_t)(b) >> 64))
#define __mulhdu(a, b) ((uint64_t)((unsigned __int128)(uint64_t)(a) * (uint64_t)(b) >> 64))
#endif
__PPU_INLINE unsigned int __ppu_rotl32(unsigned int x, unsigned int n)
{
	return x << (n & 31) | x >> (-n & 31);
}
__PPU_INLINE uint64_t __ppu_rotl64(uint64_t x, unsigned int n) { return x << (n & 63) | x >> (-n & 63); }
/* Bits are numbered from the most significant one; a mask that begins behind its end wraps. */
__PPU_INLINE unsigned int __ppu_mask32(unsigned int begin, unsigned int end)
{
	unsigned int head = 0xffffffffu >> begin, tail = 0xffffffffu << (31 - end);
	return begin <= end ? head & tail : head | tail;
}
__PPU_INLINE uint64_t __ppu_mask64(unsigned int begin, unsigned int end)
{
	uint64_t head = ~0ULL >> begin, tail = ~0ULL << (63 - end);
	return begin <= end ? head & tail : head | tail;
}
#define __rlwinm(x, n, b, e) (__ppu_rotl32((x), (n)) & __ppu_mask32((b), (e)))
#define __rlwnm(x, n, b, e) (__ppu_rotl32((x), (n)) & __ppu_mask32((b), (e)))
#define __rlwimi(x, y, n, b, e) (((x) & ~__ppu_mask32((b), (e))) | \
	(__ppu_rotl32((y), (n)) & __ppu_mask32((b), (e))))
#define __rldicl(x, n, b) (__ppu_rotl64((x), (n)) & __ppu_mask64((b), 63))
#define __rldicr(x, n, e) (__ppu_rotl64((x), (n)) & __ppu_mask64(0, (e)))
#define __rldic(x, n, b) (__ppu_rotl64((x), (n)) & __ppu_mask64((b), 63 - (n)))
#define __rldimi(x, y, n, b) (((x) & ~__ppu_mask64((b), 63 - (n))) | \
	(__ppu_rotl64((y), (n)) & __ppu_mask64((b), 63 - (n))))
#define __rldcl(x, n, b) __rldicl(x, n, b)
#define __rldcr(x, n, e) __rldicr(x, n, e)

/* Loads and stores with their bytes reversed. */
#define __lhbrx(p) __builtin_bswap16(*(const volatile uint16_t *)(p))
#define __lwbrx(p) __builtin_bswap32(*(const volatile uint32_t *)(p))
#define __ldbrx(p) __builtin_bswap64(*(const volatile uint64_t *)(p))
#define __sthbrx(p, x) ((void)(*(volatile uint16_t *)(p) = __builtin_bswap16(x)))
#define __stwbrx(p, x) ((void)(*(volatile uint32_t *)(p) = __builtin_bswap32(x)))
#define __stdbrx(p, x) ((void)(*(volatile uint64_t *)(p) = __builtin_bswap64(x)))

/* Reservations. */
__PPU_INLINE unsigned int __lwarx(volatile void *p)
{
	return (unsigned int)__sidecore_reserve((uintptr_t)p, 4);
}
__PPU_INLINE int __stwcx(volatile void *p, unsigned int x)
{
	return __sidecore_store((uintptr_t)p, x, 4) >> 1;
}
__PPU_INLINE uint64_t __ldarx(volatile void *p) { return __sidecore_reserve((uintptr_t)p, 8); }
__PPU_INLINE int __stdcx(volatile void *p, uint64_t x) { return __sidecore_store((uintptr_t)p, x, 8) >> 1; }

/* Floating point. */
#define __fabs(x) __builtin_fabs(x)
#define __fabsf(x) __builtin_fabsf(x)
#define __fnabs(x) (-__builtin_fabs(x))
#define __fnabsf(x) (-__builtin_fabsf(x))
#define __fmadd(a, b, c) ((a) * (b) + (c))
#define __fmadds(a, b, c) ((float)(a) * (float)(b) + (float)(c))
#define __fmsub(a, b, c) ((a) * (b) - (c))
#define __fmsubs(a, b, c) ((float)(a) * (float)(b) - (float)(c))
#define __fmul(a, b) ((a) * (b))
#define __fmuls(a, b) ((float)(a) * (float)(b))
#define __fnmadd(a, b, c) (-((a) * (b) + (c)))
#define __fnmadds(a, b, c) (-((float)(a) * (float)(b) + (float)(c)))
#define __fnmsub(a, b, c) ((c) - (a) * (b))
#define __fnmsubs(a, b, c) ((float)(c) - (float)(a) * (float)(b))
#define __fsel(c, a, b) ((c) >= 0.0 ? (a) : (b))
#define __fsels(c, a, b) ((c) >= 0.0f ? (a) : (b))
#define __fsqrt(x) __builtin_sqrt(x)
#define __fsqrts(x) __builtin_sqrtf(x)
#define __fres(x) (1.0f / (float)(x))
#define __frsqrte(x) (1.0 / __builtin_sqrt(x))
#define __fctiw(x) ((double)(int)__builtin_rint(x))
#define __fctiwz(x) ((double)(int)(x))
#define __fctid(x) __builtin_llrint(x)
#define __fctidz(x) ((long long)(x))
#define __fcfid(x) ((double)(x))
#define __frsp(x) ((float)(x))

/* The register of floats' states keeps what is written; of its fields the rounding mode has an effect. */
__attribute__((weak, visibility("hidden"))) __thread uint32_t __sidecore_fpscr;

__PPU_INLINE void __sidecore_set_fpscr(uint32_t value)
{
	/* To the nearest, to zero, up, down; here to the nearest, down, up, to zero. */
	uint32_t mode = (0 - value) & 3;
	/* Bit 2 sums up those of invalid operations. */
	__sidecore_fpscr = (value & ~0x20000000u) | (value & 0x01f80700 ? 0x20000000 : 0);
	__builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() & ~0x6000u) | mode << 13);
}

__PPU_INLINE double __mffs(void)
{
	union { uint64_t bits; double value; } out;
	out.bits = __sidecore_fpscr;
	return out.value;
}

__PPU_INLINE void __sidecore_mtfsf(unsigned int fields, double value)
{
	union { double value; uint64_t bits; } in;
	uint32_t mask = 0;
	unsigned int field;
	in.value = value;
	for (field = 0; field < 8; field++)
		if (fields >> field & 1)
			mask |= 15u << 4 * field;
	__sidecore_set_fpscr((__sidecore_fpscr & ~mask) | ((uint32_t)in.bits & mask));
}

__PPU_INLINE double __sidecore_setflm(double value)
{
	double before = __mffs();
	__sidecore_mtfsf(255, value);
	return before;
}

#define __mtfsf(mask, x) __sidecore_mtfsf((mask), (x))
#define __mtfsfi(field, x) __sidecore_set_fpscr((__sidecore_fpscr & ~(15u << (28 - 4 * (field)))) | \
	((uint32_t)(x) & 15u) << (28 - 4 * (field)))
#define __mtfsb0(bit) __sidecore_set_fpscr(__sidecore_fpscr & ~(0x80000000u >> (bit)))
#define __mtfsb1(bit) __sidecore_set_fpscr(__sidecore_fpscr | 0x80000000u >> (bit))
#define __setflm(x) __sidecore_setflm(x)

#include <sidecore_end.h>
#endif
