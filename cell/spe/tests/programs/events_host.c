#include "host.h"

static void send(spe_context_ptr_t spe, unsigned int word)
{
	CHECK(spe_in_mbox_write(spe, &word, 1, SPE_MBOX_ALL_BLOCKING) == 1);
}

int main(int count, char **arguments)
{
	static unsigned char data[128] __attribute__((aligned(128)));
	spe_event_unit_t unit, occurred[4];
	spe_stop_info_t stop;
	struct running own;
	unsigned int word, status;
	(void)count;
	spe_event_handler_ptr_t handler = spe_event_handler_create();
	spe_context_ptr_t plain = load(arguments[1], 0);
	spe_context_ptr_t spe = load(arguments[1], SPE_EVENTS_ENABLE);
	CHECK(handler);
	memset(&unit, 0, sizeof unit);
	unit.spe = plain;
	unit.events = SPE_EVENT_OUT_INTR_MBOX;
	FAILS(spe_event_handler_register(handler, &unit), ENOTSUP);
	unit.spe = spe;
	unit.events = 0x100;
	FAILS(spe_event_handler_register(handler, &unit), ENOTSUP);
	FAILS(spe_event_handler_register(0, &unit), ESRCH);
	FAILS(spe_event_handler_register(handler, 0), EINVAL);
	FAILS(spe_event_wait(handler, occurred, 0, 0), EINVAL);
	FAILS(spe_event_wait(0, occurred, 1, 0), ESRCH);
	unit.data.u64 = 0x123456789abcULL;
	unit.events = SPE_EVENT_OUT_INTR_MBOX | SPE_EVENT_SPE_STOPPED;
	CHECK(spe_event_handler_register(handler, &unit) == 0);
	CHECK(spe_event_wait(handler, occurred, 4, 0) == 0);

	start(&own, spe, 0, 0);
	send(spe, 1);
	for (unsigned int wanted = 11; wanted <= 13; wanted++) {
		CHECK(spe_event_wait(handler, occurred, 4, 10000) == 1);
		CHECK(occurred[0].events == SPE_EVENT_OUT_INTR_MBOX);
		CHECK(occurred[0].spe == spe && occurred[0].data.u64 == 0x123456789abcULL);
		CHECK(spe_out_intr_mbox_read(spe, &word, 1, SPE_MBOX_ANY_NONBLOCKING) == 1);
		CHECK(word == wanted);
	}
	CHECK(spe_event_wait(handler, occurred, 4, 0) == 0);

	/* The inbound mailbox has places until it is full. */
	unit.events = SPE_EVENT_IN_MBOX;
	CHECK(spe_event_handler_register(handler, &unit) == 0);
	CHECK(spe_event_wait(handler, occurred, 4, 0) == 1);
	CHECK(occurred[0].events == SPE_EVENT_IN_MBOX);
	CHECK(spe_event_handler_deregister(handler, &unit) == 0);

	/* A proxy command that is done. */
	unit.events = SPE_EVENT_TAG_GROUP;
	CHECK(spe_event_handler_register(handler, &unit) == 0);
	CHECK(spe_event_wait(handler, occurred, 4, 0) == 0);
	CHECK(spe_mfcio_get(spe, 0x30000, data, 128, 3, 0, 0) == 0);
	CHECK(spe_event_wait(handler, occurred, 4, 0) == 1);
	CHECK(occurred[0].events == SPE_EVENT_TAG_GROUP);
	CHECK(spe_mfcio_tag_status_read(spe, 0, SPE_TAG_ALL, &status) == 0 && status == 1 << 3);
	CHECK(spe_event_wait(handler, occurred, 4, 0) == 0);

	send(spe, 4);
	CHECK(spe_event_wait(handler, occurred, 4, 10000) == 1);
	CHECK(occurred[0].events == SPE_EVENT_SPE_STOPPED);
	finish(&own);
	CHECK(spe_stop_info_read(spe, &stop) == 0);
	CHECK(stop.stop_reason == SPE_STOP_AND_SIGNAL && stop.result.spe_signal_code == 0x123);
	CHECK(spe_event_wait(handler, occurred, 4, 0) == 0);
	CHECK(spe_event_handler_destroy(handler) == 0);
	FAILS(spe_event_handler_destroy(0), ESRCH);
	return 0;
}
