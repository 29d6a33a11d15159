/* Signals and words for a program that waits for them by interrupts alone, also beside more programs than
 * engines. */
#include "host.h"

static void serve(spe_context_ptr_t spe)
{
	unsigned int word, told;
	for (told = 1; told <= 3; told++) {
		while (spe_out_mbox_read(spe, &word, 1) == 0)
			usleep(100);
		CHECK(word == told);
		usleep(2000);
		if (told == 2) {
			word = 42;
			CHECK(spe_in_mbox_write(spe, &word, 1, SPE_MBOX_ALL_BLOCKING) == 1);
		} else {
			CHECK(spe_signal_write(spe, SPE_SIG_NOTIFY_REG_1, 7) == 0);
		}
	}
}

int main(int count, char **arguments)
{
	enum { SPES = 4 };
	struct running own[SPES];
	(void)count;
	for (int i = 0; i < SPES; i++)
		start(&own[i], load(arguments[1], 0), 0, 0);
	for (int i = 0; i < SPES; i++)
		serve(own[i].spe);
	for (int i = 0; i < SPES; i++) {
		finish(&own[i]);
		CHECK(own[i].result == 0);
		if (own[i].stop.result.spe_exit_code != 0)
			fprintf(stderr, "exit %d\n", own[i].stop.result.spe_exit_code);
		CHECK(own[i].stop.result.spe_exit_code == 0);
		CHECK(spe_context_destroy(own[i].spe) == 0);
	}
	return 0;
}
