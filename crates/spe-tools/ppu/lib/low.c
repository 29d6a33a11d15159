/* Memory below 4 GiB for hosts that put addresses into words, as programs of 32 bits did: the heap, the
 * stacks of threads, and what the program maps. Linked unless -m64 is asked for.
 *
 * Must stay true: a program that never looks at an address runs as without this.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

enum { THREAD_STACK_BYTES = 1 << 20 };

static void *low(size_t bytes)
{
	return mmap(0, bytes, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK | MAP_32BIT, -1, 0);
}

/* Without PIE the break begins behind the program, below 4 GiB; one arena, nothing mapped apart. */
__attribute__((constructor)) static void low_heap(void)
{
	mallopt(M_MMAP_MAX, 0);
	mallopt(M_ARENA_MAX, 1);
}

extern int __real_pthread_create(pthread_t *thread, const pthread_attr_t *wanted,
				 void *(*function)(void *), void *argument);

/* A thread's stack stays mapped when it has ended: the system knows no moment to give it back. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *wanted, void *(*function)(void *),
			  void *argument)
{
	pthread_attr_t own;
	size_t bytes = THREAD_STACK_BYTES;
	void *stack;
	int result, state = PTHREAD_CREATE_JOINABLE;
	if (wanted)
		pthread_attr_getdetachstate(wanted, &state);
	stack = low(bytes);
	if (stack == MAP_FAILED || pthread_attr_init(&own))
		return __real_pthread_create(thread, wanted, function, argument);
	pthread_attr_setdetachstate(&own, state);
	pthread_attr_setstack(&own, stack, bytes);
	result = __real_pthread_create(thread, &own, function, argument);
	pthread_attr_destroy(&own);
	if (result)
		munmap(stack, bytes);
	return result;
}

extern void *__real_mmap(void *place, size_t bytes, int access, int flags, int file, off_t offset);

void *__wrap_mmap(void *place, size_t bytes, int access, int flags, int file, off_t offset)
{
	if (!place && !(flags & MAP_FIXED)) {
		void *found = __real_mmap(0, bytes, access, flags | MAP_32BIT, file, offset);
		if (found != MAP_FAILED)
			return found;
	}
	return __real_mmap(place, bytes, access, flags, file, offset);
}
