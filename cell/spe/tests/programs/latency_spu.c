/* Echoes words by mailbox (argp 0), or passes a signal on so many times (argp: the area it goes to). */
#include "spu.h"

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	static u32 out[4] __attribute__((aligned(16)));
	u32 word;
	if (!argp) {
		while ((word = FROM_HOST()) != 0)
			TO_HOST(word);
		return 0;
	}
	for (u32 i = 0; i < (u32)envp; i++) {
		out[3] = READ(3);
		MFC(&out[3], argp + 12, 4, 1, 0xa0);
	}
	return 0;
}
