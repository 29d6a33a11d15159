/* Adds one to each word until 0; arguments must be what the host gave. */
#include "spu.h"

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	u32 word;
	static u32 buffer[64] __attribute__((aligned(128)));
	if (envp != 0x1122334455667788ULL || registers)
		return 99;
	MFC(buffer, argp, 256, 3, GET);
	if (wait_tags(1 << 3) != 1 << 3)
		return 98;
	for (int i = 0; i < 64; i++)
		buffer[i] *= 2;
	MFC(buffer, argp, 256, 3, PUT);
	wait_tags(1 << 3);
	while ((word = FROM_HOST()) != 0)
		TO_HOST(word + 1);
	INTERRUPT(0xabcd);
	return 42;
}
