#include "host.h"

static int changed;

static int handler(void *base, unsigned int place)
{
	unsigned int *word = (unsigned int *)((char *)base + place);
	changed = *word;
	*word = 555;
	return 0;
}

int main(int count, char **arguments)
{
	unsigned int registers[12], entry = SPE_DEFAULT_ENTRY;
	spe_stop_info_t stop;
	(void)count;
	for (int i = 0; i < 12; i++)
		registers[i] = i + 100;
	FAILS(spe_callback_handler_register(handler, 2, SPE_CALLBACK_NEW), EACCES);
	FAILS(spe_callback_handler_register(handler, 256, SPE_CALLBACK_NEW), EINVAL);
	FAILS(spe_callback_handler_register(handler, 0x10, SPE_CALLBACK_UPDATE), ESRCH);
	FAILS(spe_callback_handler_register(0, 0x10, SPE_CALLBACK_NEW), EINVAL);
	FAILS(spe_callback_handler_register(handler, 0x10, 3), EINVAL);
	CHECK(spe_callback_handler_register(handler, 0x10, SPE_CALLBACK_NEW) == 0);
	FAILS(spe_callback_handler_register(handler, 0x10, SPE_CALLBACK_NEW), EACCES);
	CHECK(spe_callback_handler_query(0x10) == (void *)handler);
	CHECK(spe_callback_handler_query(0) != 0);
	CHECK(!spe_callback_handler_query(0x11) && errno == ESRCH);

	spe_context_ptr_t spe = load(arguments[1], 0);
	FAILS(spe_context_run(spe, 0, 0, 0, 0, 0), EINVAL);
	FAILS(spe_context_run(0, &entry, 0, 0, 0, 0), ESRCH);
	FAILS(spe_stop_info_read(spe, &stop), ENOTSUP);
	CHECK(spe_context_run(spe, &entry, SPE_RUN_USER_REGS, registers, 0, &stop) == 0x1234);
	CHECK(stop.stop_reason == SPE_STOP_AND_SIGNAL && stop.result.spe_signal_code == 0x1234);
	CHECK(stop.spu_status == (0x1234 << 16 | 2));
	CHECK(spe_context_run(spe, &entry, 0, registers, 0, &stop) == 0);
	CHECK(stop.stop_reason == SPE_EXIT && stop.result.spe_exit_code == 0);
	CHECK(changed == 100);

	/* Without callbacks the stop is the caller's. */
	entry = SPE_DEFAULT_ENTRY;
	/* A flag of another call means nothing. */
	CHECK(spe_context_run(spe, &entry, SPE_RUN_USER_REGS | SPE_MAP_PS, registers, 0, &stop) == 0x1234);
	CHECK(spe_context_run(spe, &entry, SPE_NO_CALLBACKS, 0, 0, &stop) == 0x2110);
	CHECK(spe_context_run(spe, &entry, 0, 0, 0, &stop) == 0);
	CHECK(stop.result.spe_exit_code == 3);
	CHECK(spe_callback_handler_deregister(0x10) == 0);
	FAILS(spe_callback_handler_deregister(0x10), ESRCH);
	FAILS(spe_callback_handler_deregister(1), EACCES);
	CHECK(spe_context_destroy(spe) == 0);
	FAILS(spe_context_destroy(0), ESRCH);
	return 0;
}
