/* Answers each word that is not 0 with its triple and the first signal; then reads a neighbour's registers. */
#include "spu.h"

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	static u32 block[4] __attribute__((aligned(16)));
	(void)id;
	(void)envp;
	(void)registers;
	for (u32 word; (word = FROM_HOST());)
		TO_HOST(word * 3 + READ(3));
	/* The status of the mailboxes is at 20 in the area, so at 4 in the quadword. */
	MFC((u32)(u64)block, argp + 16, 16, 0, GET);
	wait_tags(1);
	return (int)(block[1] >> 8 & 0xff);
}
