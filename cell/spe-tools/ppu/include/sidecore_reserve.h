/* Reservations of the PowerPC's lwarx and ldarx, for ppu_intrinsics.h and sidecore_powerpc.h.
 *
 * A reservation holds until another stwcx. or stdcx. of this program stored to its line of 128 bytes, or to one that
 * shares its place in the table, so that lists whose items come back are safe; a plain store, or one of an SPU's, ends
 * it where it changed the value, which is compared as well.
 */
#ifndef SIDECORE_RESERVE_H
#define SIDECORE_RESERVE_H
#define __SIDECORE_RESERVE static __inline__ __attribute__((always_inline, unused))

/* Lines of the cache that words may be reserved in. */
struct __sidecore_line {
	volatile unsigned int held, version;
	char apart[56];
};
__attribute__((weak, aligned(64))) struct __sidecore_line __sidecore_lines[64];
static __thread struct {
	unsigned long long address, value;
	unsigned int version;
} __sidecore_reserved __attribute__((unused));

__SIDECORE_RESERVE struct __sidecore_line *__sidecore_line_of(unsigned long long address)
{
	return &__sidecore_lines[(address >> 7 ^ address >> 13) & 63];
}
__SIDECORE_RESERVE unsigned long long __sidecore_reserve(unsigned long long address, unsigned int bytes)
{
	/* The version first: what is stored in between ends the reservation. */
	unsigned int version = __atomic_load_n(&__sidecore_line_of(address)->version, __ATOMIC_ACQUIRE);
	unsigned long long value = bytes == 4
		? __atomic_load_n((volatile unsigned int *)(unsigned long)address, __ATOMIC_ACQUIRE)
		: __atomic_load_n((volatile unsigned long long *)(unsigned long)address, __ATOMIC_ACQUIRE);
	__sidecore_reserved.address = address;
	__sidecore_reserved.value = value;
	__sidecore_reserved.version = version;
	return value;
}
/* The condition: 2, equal, where it stored. */
__SIDECORE_RESERVE unsigned int __sidecore_store(unsigned long long address, unsigned long long x,
	unsigned int bytes)
{
	struct __sidecore_line *line = __sidecore_line_of(address);
	unsigned int stored = 0, word = (unsigned int)__sidecore_reserved.value;
	unsigned long long wide = __sidecore_reserved.value;

	if (__sidecore_reserved.address != address)
		return 0;
	__sidecore_reserved.address = 0;
	while (__atomic_exchange_n(&line->held, 1u, __ATOMIC_ACQUIRE))
		__builtin_ia32_pause();
	if (line->version == __sidecore_reserved.version) {
		stored = bytes == 4
			? __atomic_compare_exchange_n((volatile unsigned int *)(unsigned long)address, &word,
				(unsigned int)x, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)
			: __atomic_compare_exchange_n((volatile unsigned long long *)(unsigned long)address, &wide,
				x, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
		line->version += stored;
	}
	__atomic_store_n(&line->held, 0u, __ATOMIC_RELEASE);
	return stored << 1;
}
#endif
