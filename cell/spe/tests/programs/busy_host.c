/* More programs that never operate a channel than engines: all get on; then the process ends in the
 * middle of those that never will. */
#include "host.h"

int main(int count, char **arguments)
{
	enum { SPES = 8 };
	struct running own[SPES];
	spe_context_ptr_t spe[SPES];
	unsigned int word, place[SPES];
	(void)count;
	CHECK(spe_cpu_info_get(SPE_COUNT_USABLE_SPES, 0) == 1);
	for (int i = 0; i < SPES; i++) {
		spe[i] = load(arguments[1], 0);
		start(&own[i], spe[i], 0, 0);
		word = 5;
		CHECK(spe_in_mbox_write(spe[i], &word, 1, SPE_MBOX_ALL_BLOCKING) == 1);
	}
	/* Each reports, though those before it spin in their stores. */
	for (int i = 0; i < SPES; i++)
		while (spe_out_mbox_read(spe[i], &place[i], 1) == 0)
			usleep(1000);
	for (int i = 0; i < SPES; i++) {
		*(volatile unsigned int *)((char *)spe_ls_area_get(spe[i]) + place[i]) = 1;
		word = i % 2 ? 6 : 0;
		CHECK(spe_in_mbox_write(spe[i], &word, 1, SPE_MBOX_ALL_BLOCKING) == 1);
	}
	for (int i = 0; i < SPES; i += 2) {
		finish(&own[i]);
		CHECK(own[i].result == 0);
	}
	if (arguments[2][0] == 'k')
		raise(SIGTERM);
	return 0;
}
