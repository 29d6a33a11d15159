/* Caches of main memory in the local store, by software: the SDK's cache-api.h.
 *
 * Each inclusion makes one cache of the names that stand before it:
 *
 *	CACHE_NAME, CACHED_TYPE		its name and what it holds; both are needed
 *	CACHELINE_LOG2SIZE		logarithm of a line's bytes, 4 to 12; 7
 *	CACHE_LOG2NWAY			logarithm of the lines in a set, 0 to 4; 2
 *	CACHE_LOG2NSETS			logarithm of the sets, 0 to 12; 6
 *	CACHE_TYPE			CACHE_TYPE_RO or CACHE_TYPE_RW; the latter
 *	CACHE_SET_TAGID(set)		the tag of a set's transfers; set & 31
 *	CACHE_STATS			defined: counts for cache_pr_stats
 *
 * Sets are replaced in turn, but for lines that are locked. Lines that were written, and those that
 * cache_rw or cache_touch gave pointers into, are written back whole when they are replaced or flushed,
 * so no other processor may write to them meanwhile. Effective addresses have 32 or 64 bits;
 * cache_rd_x4 takes four of 32 and gives four numbers of at most 32.
 */
#ifndef _CACHE_API_H_
#define _CACHE_API_H_

#include <spu_mfcio.h>

#ifndef likely
#define likely(condition) __builtin_expect((condition), 1)
#define unlikely(condition) __builtin_expect((condition), 0)
#endif

#define CACHE_TYPE_RO 0
#define CACHE_TYPE_RW 1

#define __spe_cache_joined(part, name) __spe_cache_##part##_##name
#define __spe_cache_named(part, name) __spe_cache_joined(part, name)
#define __spe_cache(part) __spe_cache_named(part, CACHE_NAME)
#define __spe_cache_quoted(name) #name
#define __spe_cache_text(name) __spe_cache_quoted(name)

/* Pointers and words are addresses of 32 bits, whatever their sign. */
#ifdef __cplusplus
static inline unsigned long long __spe_cache_ea(unsigned long long ea) { return ea; }
static inline unsigned long long __spe_cache_ea(long long ea) { return ea; }
static inline unsigned long long __spe_cache_ea(unsigned int ea) { return ea; }
static inline unsigned long long __spe_cache_ea(int ea) { return (unsigned int)ea; }
static inline unsigned long long __spe_cache_ea(unsigned long ea) { return (unsigned int)ea; }
static inline unsigned long long __spe_cache_ea(long ea) { return (unsigned int)ea; }
static inline unsigned long long __spe_cache_ea(const volatile void *ea) { return (unsigned int)ea; }
#else
#define __spe_cache_ea(ea) \
	((unsigned long long)__builtin_choose_expr(sizeof(ea) == 8, (ea), (unsigned int)(ea)))
#endif

#define cache_rd(name, ea) __spe_cache_named(rd, name)(__spe_cache_ea(ea))
#define cache_wr(name, ea, value) __spe_cache_named(wr, name)(__spe_cache_ea(ea), (value))
#define cache_rw(name, ea) __spe_cache_named(rw, name)(__spe_cache_ea(ea))
#define cache_touch(name, ea) __spe_cache_named(touch, name)(__spe_cache_ea(ea))
#define cache_wait(name, lsa) __spe_cache_named(wait, name)((unsigned int)(lsa))
#define cache_lock(name, lsa) __spe_cache_named(lock, name)((unsigned int)(lsa))
#define cache_unlock(name, lsa) __spe_cache_named(unlock, name)((unsigned int)(lsa))
#define cache_flush(name) __spe_cache_named(flush, name)()
#define cache_rd_x4(name, eas) __extension__({ \
	const vec_uint4 __spe_four = (eas); \
	const vec_uint4 __spe_values = {(unsigned int)cache_rd(name, __spe_four[0]), \
		(unsigned int)cache_rd(name, __spe_four[1]), (unsigned int)cache_rd(name, __spe_four[2]), \
		(unsigned int)cache_rd(name, __spe_four[3])}; \
	__spe_values; })
#define cache_pr_stats(name) __spe_cache_named(pr_stats, name)()

/* The same of the cache that CACHE_NAME names where they stand. */
#define __cache_rd(ea) cache_rd(CACHE_NAME, ea)
#define __cache_wr(ea, value) cache_wr(CACHE_NAME, ea, value)
#define __cache_rw(ea, ...) cache_rw(CACHE_NAME, ea)
#define __cache_touch(ea, ...) cache_touch(CACHE_NAME, ea)
#define __cache_wait(lsa) cache_wait(CACHE_NAME, lsa)
#define __cache_lock(lsa) cache_lock(CACHE_NAME, lsa)
#define __cache_unlock(lsa) cache_unlock(CACHE_NAME, lsa)
#define __cache_flush() cache_flush(CACHE_NAME)
#define __cache_pr_stats() cache_pr_stats(CACHE_NAME)
#define __load_vec_uint4(w, x, y, z) ((vec_uint4){(w), (x), (y), (z)})

/* States of a line, in the bits that its address leaves free. */
#define __SPE_CACHE_VALID 1u
#define __SPE_CACHE_WRITTEN 2u
#define __SPE_CACHE_LOCKED 4u
#define __SPE_CACHE_STATE 15u

#define __SPE_CACHE_INLINE static __inline__ __attribute__((unused))

/* Counts of one cache. */
struct __spe_cache_counts {
	unsigned int read_hits, read_misses, write_hits, write_misses, replaced, written_back, flushed;
};

#endif

#ifndef CACHE_NAME
#error "cache-api.h: CACHE_NAME is not defined"
#endif
#ifndef CACHED_TYPE
#error "cache-api.h: CACHED_TYPE is not defined"
#endif
#ifndef CACHE_TYPE
#define CACHE_TYPE CACHE_TYPE_RW
#endif
#ifndef CACHELINE_LOG2SIZE
#define CACHELINE_LOG2SIZE 7
#endif
#ifndef CACHE_LOG2NWAY
#define CACHE_LOG2NWAY 2
#endif
#ifndef CACHE_LOG2NSETS
#define CACHE_LOG2NSETS 6
#endif
#ifndef CACHE_SET_TAGID
#define CACHE_SET_TAGID(set) ((set) & 31)
#endif
#if CACHE_TYPE != CACHE_TYPE_RO && CACHE_TYPE != CACHE_TYPE_RW
#error "cache-api.h: CACHE_TYPE is CACHE_TYPE_RO or CACHE_TYPE_RW"
#endif
#if CACHELINE_LOG2SIZE < 4 || CACHELINE_LOG2SIZE > 12
#error "cache-api.h: CACHELINE_LOG2SIZE is 4 to 12"
#endif
#if CACHE_LOG2NWAY < 0 || CACHE_LOG2NWAY > 4
#error "cache-api.h: CACHE_LOG2NWAY is 0 to 4"
#endif
#if CACHE_LOG2NSETS < 0 || CACHE_LOG2NSETS > 12
#error "cache-api.h: CACHE_LOG2NSETS is 0 to 12"
#endif

/* The attributes as constants, for what follows and for the functions. */
enum {
	__spe_cache(line) = 1 << CACHELINE_LOG2SIZE,
	__spe_cache(ways) = 1 << CACHE_LOG2NWAY,
	__spe_cache(sets) = 1 << CACHE_LOG2NSETS,
	__spe_cache(lines) = 1 << (CACHE_LOG2NWAY + CACHE_LOG2NSETS)
};

static char __spe_cache(memory)[1 << (CACHE_LOG2NWAY + CACHE_LOG2NSETS + CACHELINE_LOG2SIZE)]
	__attribute__((aligned(128)));
/* The effective address of each line, with its state. */
static unsigned long long __spe_cache(directory)[1 << (CACHE_LOG2NWAY + CACHE_LOG2NSETS)];
static unsigned char __spe_cache(next)[1 << CACHE_LOG2NSETS];

#ifdef CACHE_STATS
static struct __spe_cache_counts __spe_cache(counts);
#define __SPE_CACHE_COUNT(what) ((void)__spe_cache(counts).what++)
#else
#define __SPE_CACHE_COUNT(what) ((void)0)
#endif

__SPE_CACHE_INLINE unsigned int __spe_cache(tag)(unsigned int set) { return CACHE_SET_TAGID(set); }

__SPE_CACHE_INLINE void __spe_cache(wait_set)(unsigned int set)
{
	mfc_write_tag_mask(1u << __spe_cache(tag)(set));
	mfc_read_tag_status_all();
}

__SPE_CACHE_INLINE void __spe_cache(write_back)(unsigned int line)
{
	unsigned long long entry = __spe_cache(directory)[line];
	mfc_put(&__spe_cache(memory)[line << CACHELINE_LOG2SIZE],
		entry & ~(unsigned long long)__SPE_CACHE_STATE, __spe_cache(line),
		__spe_cache(tag)(line >> CACHE_LOG2NWAY), 0, 0);
	__spe_cache(directory)[line] = entry & ~(unsigned long long)__SPE_CACHE_WRITTEN;
}

/* The line that holds an address, fetched where it is not there; *hit says which. */
__SPE_CACHE_INLINE unsigned int __spe_cache(find)(unsigned long long ea, int *hit)
{
	const unsigned long long first = ea & -(unsigned long long)__spe_cache(line);
	const unsigned int number = (unsigned int)(first >> CACHELINE_LOG2SIZE);
	const unsigned int set = (number ^ number >> 1) & (__spe_cache(sets) - 1);
	const unsigned int begin = set << CACHE_LOG2NWAY;
	unsigned int each, line = begin;
	for (each = 0; each < __spe_cache(ways); each++) {
		unsigned long long entry = __spe_cache(directory)[begin + each];
		if ((entry & __SPE_CACHE_VALID) && (entry & ~(unsigned long long)__SPE_CACHE_STATE) == first) {
			*hit = 1;
			return begin + each;
		}
	}
	*hit = 0;
	for (each = 0; each < __spe_cache(ways); each++) {
		line = begin + __spe_cache(next)[set];
		__spe_cache(next)[set] = (__spe_cache(next)[set] + 1) & (__spe_cache(ways) - 1);
		if (!(__spe_cache(directory)[line] & __SPE_CACHE_LOCKED))
			break;
	}
	if (each == __spe_cache(ways)) {
		/* All lines of the set are locked: a program's mistake that would lose data. */
		__sidecore_halt();
	}
	if (__spe_cache(directory)[line] & __SPE_CACHE_VALID)
		__SPE_CACHE_COUNT(replaced);
	if (__spe_cache(directory)[line] & __SPE_CACHE_WRITTEN) {
		__SPE_CACHE_COUNT(written_back);
		__spe_cache(write_back)(line);
	}
	mfc_getf(&__spe_cache(memory)[line << CACHELINE_LOG2SIZE], first, __spe_cache(line),
		 __spe_cache(tag)(set), 0, 0);
	__spe_cache(directory)[line] = first | __SPE_CACHE_VALID;
	return line;
}

__SPE_CACHE_INLINE CACHED_TYPE *__spe_cache(place)(unsigned int line, unsigned long long ea)
{
	return (CACHED_TYPE *)&__spe_cache(memory)[(line << CACHELINE_LOG2SIZE)
						   | (unsigned int)(ea & (__spe_cache(line) - 1))];
}

__SPE_CACHE_INLINE CACHED_TYPE __spe_cache(rd)(unsigned long long ea)
{
	int hit;
	unsigned int line = __spe_cache(find)(ea, &hit);
	if (hit) {
		__SPE_CACHE_COUNT(read_hits);
	} else {
		__SPE_CACHE_COUNT(read_misses);
		__spe_cache(wait_set)(line >> CACHE_LOG2NWAY);
	}
	return *__spe_cache(place)(line, ea);
}

/* A pointer into the line, before its transfer is complete. */
__SPE_CACHE_INLINE CACHED_TYPE *__spe_cache(touch)(unsigned long long ea)
{
	int hit;
	unsigned int line = __spe_cache(find)(ea, &hit);
	if (hit)
		__SPE_CACHE_COUNT(read_hits);
	else
		__SPE_CACHE_COUNT(read_misses);
#if CACHE_TYPE == CACHE_TYPE_RW
	__spe_cache(directory)[line] |= __SPE_CACHE_WRITTEN;
#endif
	return __spe_cache(place)(line, ea);
}

__SPE_CACHE_INLINE unsigned int __spe_cache(line_of)(unsigned int lsa)
{
	return (lsa - (unsigned int)__spe_cache(memory)) >> CACHELINE_LOG2SIZE & (__spe_cache(lines) - 1);
}

__SPE_CACHE_INLINE void __spe_cache(wait)(unsigned int lsa)
{
	__spe_cache(wait_set)(__spe_cache(line_of)(lsa) >> CACHE_LOG2NWAY);
}

__SPE_CACHE_INLINE CACHED_TYPE *__spe_cache(rw)(unsigned long long ea)
{
	CACHED_TYPE *place = __spe_cache(touch)(ea);
	__spe_cache(wait)((unsigned int)place);
	return place;
}

__SPE_CACHE_INLINE void __spe_cache(lock)(unsigned int lsa)
{
	__spe_cache(directory)[__spe_cache(line_of)(lsa)] |= __SPE_CACHE_LOCKED;
}

__SPE_CACHE_INLINE void __spe_cache(unlock)(unsigned int lsa)
{
	__spe_cache(directory)[__spe_cache(line_of)(lsa)] &= ~(unsigned long long)__SPE_CACHE_LOCKED;
}

#if CACHE_TYPE == CACHE_TYPE_RW
__SPE_CACHE_INLINE void __spe_cache(wr)(unsigned long long ea, CACHED_TYPE value)
{
	int hit;
	unsigned int line = __spe_cache(find)(ea, &hit);
	if (hit) {
		__SPE_CACHE_COUNT(write_hits);
	} else {
		__SPE_CACHE_COUNT(write_misses);
		__spe_cache(wait_set)(line >> CACHE_LOG2NWAY);
	}
	*__spe_cache(place)(line, ea) = value;
	__spe_cache(directory)[line] |= __SPE_CACHE_WRITTEN;
}
#endif

/* Writes back; the lines stay valid. */
__SPE_CACHE_INLINE void __spe_cache(flush)(void)
{
	unsigned int line;
	for (line = 0; line < __spe_cache(lines); line++)
		if (__spe_cache(directory)[line] & __SPE_CACHE_WRITTEN) {
			__SPE_CACHE_COUNT(flushed);
			__spe_cache(write_back)(line);
			__spe_cache(wait_set)(line >> CACHE_LOG2NWAY);
		}
}

#ifdef CACHE_STATS
#include <stdio.h>
__SPE_CACHE_INLINE void __spe_cache(pr_stats)(void)
{
	const struct __spe_cache_counts *counts = &__spe_cache(counts);
	printf("cache %s (%s): %d sets of %d lines of %d bytes, %d bytes in all\n",
	       __spe_cache_text(CACHE_NAME), CACHE_TYPE == CACHE_TYPE_RO ? "read" : "read/write",
	       __spe_cache(sets), __spe_cache(ways), __spe_cache(line),
	       __spe_cache(lines) * __spe_cache(line));
	printf("reads: %u hits, %u misses; writes: %u hits, %u misses\n", counts->read_hits,
	       counts->read_misses, counts->write_hits, counts->write_misses);
	printf("lines: %u replaced, %u written back, %u flushed\n", counts->replaced, counts->written_back,
	       counts->flushed);
}
#else
__SPE_CACHE_INLINE void __spe_cache(pr_stats)(void) {}
#endif

/* And by names that begin with the cache's. */
#define __spe_cache_own_joined(name, part) name##_cache_##part
#define __spe_cache_own_named(name, part) __spe_cache_own_joined(name, part)
#define __spe_cache_own(part) __spe_cache_own_named(CACHE_NAME, part)
__SPE_CACHE_INLINE CACHED_TYPE __spe_cache_own(rd)(unsigned int ea) { return __spe_cache(rd)(ea); }
__SPE_CACHE_INLINE CACHED_TYPE *__spe_cache_own(rw)(unsigned int ea) { return __spe_cache(rw)(ea); }
__SPE_CACHE_INLINE CACHED_TYPE *__spe_cache_own(touch)(unsigned int ea) { return __spe_cache(touch)(ea); }
#if CACHE_TYPE == CACHE_TYPE_RW
__SPE_CACHE_INLINE void __spe_cache_own(wr)(unsigned int ea, CACHED_TYPE value)
{
	__spe_cache(wr)(ea, value);
}
#endif
__SPE_CACHE_INLINE void __spe_cache_own(flush)(void) { __spe_cache(flush)(); }
__SPE_CACHE_INLINE void __spe_cache_own(pr_stats)(void) { __spe_cache(pr_stats)(); }
#undef __spe_cache_own_joined
#undef __spe_cache_own_named
#undef __spe_cache_own

#undef __SPE_CACHE_COUNT
#undef CACHE_NAME
#undef CACHED_TYPE
#undef CACHE_TYPE
#undef CACHELINE_LOG2SIZE
#undef CACHE_LOG2NWAY
#undef CACHE_LOG2NSETS
