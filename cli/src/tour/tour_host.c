/* The host's part of the tour: eight contexts at once, each with a block of its own. */
#include <libspe2.h>
#include <pthread.h>
#include <stdio.h>

extern spe_program_handle_t tour_spu;
static float blocks[8][4096] __attribute__((aligned(128)));

static void *run(void *block)
{
	unsigned int entry = SPE_DEFAULT_ENTRY, sum = 0;
	spe_context_ptr_t spe = spe_context_create(0, NULL);
	spe_program_load(spe, &tour_spu);
	spe_context_run(spe, &entry, 0, block, NULL, NULL);
	spe_out_mbox_read(spe, &sum, 1);
	spe_context_destroy(spe);
	return (void *)(unsigned long)sum;
}

int main(void)
{
	pthread_t threads[8];
	int right = 0, i, k;
	for (i = 0; i < 8; i++)
		for (k = 0; k < 4096; k++)
			blocks[i][k] = (i + k) % 8;
	for (i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, run, blocks[i]);
	for (i = 0; i < 8; i++) {
		void *sum;
		pthread_join(threads[i], &sum);
		/* 512 times each of 0 to 7, squared. */
		right += (unsigned long)sum == 512 * (1 + 4 + 9 + 16 + 25 + 36 + 49);
	}
	printf("%d of 8 sums are right\n", right);
	return right != 8;
}
