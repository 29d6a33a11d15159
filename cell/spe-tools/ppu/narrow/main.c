/* Start of a host whose pointers have 4 bytes: all that it sees lies below 4 GiB.
 *
 * Must stay true: the thread that runs main has its stack and thread-local storage, so errno's place too,
 * below 4 GiB; arguments, environment and the standard streams are copies there.
 */
#include "narrow.h"
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAIN_STACK_BYTES = 8 << 20 };

/* Objects name it; see the drivers. */
const int __sidecore_pointers_of_4_bytes = 4;

extern int __real_main(int count, word *arguments, word *environment);
extern int __real_pthread_create(pthread_t *thread, const pthread_attr_t *wanted,
				 void *(*function)(void *), void *argument);
extern int __real_pthread_join(pthread_t thread, void **value);

static int main_count;
static word *main_arguments, *main_environment;

static word *copied(char **texts)
{
	size_t count = 0, each;
	word *array;
	while (texts[count])
		count++;
	array = calloc(count + 1, sizeof(word));
	for (each = 0; array && each < count; each++)
		array[each] = narrowed(strdup(texts[each]));
	return array;
}

/* The library's own streams lie in its data, above 4 GiB. */
static void open_streams(void)
{
	FILE *in = fdopen(STDIN_FILENO, "r"), *out = fdopen(STDOUT_FILENO, "w");
	FILE *errors = fdopen(STDERR_FILENO, "w");
	stdin = in ? in : stdin;
	stdout = out ? out : stdout;
	stderr = errors ? errors : stderr;
	if (errors)
		setvbuf(errors, 0, _IONBF, 0);
}

static void *main_within(void *unused)
{
	(void)unused;
	exit(__real_main(main_count, main_arguments, main_environment));
}

int __wrap_main(int count, char **arguments, char **environment)
{
	void *stack = mmap(0, MAIN_STACK_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK | MAP_32BIT, -1, 0);
	pthread_attr_t attributes;
	pthread_t thread;
	main_count = count;
	main_arguments = copied(arguments);
	main_environment = copied(environment);
	open_streams();
	if (stack == MAP_FAILED || !main_arguments || pthread_attr_init(&attributes) ||
	    pthread_attr_setstack(&attributes, stack, MAIN_STACK_BYTES) ||
	    __real_pthread_create(&thread, &attributes, main_within, 0)) {
		fputs("no memory below 4 GiB for main\n", stderr);
		return 2;
	}
	__real_pthread_join(thread, 0);
	return 0;
}
