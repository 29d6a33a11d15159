#include "host.h"

int main(int count, char **arguments)
{
	static unsigned int data[64] __attribute__((aligned(128)));
	struct running own;
	unsigned int word, words[3];
	(void)count;
	for (int i = 0; i < 64; i++)
		data[i] = i;
	spe_context_ptr_t spe = load(arguments[1], 0);
	start(&own, spe, data, (void *)0x1122334455667788UL);
	for (word = 1; word < 1000; word++) {
		unsigned int back = 0;
		CHECK(spe_in_mbox_write(spe, &word, 1, SPE_MBOX_ALL_BLOCKING) == 1);
		while (spe_out_mbox_status(spe) == 0)
			;
		CHECK(spe_out_mbox_read(spe, &back, 1) == 1);
		CHECK(back == word + 1);
	}
	CHECK(spe_out_mbox_read(spe, &word, 1) == 0);
	word = 0;
	CHECK(spe_in_mbox_write(spe, &word, 1, SPE_MBOX_ANY_BLOCKING) == 1);
	CHECK(spe_out_intr_mbox_read(spe, words, 1, SPE_MBOX_ALL_BLOCKING) == 1);
	CHECK(words[0] == 0xabcd);
	finish(&own);
	CHECK(own.result == 0);
	CHECK(own.stop.stop_reason == SPE_EXIT);
	CHECK(own.stop.result.spe_exit_code == 42);
	CHECK((unsigned)own.stop.spu_status == (0x202aU << 16 | 2));
	for (int i = 0; i < 64; i++)
		CHECK(data[i] == 2U * i);
	CHECK(spe_context_destroy(spe) == 0);
	return 0;
}
