/* Plain loads and stores of registers in problem-state areas, by instructions of several forms. */
#include "host.h"
#include <cbea_map.h>

static unsigned int fetch(volatile spe_spu_control_area_t *area)
{
	while (!(area->SPU_Mbox_Stat & 0xff))
		sched_yield();
	return area->SPU_Out_Mbox;
}

int main(int count, char **arguments)
{
	struct running own;
	spe_context_ptr_t spe = load(arguments[1], SPE_MAP_PS), other = spe_context_create(SPE_MAP_PS, 0);
	volatile spe_spu_control_area_t *area = spe_ps_area_get(spe, SPE_CONTROL_AREA);
	volatile spe_spu_control_area_t *idle = spe_ps_area_get(other, SPE_CONTROL_AREA);
	volatile spe_sig_notify_1_area_t *signals = spe_ps_area_get(spe, SPE_SIG_NOTIFY_1_AREA);
	volatile unsigned int *inbox = &area->SPU_In_Mbox;
	(void)count;
	CHECK(area && idle && signals);
	CHECK(area->SPU_Mbox_Stat == 0x400);
	*inbox = 5;
	CHECK((area->SPU_Mbox_Stat >> 8 & 0xff) == 3);
	/* An empty mailbox reads as 0. */
	CHECK(area->SPU_Out_Mbox == 0);
	idle->SPU_In_Mbox = 1;
	errno = 77;
	start(&own, spe, (void *)idle, 0);
	signals->SPU_Sig_Notify_1 = 100;
	CHECK(fetch(area) == 115);
	for (unsigned int i = 1; i < 2000; i++) {
		unsigned int bits = i << 4;
		/* A register that is not the one of the address, and a number. */
		if (i & 1)
			*inbox = i;
		else
			*inbox = 2, bits = 2;
		signals->SPU_Sig_Notify_1 = bits;
		CHECK(fetch(area) == (i & 1 ? i * 3 + bits : 8));
	}
	CHECK(errno == 77);
	area->SPU_In_Mbox = 0;
	finish(&own);
	/* The other context's inbound mailbox has three places left, by DMA from its area. */
	CHECK(own.result == 0 && own.stop.result.spe_exit_code == 3);
	CHECK(spe_in_mbox_status(other) == 3);
	CHECK(spe_context_destroy(spe) == 0 && spe_context_destroy(other) == 0);
	return 0;
}
