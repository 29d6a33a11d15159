/* Calls of the C library that write or read pointers and longs, or whose results lie above 4 GiB. */
#include "narrow.h"
#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <locale.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <unistd.h>

/* Memory. */
int __narrow_posix_memalign(word *to, uint32_t alignment, uint32_t bytes)
{
	void *memory;
	/* At least a pointer's size, which on the program's side is 4. */
	int result = posix_memalign(&memory, alignment < sizeof memory ? sizeof memory : alignment, bytes);
	if (!result)
		*to = narrowed(memory);
	return result;
}

void *__narrow_shmat(int id, const void *place, int flags)
{
	struct shmid_ds status;
	void *memory;
	if (place || shmctl(id, IPC_STAT, &status))
		return shmat(id, place, flags);
	memory = mmap(0, status.shm_segsz, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	return memory == MAP_FAILED ? memory : shmat(id, memory, flags | SHM_REMAP);
}

/* Numbers. A long of the program saturates at 32 bits. */
#define NUMBER(name, T, call)                                                                      \
	T __narrow_##name(const char *text, word *end)                                             \
	{                                                                                          \
		char *behind;                                                                      \
		T result = call(text, &behind);                                                    \
		if (end)                                                                           \
			*end = narrowed(behind);                                                   \
		return result;                                                                     \
	}
NUMBER(strtod, double, strtod)
NUMBER(strtof, float, strtof)
NUMBER(strtold, long double, strtold)
#define INTEGER(name, R, T, least, most, call)                                                     \
	R __narrow_##name(const char *text, word *end, int base)                                   \
	{                                                                                          \
		char *behind;                                                                      \
		T result = call(text, &behind, base);                                              \
		if (end)                                                                           \
			*end = narrowed(behind);                                                   \
		if (result < (T)(least) || result > (T)(most)) {                                   \
			errno = ERANGE;                                                            \
			result = result < (T)(least) ? (T)(least) : (T)(most);                     \
		}                                                                                  \
		return (R)result;                                                                  \
	}
INTEGER(strtol, int32_t, long, INT32_MIN, INT32_MAX, strtol)
INTEGER(strtoll, long long, long long, LLONG_MIN, LLONG_MAX, strtoll)
INTEGER(strtoull, unsigned long long, unsigned long long, 0, ULLONG_MAX, strtoull)

uint32_t __narrow_strtoul(const char *text, word *end, int base)
{
	char *behind;
	unsigned long long result = strtoull(text, &behind, base);
	if (end)
		*end = narrowed(behind);
	/* A minus negates in the type at hand. */
	if (result > UINT32_MAX && result < (unsigned long long)-(long long)UINT32_MAX) {
		errno = ERANGE;
		return UINT32_MAX;
	}
	return (uint32_t)result;
}

/* Texts. */
char *__narrow_strtok_r(char *text, const char *marks, word *rest)
{
	char *own = wide(*rest), *result = strtok_r(text, marks, &own);
	*rest = narrowed(own);
	return result;
}

char *__narrow_strsep(word *text, const char *marks)
{
	char *own = wide(*text), *result = strsep(&own, marks);
	*text = narrowed(own);
	return result;
}

int32_t __narrow_getdelim(word *line, uint32_t *bytes, int mark, FILE *file)
{
	char *own = wide(*line);
	size_t size = own ? *bytes : 0;
	int32_t result = (int32_t)getdelim(&own, &size, mark, file);
	*line = narrowed(own);
	*bytes = (uint32_t)size;
	return result;
}

/* The C library's getline by this one, where calls are put inline. */
int32_t __narrow___getdelim(word *line, uint32_t *bytes, int mark, FILE *file)
{
	return __narrow_getdelim(line, bytes, mark, file);
}

int32_t __narrow_getline(word *line, uint32_t *bytes, FILE *file)
{
	return __narrow_getdelim(line, bytes, '\n', file);
}

char *__narrow_getenv(const char *name)
{
	char *found = getenv(name);
	return found ? __narrow_text(found) : 0;
}

char *__narrow_strerror(int number) { return __narrow_text(strerror(number)); }
char *__narrow_strsignal(int number) { return __narrow_text(strsignal(number)); }
char *__narrow_dirname(char *path) { return __narrow_text(dirname(path)); }
char *__narrow_xpg_basename(char *path) { return __narrow_text(__xpg_basename(path)); }
char *__narrow_setlocale(int category, const char *name)
{
	char *found = setlocale(category, name);
	return found ? __narrow_text(found) : 0;
}

/* Files. */
int __narrow_fseek(FILE *file, int32_t offset, int from) { return fseek(file, offset, from); }

struct narrow_part {
	word base;
	uint32_t bytes;
};
static ssize_t parted(ssize_t (*call)(int, const struct iovec *, int), int file,
		      const struct narrow_part *parts, int count)
{
	struct iovec own[count > 0 ? count : 1];
	int each;
	for (each = 0; each < count; each++)
		own[each] = (struct iovec){wide(parts[each].base), parts[each].bytes};
	return call(file, own, count);
}
ssize_t __narrow_readv(int file, const struct narrow_part *parts, int count)
{
	return parted(readv, file, parts, count);
}
ssize_t __narrow_writev(int file, const struct narrow_part *parts, int count)
{
	return parted(writev, file, parts, count);
}

/* Options. */
struct narrow_option {
	word name;
	int has_arg;
	word flag;
	int val;
};

static int optioned(int count, word *arguments, const char *marks, const struct narrow_option *given,
		    int *index, int alone)
{
	static char **own;
	static struct option *options;
	int each, result;
	free(own);
	free(options);
	own = __narrow_widened(arguments);
	for (each = 0; given && given[each].name; each++)
		;
	options = calloc(each + 1, sizeof *options);
	for (each = 0; given && options && given[each].name; each++)
		options[each] = (struct option){wide(given[each].name), given[each].has_arg,
						wide(given[each].flag), given[each].val};
	if (!own || !options)
		return -1;
	result = alone ? getopt_long_only(count, own, marks, options, index)
		       : given ? getopt_long(count, own, marks, options, index) : getopt(count, own, marks);
	for (each = 0; each < count; each++)
		arguments[each] = narrowed(own[each]);
	return result;
}

int __narrow_getopt(int count, word *arguments, const char *marks)
{
	return optioned(count, arguments, marks, 0, 0, 0);
}
int __narrow_getopt_long(int count, word *arguments, const char *marks, const struct narrow_option *options,
			 int *index)
{
	return optioned(count, arguments, marks, options, index, 0);
}
int __narrow_getopt_long_only(int count, word *arguments, const char *marks,
			      const struct narrow_option *options, int *index)
{
	return optioned(count, arguments, marks, options, index, 1);
}

/* Processes. */
int __narrow_execv(const char *path, const word *arguments)
{
	return execv(path, __narrow_widened(arguments));
}
int __narrow_execvp(const char *path, const word *arguments)
{
	return execvp(path, __narrow_widened(arguments));
}
int __narrow_execve(const char *path, const word *arguments, const word *environment)
{
	return execve(path, __narrow_widened(arguments), __narrow_widened(environment));
}

/* Signals. */
struct narrow_action {
	word handler;
	uint32_t mask[sizeof(sigset_t) / 4];
	int flags;
	word restorer;
};
int __narrow_sigaction(int number, const struct narrow_action *wanted, struct narrow_action *before)
{
	struct sigaction own, old;
	int result;
	if (wanted) {
		memset(&own, 0, sizeof own);
		own.sa_handler = (void (*)(int))(uintptr_t)wanted->handler;
		memcpy(&own.sa_mask, wanted->mask, sizeof wanted->mask);
		own.sa_flags = wanted->flags;
	}
	result = sigaction(number, wanted ? &own : 0, &old);
	if (!result && before) {
		before->handler = narrowed((void *)(uintptr_t)old.sa_handler);
		memcpy(before->mask, &old.sa_mask, sizeof before->mask);
		before->flags = old.sa_flags;
	}
	return result;
}

/* Threads. */
int __narrow_pthread_create(word *thread, const pthread_attr_t *wanted, void *(*function)(void *),
			    void *argument)
{
	pthread_t own;
	int result = pthread_create(&own, wanted, function, argument);
	if (!result)
		*thread = (word)own;
	return result;
}

int __narrow_pthread_join(word thread, word *value)
{
	void *own;
	int result = pthread_join(thread, &own);
	if (!result && value)
		*value = narrowed(own);
	return result;
}

int __narrow_pthread_attr_getstacksize(const pthread_attr_t *attributes, uint32_t *bytes)
{
	size_t own = 0;
	int result = pthread_attr_getstacksize(attributes, &own);
	*bytes = (uint32_t)own;
	return result;
}

/* Names that headers give these calls by the edition of C. */
#define ALIAS(name) \
	extern __typeof__(__narrow_##name) __narrow_isoc23_##name __attribute__((alias("__narrow_" #name)));
ALIAS(strtol)
ALIAS(strtoul)
ALIAS(strtoll)
ALIAS(strtoull)

int __narrow_pthread_detach(word thread) { return pthread_detach(thread); }
