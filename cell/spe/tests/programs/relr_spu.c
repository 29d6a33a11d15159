/* Pointers in data, near each other and apart: packed relative relocations. */
#include "spu.h"

static u32 numbers[70] = { 1, 2, 3 };
static u32 *volatile near[70] = {
	numbers + 1, 0, numbers + 2, numbers, 0, 0, numbers + 60,
	[40] = numbers + 40, [41] = numbers + 41, [69] = numbers + 69,
};
static struct { u32 before[100]; u32 *volatile far; u32 behind[33]; u32 *volatile last; } apart = {
	{ 5 }, numbers + 7, { 6 }, numbers + 8,
};

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	return near[0] == numbers + 1 && near[2] == numbers + 2 && near[3] == numbers && !near[4] &&
	       near[6] == numbers + 60 && near[40] == numbers + 40 && near[41] == numbers + 41 &&
	       near[69] == numbers + 69 && apart.far == numbers + 7 && apart.last == numbers + 8 &&
	       *near[0] == 2 && apart.before[0] == 5 && apart.behind[0] == 6 ? 9 : 1;
}
