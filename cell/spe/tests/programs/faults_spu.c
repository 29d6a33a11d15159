/* Ends in the way that the host asks for. */
#include "spu.h"

static int deeper(volatile char *above)
{
	volatile char here[4096];
	here[0] = above[0];
	return deeper(here) + here[1];
}

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	static u32 buffer[32] __attribute__((aligned(128)));
	volatile int zero = 0;
	char seed[1] = { 0 };
	switch (argp) {
	case 0: __asm__ volatile("ud2"); break;
	case 1: *(volatile int *)16 = 1; break;
	case 2: return 7 / zero;
	case 3: return deeper(seed);
	case 4: ((void (*)(void))(unsigned long)64)(); break;
	case 5: gate(6, 0, 0, 0, 0); break;
	case 6: READ(28); break;
	case 7: MFC(buffer, 0x1008, 64, 1, GET); break;
	case 8: MFC(buffer, 0x1000, 64, 1, GET); break;
	case 9: MFC(buffer, 0x1000, 64, 1, 0x7777); break;
	case 10: MFC(buffer, 0x1000, 64, 40, GET); break;
	case 11: MFC(buffer, 0x1000, 16400, 1, GET); break;
	case 12: READ(99); break;
	case 13: STOP(0x21fe, 0); break;
	}
	return 77;
}
