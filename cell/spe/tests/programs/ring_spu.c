/* Counts a shared word up with its line reserved, passes a token on by a signal register. */
#include "spu.h"

struct work {
	u64 counter, next_signal;
	u32 rounds, first;
};

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	static struct work work __attribute__((aligned(16)));
	static u32 line[32] __attribute__((aligned(128)));
	static u32 out[4] __attribute__((aligned(16)));
	MFC(&work, argp, 32, 0, GET);
	wait_tags(1);
	for (u32 i = 0; i < work.rounds; i++) {
		do {
			MFC(line, work.counter, 128, 0, 0xd0);
			READ(27);
			line[3]++;
			MFC(line, work.counter, 128, 0, 0xb4);
		} while (READ(27));
		if (!work.first || i > 0)
			out[3] = READ(3);
		out[3]++;
		/* The register lies 12 bytes into its area: so does the word in its quadword. */
		MFC(&out[3], work.next_signal + 12, 4, 1, 0xa0);
		wait_tags(2);
	}
	if (work.first)
		return READ(3) == work.rounds * (u32)envp ? 0 : 1;
	return 0;
}
