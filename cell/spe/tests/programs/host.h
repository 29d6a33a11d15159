/* Checks of the tests' host programs: a failed one says where, and ends the program. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <libspe2.h>

#define CHECK(condition) do { \
	if (!(condition)) { \
		fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
		exit(1); \
	} \
} while (0)
#define FAILS(call, number) do { errno = 0; CHECK((call) == -1); CHECK(errno == (number)); } while (0)

struct running {
	pthread_t thread;
	spe_context_ptr_t spe;
	void *argp, *envp;
	unsigned int entry, flags;
	int result, error;
	spe_stop_info_t stop;
};

static void *run_body(void *argument)
{
	struct running *own = argument;
	own->result = spe_context_run(own->spe, &own->entry, own->flags, own->argp, own->envp,
		&own->stop);
	own->error = errno;
	return 0;
}

static inline void start(struct running *own, spe_context_ptr_t spe, void *argp, void *envp)
{
	memset(own, 0, sizeof *own);
	own->spe = spe;
	own->entry = SPE_DEFAULT_ENTRY;
	own->argp = argp;
	own->envp = envp;
	CHECK(pthread_create(&own->thread, 0, run_body, own) == 0);
}

static inline void finish(struct running *own)
{
	CHECK(pthread_join(own->thread, 0) == 0);
}

static inline spe_context_ptr_t load(const char *name, unsigned int flags)
{
	spe_program_handle_t *image = spe_image_open(name);
	CHECK(image);
	spe_context_ptr_t spe = spe_context_create(flags, 0);
	CHECK(spe);
	CHECK(spe_program_load(spe, image) == 0);
	CHECK(spe_image_close(image) == 0);
	return spe;
}
