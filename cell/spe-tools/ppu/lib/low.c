/* Memory below 4 GiB for hosts that put addresses into words, as programs of 32 bits did: the heap, the
 * stacks of threads, and what the program maps. Linked unless -m64 is asked for.
 *
 * Must stay true: a program that never looks at an address runs as without this, but that a host whose
 * pointers have 4 bytes gets an error where there is no such memory; a stack is used again when its
 * thread was joined, or was detached and has left the system.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREAD_STACK_BYTES = 1 << 20 };
/* Maps lie downwards from here, away from the break: the system lets that begin anywhere in the first
 * GiB behind the program, and a heap that meets a map goes on above 4 GiB. MAP_32BIT would put maps
 * at 1 GiB. */
static const uintptr_t SEARCH_BELOW = 0xf0000000, SEARCH_DOWN_TO = 0x10000000;
static const uintptr_t LARGE_STEP = 1 << 20, SMALL_STEP = 1 << 16;

/* Hosts whose pointers have 4 bytes have it. */
extern const int __sidecore_pointers_of_4_bytes __attribute__((weak));

extern void *__real_mmap(void *place, size_t bytes, int access, int flags, int file, off_t offset);

static void *searched(uintptr_t below, uintptr_t step, size_t bytes, int access, int flags, int file,
		      off_t offset)
{
	uintptr_t room = (bytes + SMALL_STEP - 1) & -SMALL_STEP, place;
	if (room < bytes || room > SEARCH_BELOW - SEARCH_DOWN_TO) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	for (place = below - room; place >= SEARCH_DOWN_TO && place < below; place -= step) {
		void *found = __real_mmap((void *)place, bytes, access, flags | MAP_FIXED_NOREPLACE, file,
					  offset);
		if (found == (void *)place)
			return found;
		if (found != MAP_FAILED)
			munmap(found, bytes);
		else if (errno != EEXIST)
			return found;
	}
	errno = ENOMEM;
	return MAP_FAILED;
}

static void *low(size_t bytes, int access, int flags, int file, off_t offset)
{
	/* The lowest map of the last search; a hint. */
	static uintptr_t last = 0xf0000000;
	void *found;
	flags &= ~MAP_32BIT;
	found = searched(__atomic_load_n(&last, __ATOMIC_RELAXED), LARGE_STEP, bytes, access, flags, file,
			 offset);
	if (found == MAP_FAILED && errno == ENOMEM)
		found = searched(SEARCH_BELOW, SMALL_STEP, bytes, access, flags, file, offset);
	if (found != MAP_FAILED)
		__atomic_store_n(&last, (uintptr_t)found, __ATOMIC_RELAXED);
	return found;
}

/* Without PIE the break begins behind the program, below 4 GiB; one arena, nothing mapped apart. */
__attribute__((constructor)) static void low_heap(void)
{
	mallopt(M_MMAP_MAX, 0);
	mallopt(M_ARENA_MAX, 1);
}

void *__wrap_mmap(void *place, size_t bytes, int access, int flags, int file, off_t offset)
{
	void *found;
	if (place || flags & MAP_FIXED)
		return __real_mmap(place, bytes, access, flags, file, offset);
	found = low(bytes, access, flags, file, offset);
	return found != MAP_FAILED || &__sidecore_pointers_of_4_bytes
		? found : __real_mmap(place, bytes, access, flags, file, offset);
}

/* A stack and the thread that it has or had. */
struct stack {
	void *memory;
	enum { FREE, JOINABLE, DETACHED } state;
	pthread_t thread;
	/* The system's number of the thread; 0 until it has begun. */
	volatile pid_t number;
	void *(*function)(void *);
	void *argument;
	struct stack *next;
};

static struct stack *stacks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *begin(void *argument)
{
	struct stack *stack = argument;
	stack->number = (pid_t)syscall(SYS_gettid);
	return stack->function(stack->argument);
}

/* A stack that no thread has; the lock is held. */
static struct stack *free_stack(void)
{
	struct stack *stack;
	for (stack = stacks; stack; stack = stack->next) {
		int left = stack->state == DETACHED && stack->number &&
			   syscall(SYS_tgkill, getpid(), stack->number, 0) && errno == ESRCH;
		if (stack->state == FREE || left)
			return stack;
	}
	stack = calloc(1, sizeof *stack);
	if (!stack)
		return 0;
	stack->memory = low(THREAD_STACK_BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (stack->memory == MAP_FAILED) {
		free(stack);
		return 0;
	}
	stack->next = stacks;
	stacks = stack;
	return stack;
}

extern int __real_pthread_create(pthread_t *thread, const pthread_attr_t *wanted,
				 void *(*function)(void *), void *argument);
extern int __real_pthread_join(pthread_t thread, void **value);
extern int __real_pthread_detach(pthread_t thread);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *wanted, void *(*function)(void *),
			  void *argument)
{
	pthread_attr_t own;
	struct stack *stack;
	int result, state = PTHREAD_CREATE_JOINABLE;
	if (wanted)
		pthread_attr_getdetachstate(wanted, &state);
	pthread_mutex_lock(&lock);
	stack = pthread_attr_init(&own) ? 0 : free_stack();
	if (stack) {
		pthread_attr_setdetachstate(&own, state);
		pthread_attr_setstack(&own, stack->memory, THREAD_STACK_BYTES);
		stack->number = 0;
		stack->function = function;
		stack->argument = argument;
		result = __real_pthread_create(&stack->thread, &own, begin, stack);
		stack->state = result ? FREE : state == PTHREAD_CREATE_DETACHED ? DETACHED : JOINABLE;
		if (!result)
			*thread = stack->thread;
		pthread_attr_destroy(&own);
	} else if (&__sidecore_pointers_of_4_bytes)
		result = EAGAIN;
	else
		result = __real_pthread_create(thread, wanted, function, argument);
	pthread_mutex_unlock(&lock);
	return result;
}

/* The thread's stack has another state from now on. */
static void note(pthread_t thread, int state)
{
	struct stack *stack;
	pthread_mutex_lock(&lock);
	for (stack = stacks; stack; stack = stack->next)
		if (stack->state == JOINABLE && pthread_equal(stack->thread, thread)) {
			stack->state = state;
			break;
		}
	pthread_mutex_unlock(&lock);
}

int __wrap_pthread_join(pthread_t thread, void **value)
{
	int result = __real_pthread_join(thread, value);
	if (!result)
		note(thread, FREE);
	return result;
}

int __wrap_pthread_detach(pthread_t thread)
{
	int result = __real_pthread_detach(thread);
	if (!result)
		note(thread, DETACHED);
	return result;
}
