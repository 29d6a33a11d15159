/* Does not fit a local store. */
#include "spu.h"

static char much[260 * 1024];

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	much[argp] = 1;
	return much[envp];
}
