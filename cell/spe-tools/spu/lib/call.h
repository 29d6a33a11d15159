/* The gate's operations; __sidecore_call jumps to it. */
#ifndef SIDECORE_CALL_H
#define SIDECORE_CALL_H

typedef unsigned long long u64;
typedef unsigned int u32;

extern u64 __sidecore_call(u32 operation, u64 a, u64 b, u64 c, u64 d)
	__attribute__((visibility("hidden")));

enum {
	GATE_READ = 1,
	GATE_WRITE = 2,
	GATE_COUNT = 3,
	GATE_STOP = 4,
	GATE_EXIT = 5,
	GATE_HALT = 6,
	GATE_MFC = 7,
	GATE_INTERRUPTS = 9,
};

enum { STOP_C99 = 0x2100, STOP_POSIX = 0x2101, STOP_MEMORY = 0x2102 };

/* A call of the host's library by a callback: parameters lie in slots of sixteen bytes; the result and
 * the host's errno come back in the first. */
struct slot {
	union {
		u32 word[4];
		u64 wide[2];
	};
} __attribute__((aligned(16)));

extern u32 __sidecore_callback(u32 stop, u32 operation, struct slot *slots)
	__attribute__((visibility("hidden")));

enum { SLOTS_MAX = 8 };

/* A call of the host's system with up to three numbers. */
extern u32 __sidecore_posix(int operation, u32 a, u32 b, u32 c) __attribute__((visibility("hidden")));

#endif
