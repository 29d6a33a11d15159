#include "host.h"

struct work {
	uint64_t counter, next_signal;
	uint32_t rounds, first;
	uint32_t pad[2];
};

int main(int count, char **arguments)
{
	static unsigned int line[32] __attribute__((aligned(128)));
	int spes = atoi(arguments[2]), rounds = atoi(arguments[3]);
	spe_context_ptr_t *spe = calloc(spes, sizeof *spe);
	struct running *own = calloc(spes, sizeof *own);
	struct work *work = aligned_alloc(128, 128 * spes);
	(void)count;
	CHECK(spe_cpu_info_get(SPE_COUNT_USABLE_SPES, -1) == atoi(arguments[4]));
	CHECK(spe_cpu_info_get(SPE_COUNT_PHYSICAL_CPU_NODES, -1) == 1);
	FAILS(spe_cpu_info_get(SPE_COUNT_USABLE_SPES, 5), EINVAL);
	FAILS(spe_cpu_info_get(99, -1), EINVAL);
	for (int i = 0; i < spes; i++)
		spe[i] = load(arguments[1], SPE_MAP_PS);
	for (int i = 0; i < spes; i++) {
		void *area = spe_ps_area_get(spe[(i + 1) % spes], SPE_SIG_NOTIFY_1_AREA);
		CHECK(area);
		work[i] = (struct work){ (uintptr_t)line, (uintptr_t)area, rounds, i == 0, { 0 } };
	}
	for (int i = 0; i < spes; i++)
		start(&own[i], spe[i], &work[i], (void *)(uintptr_t)spes);
	/* The host counts on the same line with the processor's own atomic instruction. */
	for (int i = 0; i < rounds; i++)
		__sync_fetch_and_add(&line[3], 1);
	for (int i = 0; i < spes; i++) {
		finish(&own[i]);
		CHECK(own[i].result == 0 && own[i].stop.result.spe_exit_code == 0);
		CHECK(spe_context_destroy(spe[i]) == 0);
	}
	fprintf(stderr, "counted %u\n", line[3]);
	CHECK(line[3] == (unsigned)(rounds * (spes + 1)));
	return 0;
}
