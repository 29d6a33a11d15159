#include "host.h"

struct expected {
	unsigned int reason;
	int code, error, status;
};

int main(int count, char **arguments)
{
	static const struct expected expected[] = {
		{ SPE_RUNTIME_ERROR, SPE_SPU_INVALID_INSTR, EFAULT, 0x20 },
		{ SPE_RUNTIME_FATAL, EFAULT, EFAULT, -1 },
		{ SPE_RUNTIME_FATAL, EFAULT, EFAULT, -1 },
		{ SPE_RUNTIME_FATAL, ENOMEM, EFAULT, -1 },
		{ SPE_RUNTIME_FATAL, EFAULT, EFAULT, -1 },
		{ SPE_RUNTIME_ERROR, SPE_SPU_HALT, EFAULT, 4 },
		{ SPE_RUNTIME_ERROR, SPE_SPU_INVALID_CHANNEL, EFAULT, 0x40 },
		{ SPE_RUNTIME_EXCEPTION, SPE_DMA_ALIGNMENT, EIO, -1 },
		{ SPE_RUNTIME_EXCEPTION, SPE_DMA_STORAGE, EIO, -1 },
		{ SPE_RUNTIME_EXCEPTION, SPE_INVALID_DMA, EIO, -1 },
		{ SPE_RUNTIME_EXCEPTION, SPE_INVALID_DMA, EIO, -1 },
		{ SPE_RUNTIME_EXCEPTION, SPE_DMA_ALIGNMENT, EIO, -1 },
		{ SPE_RUNTIME_ERROR, SPE_SPU_INVALID_CHANNEL, EFAULT, 0x40 },
		{ SPE_CALLBACK_ERROR, -1, EFAULT, 2 },
	};
	(void)count;
	for (unsigned long index = 0; index < sizeof expected / sizeof *expected; index++) {
		const struct expected *want = &expected[index];
		spe_context_ptr_t spe = load(arguments[1], SPE_EVENTS_ENABLE);
		struct running own;
		spe_stop_info_t again;
		start(&own, spe, (void *)index, 0);
		finish(&own);
		fprintf(stderr, "case %lu: %u %d %d\n", index, own.stop.stop_reason,
			own.stop.result.spe_exit_code, own.stop.spu_status);
		CHECK(own.result == -1);
		CHECK(own.error == want->error);
		CHECK(own.stop.stop_reason == want->reason);
		CHECK(own.stop.result.spe_runtime_error == want->code);
		CHECK(own.stop.spu_status == want->status);
		CHECK(spe_stop_info_read(spe, &again) == 0);
		CHECK(again.stop_reason == want->reason);
		FAILS(spe_stop_info_read(spe, &again), EAGAIN);
		/* The context goes on to be usable. */
		start(&own, spe, (void *)100, 0);
		finish(&own);
		CHECK(own.result == 0 && own.stop.result.spe_exit_code == 77);
		CHECK(spe_context_destroy(spe) == 0);
	}
	return 0;
}
