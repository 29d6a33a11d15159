#include <libspe2.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
extern spe_program_handle_t files_spu;
static unsigned int given[4] __attribute__((aligned(16)));
static void *thread(void *result)
{
	unsigned int entry = SPE_DEFAULT_ENTRY;
	spe_stop_info_t stop = { 0 };
	spe_context_ptr_t spe = spe_context_create(0, 0);
	spe_program_load(spe, &files_spu);
	spe_context_run(spe, &entry, 0, given, 0, &stop);
	*(int *)result = stop.stop_reason == SPE_EXIT ? stop.result.spe_exit_code : 9;
	spe_context_destroy(spe);
	return 0;
}
int main(void)
{
	int first = 8, second = 8;
	pthread_t id;
	thread(&first);
	puts(given[0] ? (char *)(unsigned long)given[0] : "none");
	pthread_create(&id, 0, thread, &second);
	pthread_join(id, 0);
	puts(given[0] ? (char *)(unsigned long)given[0] : "none");
	return first | second;
}
