/* Atomic words, mutexes, condition variables, completions and reader-writer locks in main memory, for
 * both sides: the functions of the SDK's libsync. A variable is a word of 4 bytes, named by its effective
 * address. The SPE exchanges its 128-byte line by getllar and putllc, so no other part of that line may be
 * reserved meanwhile.
 */
#ifndef SIDECORE_SYNC_H
#define SIDECORE_SYNC_H
#include <sidecore_begin.h>

#ifdef __SPU__
#include <sync_utils.h>
#endif
typedef unsigned long long eaddr_t;
typedef eaddr_t atomic_ea_t;
typedef eaddr_t mutex_ea_t;
typedef eaddr_t cond_ea_t;
typedef eaddr_t completion_ea_t;
typedef eaddr_t rw_lock_ea_t;
typedef volatile int atomic_t;
typedef volatile int mutex_t;
typedef volatile int cond_t;

#ifdef __SPU__
#include <spu_mfcio.h>

static __inline__ void __libsync_line(volatile unsigned int *line, eaddr_t ea)
{
	mfc_getllar(line, ea & ~127ULL, 0, 0);
	(void)mfc_read_atomic_status();
}

static __inline__ unsigned int __libsync_load(eaddr_t ea)
{
	volatile unsigned int line[32] __attribute__((aligned(128)));
	__libsync_line(line, ea);
	return line[(ea & 127) / 4];
}

/* Puts `fresh` in the place of `old`; 0 where another value is there. */
static __inline__ int __libsync_exchange(eaddr_t ea, unsigned int old, unsigned int fresh)
{
	volatile unsigned int line[32] __attribute__((aligned(128)));
	do {
		__libsync_line(line, ea);
		if (line[(ea & 127) / 4] != old)
			return 0;
		line[(ea & 127) / 4] = fresh;
		mfc_putllc(line, ea & ~127ULL, 0, 0);
	} while (mfc_read_atomic_status() & MFC_PUTLLC_STATUS);
	return 1;
}

/* Each look is a command of the MFC, at which the engine changes to another context. */
static __inline__ void __libsync_pause(void) { }

#else
#include <sched.h>
#include <stdint.h>

static __inline__ unsigned int *__libsync_word(eaddr_t ea) { return (unsigned int *)(uintptr_t)ea; }
static __inline__ unsigned int __libsync_load(eaddr_t ea)
{
	return __atomic_load_n(__libsync_word(ea), __ATOMIC_SEQ_CST);
}
static __inline__ int __libsync_exchange(eaddr_t ea, unsigned int old, unsigned int fresh)
{
	return __atomic_compare_exchange_n(__libsync_word(ea), &old, fresh, 0, __ATOMIC_SEQ_CST,
		__ATOMIC_SEQ_CST);
}
static __inline__ void __libsync_pause(void) { sched_yield(); }
#endif

/* Atomic words. */

static __inline__ int _atomic_read(atomic_ea_t ea) { return (int)__libsync_load(ea); }
static __inline__ void _atomic_set(atomic_ea_t ea, int value)
{
	while (!__libsync_exchange(ea, __libsync_load(ea), (unsigned int)value))
		;
}
/* The value before. */
static __inline__ int __libsync_add(eaddr_t ea, int value)
{
	unsigned int old;
	do
		old = __libsync_load(ea);
	while (!__libsync_exchange(ea, old, old + (unsigned int)value));
	return (int)old;
}
static __inline__ int _atomic_add_return(int value, atomic_ea_t ea) { return __libsync_add(ea, value); }
static __inline__ int _atomic_sub_return(int value, atomic_ea_t ea) { return __libsync_add(ea, -value); }
static __inline__ int _atomic_inc_return(atomic_ea_t ea) { return __libsync_add(ea, 1); }
static __inline__ int _atomic_dec_return(atomic_ea_t ea) { return __libsync_add(ea, -1); }
static __inline__ void _atomic_add(int value, atomic_ea_t ea) { __libsync_add(ea, value); }
static __inline__ void _atomic_sub(int value, atomic_ea_t ea) { __libsync_add(ea, -value); }
static __inline__ void _atomic_inc(atomic_ea_t ea) { __libsync_add(ea, 1); }
static __inline__ void _atomic_dec(atomic_ea_t ea) { __libsync_add(ea, -1); }
/* 1 where the value before was 0. */
static __inline__ int _atomic_sub_and_test(int value, atomic_ea_t ea) { return !__libsync_add(ea, -value); }
static __inline__ int _atomic_dec_and_test(atomic_ea_t ea) { return !__libsync_add(ea, -1); }
/* The value behind it, which is negative where nothing was changed. */
static __inline__ int _atomic_dec_if_positive(atomic_ea_t ea)
{
	unsigned int old;
	do {
		old = __libsync_load(ea);
		if ((int)old <= 0)
			break;
	} while (!__libsync_exchange(ea, old, old - 1));
	return (int)old - 1;
}

/* Mutexes: 1 while locked. */

static __inline__ void _mutex_init(mutex_ea_t ea) { _atomic_set(ea, 0); }
static __inline__ int _mutex_trylock(mutex_ea_t ea) { return __libsync_exchange(ea, 0, 1); }
static __inline__ void _mutex_lock(mutex_ea_t ea)
{
	while (!_mutex_trylock(ea))
		__libsync_pause();
}
static __inline__ void _mutex_unlock(mutex_ea_t ea) { _atomic_set(ea, 0); }

/* Condition variables: those that wait in the low half, signals that none took yet in the high half. */

static __inline__ void _cond_init(cond_ea_t ea) { _atomic_set(ea, 0); }
static __inline__ void _cond_signal(cond_ea_t ea)
{
	unsigned int old;
	do {
		old = __libsync_load(ea);
		if ((old & 0xffff) <= old >> 16)
			return;
	} while (!__libsync_exchange(ea, old, old + 0x10000));
}
static __inline__ void _cond_broadcast(cond_ea_t ea)
{
	unsigned int old;
	do
		old = __libsync_load(ea);
	while (!__libsync_exchange(ea, old, (old & 0xffff) * 0x10001));
}
static __inline__ void _cond_wait(cond_ea_t ea, mutex_ea_t mutex)
{
	__libsync_add(ea, 1);
	_mutex_unlock(mutex);
	for (;;) {
		unsigned int old = __libsync_load(ea);
		if (old >> 16 && __libsync_exchange(ea, old, old - 0x10001))
			break;
		__libsync_pause();
	}
	_mutex_lock(mutex);
}

/* Completions: those that nobody waited for yet. */

static __inline__ void _init_completion(completion_ea_t ea) { _atomic_set(ea, 0); }
static __inline__ void _complete(completion_ea_t ea) { __libsync_add(ea, 1); }
static __inline__ void _complete_all(completion_ea_t ea) { _atomic_set(ea, 0x3fffffff); }
static __inline__ void _wait_for_completion(completion_ea_t ea)
{
	while (_atomic_dec_if_positive(ea) < 0)
		__libsync_pause();
}

/* Reader-writer locks: readers, or -1 for a writer. */

static __inline__ void _rwlock_init(rw_lock_ea_t ea) { _atomic_set(ea, 0); }
static __inline__ int _read_trylock(rw_lock_ea_t ea)
{
	unsigned int old = __libsync_load(ea);
	return (int)old >= 0 && __libsync_exchange(ea, old, old + 1);
}
static __inline__ void _read_lock(rw_lock_ea_t ea)
{
	while (!_read_trylock(ea))
		__libsync_pause();
}
static __inline__ void _read_unlock(rw_lock_ea_t ea) { __libsync_add(ea, -1); }
static __inline__ int _write_trylock(rw_lock_ea_t ea) { return __libsync_exchange(ea, 0, ~0u); }
static __inline__ void _write_lock(rw_lock_ea_t ea)
{
	while (!_write_trylock(ea))
		__libsync_pause();
}
static __inline__ void _write_unlock(rw_lock_ea_t ea) { _atomic_set(ea, 0); }

#define _spin_lock _mutex_lock
#define _spin_trylock _mutex_trylock
#define _spin_unlock _mutex_unlock

#include <sidecore_end.h>
#endif
