/* Does what single words ask for. */
#include "spu.h"

static volatile u32 flag;

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	u32 word;
	while ((word = FROM_HOST()) != 0) {
		switch (word) {
		case 1: /* three words for the interrupting mailbox, of one place */
			INTERRUPT(11);
			INTERRUPT(12);
			INTERRUPT(13);
			break;
		case 2: /* both signals */
			TO_HOST(READ(3));
			TO_HOST(READ(4));
			break;
		case 3: /* counts: in, out, signal */
			TO_HOST(COUNT(29) << 16 | COUNT(30) << 8 | COUNT(3));
			break;
		case 4:
			STOP(0x0123, 0);
			break;
		case 5: /* polls its own store without any operation */
			flag = 0;
			TO_HOST((u32)&flag & 0x3ffff);
			while (!flag)
				;
			break;
		case 6:
			for (;;)
				;
		}
	}
	return 0;
}
