/* Programs that share engines, by envp: 1 asks for a word until one is there; 2 works argp pieces of some
 * microseconds, with an operation after each; 3 answers words by interrupting ones, until 0; 4 passes a signal
 * on to the area argp, as often as the first word says; 5 loads the line argp until it is not 0. */
#include "spu.h"

static u32 line[32] __attribute__((aligned(128)));

static u32 piece(u32 x)
{
	for (u32 i = 0; i < 4000; i++)
		x = x * 1664525 + 1013904223;
	return x;
}

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	volatile u32 sink = 0;
	u32 word;
	switch ((u32)envp) {
	case 1:
		while (!COUNT(29))
			;
		return FROM_HOST() != 1;
	case 2:
		for (u32 i = 0; i < (u32)argp; i++) {
			sink = piece(sink);
			WRITE(22, 1);
		}
		return 0;
	case 3:
		while ((word = FROM_HOST()) != 0)
			INTERRUPT(word);
		return 0;
	case 4:
		for (word = FROM_HOST(); word; word--) {
			line[3] = READ(3);
			MFC(&line[3], argp + 12, 4, 1, 0xa0);
		}
		return 0;
	case 5:
		do {
			MFC(line, argp, 128, 0, 0xd0);
			(void)READ(27);
		} while (!line[0]);
		return line[0] != 1;
	}
	return 9;
}
