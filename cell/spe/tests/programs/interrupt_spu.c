/* Interrupts: programs that never operate a channel are interrupted by the decrementer, a signal and a
 * mailbox, with the registers that they had; each is counted by the entry alone.
 */
#include "spu.h"

enum { WRITE_MASK = 1, WRITE_ACK = 2, WRITE_DECREMENTER = 7, INTERRUPTS = 9,
       MACHINE_STATUS = 13 };
enum { MAILBOX = 0x10, DECREMENTER = 0x20, SIGNAL = 0x200 };

volatile u32 taken;
extern void entry(void);
__asm__(
	"entry:\n"
	"pushfq\n"
	"addl $1, taken(%rip)\n"
	"popfq\n"
	"ret $128\n");

static u64 interrupts(int enable) { return gate(INTERRUPTS, enable ? (u32)entry : 0, 0, 0, 0); }

/* Sums that an interrupt must not change, in registers and below the stack's pointer. */
static int works_until(u32 count)
{
	u32 a = 1, b = 2, c = 3, sum = 0, rounds = 0;
	while (taken < count) {
		u32 x = a, y = b, z = c;
		sum += x + y + z;
		rounds++;
		if (sum != rounds * 6)
			return 0;
	}
	return 1;
}

static void enable(u32 mask)
{
	WRITE(WRITE_ACK, ~0u);
	WRITE(WRITE_MASK, mask);
	interrupts(1);
}

int spu(u64 id, u64 argp, u64 envp, u32 *registers)
{
	(void)id, (void)argp, (void)envp, (void)registers;
	/* Nothing interrupts while they are disabled. */
	WRITE(WRITE_MASK, DECREMENTER);
	WRITE(WRITE_DECREMENTER, 100);
	while (COUNT(0) == 0)
		;
	if (taken)
		return 1;
	/* An event that is there already interrupts at once, where the gate returns. */
	interrupts(1);
	if (taken != 1)
		return 2;
	/* Taking one disables them; what was set is said. */
	WRITE(WRITE_ACK, ~0u);
	if (READ(MACHINE_STATUS) != 0 || interrupts(1) != 0 || READ(MACHINE_STATUS) != 1 ||
	    interrupts(0) == 0 || interrupts(0) != 0)
		return 3;
	WRITE(WRITE_ACK, ~0u);
	taken = 0;
	WRITE(WRITE_DECREMENTER, 200000);
	interrupts(1);
	if (!works_until(1))
		return 4;
	/* The host writes when it is told, and then waits for nothing. */
	enable(SIGNAL);
	TO_HOST(1);
	if (!works_until(2) || READ(3) != 7)
		return 5;
	enable(MAILBOX);
	TO_HOST(2);
	if (!works_until(3) || FROM_HOST() != 42)
		return 6;
	/* Events that are not in the mask interrupt nobody. */
	WRITE(WRITE_ACK, ~0u);
	enable(MAILBOX);
	TO_HOST(3);
	while (COUNT(3) == 0)
		;
	READ(3);
	return taken == 3 ? 0 : 7;
}
