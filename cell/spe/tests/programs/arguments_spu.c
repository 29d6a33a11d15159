#include "spu.h"

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	if (!registers)
		return 1;
	for (u32 i = 0; i < 12; i++)
		if (registers[i] != i + 100)
			return 2;
	STOP(0x1234, 0);
	STOP(0x2110, registers);
	return registers[0] == 555 ? 0 : 3;
}
