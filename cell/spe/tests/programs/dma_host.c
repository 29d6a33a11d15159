#include "host.h"

static unsigned char data[16384] __attribute__((aligned(128)));
static unsigned int lines[64] __attribute__((aligned(128)));

int main(int count, char **arguments)
{
	enum { SPES = 4 };
	struct running own[SPES];
	spe_context_ptr_t spe[SPES];
	unsigned int status;
	(void)count;
	for (unsigned int i = 0; i < sizeof data; i++)
		data[i] = i;
	for (int i = 0; i < SPES; i++) {
		spe[i] = load(arguments[1], 0);
		if (i == 0)
			start(&own[i], spe[i], data, lines);
		/* The others want a line of their own for their checks; the counter is checked below. */
		if (i == 0)
			finish(&own[i]);
	}
	fprintf(stderr, "check %d failed\n", own[0].stop.result.spe_exit_code);
	CHECK(own[0].result == 0 && own[0].stop.result.spe_exit_code == 0);
	CHECK(lines[0] == 1000 && lines[33] == 9);

	/* Proxy commands, and the store through its two addresses. */
	unsigned char *store = spe_ls_area_get(spe[1]);
	CHECK(spe_ls_size_get(spe[1]) == 262144);
	CHECK(spe_mfcio_get(spe[1], 0x20000, data, 1024, 5, 0, 0) == 0);
	CHECK(spe_mfcio_getf(spe[1], 0x20400, data, 16, 6, 0, 0) == 0);
	CHECK(spe_mfcio_tag_status_read(spe[1], 0, SPE_TAG_ALL, &status) == 0);
	CHECK(status == (1 << 5 | 1 << 6));
	CHECK(memcmp(store + 0x20000, data, 1024) == 0);
	store[0x20001] = 200;
	CHECK(spe_mfcio_putb(spe[1], 0x20000, data + 4096, 16, 5, 0, 0) == 0);
	CHECK(spe_mfcio_tag_status_read(spe[1], 1 << 5, SPE_TAG_ANY, &status) == 0);
	CHECK(status == 1 << 5 && data[4097] == 200);
	FAILS(spe_mfcio_put(spe[1], 0, data, 16, 16, 0, 0), EINVAL);
	FAILS(spe_mfcio_put(spe[1], 0, data, 16, 1, 256, 0), EINVAL);
	FAILS(spe_mfcio_put(spe[1], 0, data + 1, 16, 1, 0, 0), EIO);
	FAILS(spe_mfcio_put(0, 0, data, 16, 1, 0, 0), ESRCH);
	FAILS(spe_mfcio_tag_status_read(spe[1], 0, SPE_TAG_ALL, 0), EINVAL);
	FAILS(spe_mfcio_tag_status_read(spe[1], 0, 9, &status), EINVAL);
	CHECK(spe_mssync_start(spe[1]) == 0 && spe_mssync_status(spe[1]) == 0);
	/* A program reaches its like in another store, above its own and below. */
	start(&own[2], spe[2], 0, 0);
	finish(&own[2]);
	CHECK(own[2].result == 0 && own[2].stop.result.spe_exit_code == 0);
	for (int i = 1; i < SPES; i += 2) {
		start(&own[i], spe[i], spe_ls_area_get(spe[2]), 0);
		finish(&own[i]);
		CHECK(own[i].result == 0 && own[i].stop.result.spe_exit_code == 77);
	}
	for (int i = 0; i < SPES; i++)
		CHECK(spe_context_destroy(spe[i]) == 0);
	return 0;
}
