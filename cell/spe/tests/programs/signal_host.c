/* A fault of the host's own is the host's: its handler sees it, before and after ours came. */
#include <setjmp.h>
#include "host.h"

static sigjmp_buf back;
static volatile int seen;

static void on_fault(int number)
{
	seen = number;
	siglongjmp(back, 1);
}

int main(int count, char **arguments)
{
	struct running own;
	(void)count;
	signal(SIGSEGV, on_fault);
	spe_context_ptr_t spe = load(arguments[1], 0);
	start(&own, spe, (void *)1, 0);
	finish(&own);
	CHECK(own.result == -1 && seen == 0);
	if (!sigsetjmp(back, 1))
		*(volatile int *)8 = 1;
	CHECK(seen == SIGSEGV);
	return 0;
}
