#include "host.h"

static void send(spe_context_ptr_t spe, unsigned int word)
{
	CHECK(spe_in_mbox_write(spe, &word, 1, SPE_MBOX_ALL_BLOCKING) == 1);
}

static unsigned int receive(spe_context_ptr_t spe)
{
	unsigned int word;
	while (spe_out_mbox_read(spe, &word, 1) == 0)
		usleep(100);
	return word;
}

int main(int count, char **arguments)
{
	unsigned int words[8] = { 3, 3, 3, 3, 3, 3, 3, 3 };
	struct running own;
	(void)count;
	spe_context_ptr_t spe = load(arguments[1], SPE_CFG_SIGNOTIFY1_OR);

	/* Depths, before anybody reads: 4 in. */
	CHECK(spe_in_mbox_status(spe) == 4);
	CHECK(spe_in_mbox_write(spe, words, 6, SPE_MBOX_ANY_NONBLOCKING) == 4);
	CHECK(spe_in_mbox_write(spe, words, 1, SPE_MBOX_ANY_NONBLOCKING) == 0);
	CHECK(spe_in_mbox_status(spe) == 0);
	CHECK(spe_out_mbox_status(spe) == 0 && spe_out_intr_mbox_status(spe) == 0);
	CHECK(spe_out_intr_mbox_read(spe, words, 1, SPE_MBOX_ANY_NONBLOCKING) == 0);
	FAILS(spe_in_mbox_write(spe, 0, 1, SPE_MBOX_ALL_BLOCKING), EINVAL);
	FAILS(spe_in_mbox_write(spe, words, 0, SPE_MBOX_ALL_BLOCKING), EINVAL);
	FAILS(spe_in_mbox_write(spe, words, 1, 0), EINVAL);
	FAILS(spe_out_mbox_read(spe, words, -1), EINVAL);
	FAILS(spe_out_intr_mbox_read(spe, words, 1, 77), EINVAL);
	FAILS(spe_out_mbox_read(0, words, 1), ESRCH);
	FAILS(spe_signal_write(spe, 3, 1), EINVAL);
	FAILS(spe_signal_write(0, 1, 1), ESRCH);
	CHECK(!spe_ps_area_get(spe, SPE_CONTROL_AREA) && errno == EACCES);
	CHECK(!spe_ps_area_get(spe, 17) && errno == EINVAL);

	/* Signal 1 gathers, signal 2 is overwritten. */
	CHECK(spe_signal_write(spe, SPE_SIG_NOTIFY_REG_1, 1) == 0);
	CHECK(spe_signal_write(spe, SPE_SIG_NOTIFY_REG_1, 4) == 0);
	CHECK(spe_signal_write(spe, SPE_SIG_NOTIFY_REG_2, 1) == 0);
	CHECK(spe_signal_write(spe, SPE_SIG_NOTIFY_REG_2, 4) == 0);
	start(&own, spe, 0, 0);
	/* One answer fits the outbound mailbox: the program waits at the second, 3 places are free. */
	CHECK(receive(spe) == (3 << 16 | 1 << 8 | 1));
	for (int i = 0; i < 3; i++)
		receive(spe);
	send(spe, 2);
	CHECK(receive(spe) == 5 && receive(spe) == 4);
	send(spe, 3);
	CHECK((receive(spe) & 0xff) == 0);

	/* Writes that do not block find a place, as the program reads meanwhile: a busy machine may need
	 * more than one try. */
	int tries = 0, written = 0;
	for (; tries < 10 && written < 40; tries++)
		for (written = 0; written < 40; written++) {
			unsigned int ignored = 9;
			if (spe_in_mbox_write(spe, &ignored, 1, SPE_MBOX_ANY_NONBLOCKING) != 1)
				break;
		}
	CHECK(written == 40);

	/* Eight words through four places need a reader. */
	CHECK(spe_in_mbox_write(spe, (unsigned int[]){ 1 }, 1, SPE_MBOX_ANY_BLOCKING) == 1);
	CHECK(spe_out_intr_mbox_read(spe, words, 3, SPE_MBOX_ALL_BLOCKING) == 3);
	CHECK(words[0] == 11 && words[1] == 12 && words[2] == 13);
	send(spe, 1);
	CHECK(spe_out_intr_mbox_read(spe, words, 3, SPE_MBOX_ANY_BLOCKING) >= 1);
	int got = words[0] - 11;
	CHECK(got == 0);
	while (words[0] != 13)
		CHECK(spe_out_intr_mbox_read(spe, words, 1, SPE_MBOX_ALL_BLOCKING) == 1);

	/* A running context is neither destroyed, loaded nor run a second time. */
	unsigned int entry = SPE_DEFAULT_ENTRY;
	FAILS(spe_context_destroy(spe), EAGAIN);
	FAILS(spe_context_run(spe, &entry, 0, 0, 0, 0), EBUSY);
	send(spe, 0);
	finish(&own);
	CHECK(own.stop.stop_reason == SPE_EXIT);
	CHECK(spe_context_destroy(spe) == 0);

	CHECK(!spe_context_create(SPE_ISOLATE, 0) && errno == ENODEV);
	CHECK(!spe_context_create(1, 0) && errno == EINVAL);
	CHECK(!spe_image_open("/nonexistent/program") && errno == ENOENT);
	CHECK(!spe_image_open("/etc/passwd") && errno == EACCES);
	CHECK(!spe_image_open(arguments[0]) && errno == EINVAL);
	FAILS(spe_image_close(0), EINVAL);
	FAILS(spe_program_load(0, 0), ESRCH);

	/* The queue of the host's commands, of eight places, as its registers show it. */
	spe_context_ptr_t mapped = spe_context_create(SPE_MAP_PS, 0);
	spe_mfc_command_area_t *commands = spe_ps_area_get(mapped, SPE_MFC_COMMAND_AREA);
	CHECK(commands && commands->MFC_QStatus == 0x80000008 && commands->Prxy_TagStatus == ~0u);
	static char block[16] __attribute__((aligned(16))) = "fifteen letters";
	unsigned int done = 7;
	for (int i = 0; i < 20; i++)
		CHECK(spe_mfcio_get(mapped, 1024 + 16 * i, block, 16, i % 16, 0, 0) == 0);
	CHECK(spe_mfcio_tag_status_read(mapped, 0, SPE_TAG_ALL, &done) == 0 && done == 0xffff);
	CHECK(spe_mfcio_tag_status_read(mapped, 0, SPE_TAG_IMMEDIATE, &done) == 0 && done == 0);
	CHECK(!memcmp((char *)spe_ls_area_get(mapped) + 1024 + 16 * 19, block, 16));
	FAILS(spe_mfcio_put(mapped, 0, block, 16, 16, 0, 0), EINVAL);
	FAILS(spe_mfcio_tag_status_read(mapped, 1, 4, &done), EINVAL);
	CHECK(spe_context_destroy(mapped) == 0);

	/* Gangs hold their contexts; a neighbour is of the same gang. */
	spe_gang_context_ptr_t gang = spe_gang_context_create(0);
	spe_context_ptr_t first = spe_context_create_affinity(SPE_AFFINITY_MEMORY, 0, gang);
	spe_context_ptr_t second = spe_context_create_affinity(0, first, gang);
	CHECK(gang && first && second);
	CHECK(!spe_context_create_affinity(0, 0, 0) && errno == ESRCH);
	FAILS(spe_program_load(first, 0), EINVAL);
	FAILS(spe_gang_context_destroy(gang), EBUSY);
	CHECK(spe_context_destroy(first) == 0 && spe_context_destroy(second) == 0);
	CHECK(spe_gang_context_destroy(gang) == 0);
	FAILS(spe_gang_context_destroy(0), ESRCH);
	return 0;
}
