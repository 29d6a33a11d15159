/* A host of 32 bits: its structures, and the calls of the C library that see pointers and longs. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

typedef struct {
	float *a, *b;
	unsigned long n;
	int (*call)(const char *, ...);
} context;

static float numbers[4] = { 1, 2, 3, 4 };
static context data = { numbers, numbers + 1, 7, printf };
static struct {
	const char *name;
	double (*function)(double);
} table[] = { { "sin", sin }, { "cos", cos } };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int signalled;

static void *thread(void *argument)
{
	pthread_mutex_lock(&lock);
	((context *)argument)->n++;
	pthread_mutex_unlock(&lock);
	return &data;
}

static void noted(int number) { signalled = number; }

static void say(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
}

/* Also a name of the C library. */
void warn(int number) { printf("own %d\n", number); }

int main(int count, char **arguments, char **environment)
{
	static struct option options[] = { { "size", required_argument, 0, 's' }, { 0, 0, 0, 0 } };
	char text[64], line[] = "a b c", *end, *rest;
	struct sigaction action;
	struct timeval now;
	struct tm day;
	time_t zero = 0;
	unsigned long unsigned_long;
	long number;
	size_t size;
	pthread_t id;
	sem_t semaphore;
	void *result;
	int option;

	while ((option = getopt_long(count, arguments, "v", options, 0)) != -1)
		if (option == 's')
			printf("opt %c %s\n", option, optarg);
	printf("%d %d %s %d\n", count, optind, arguments[0], environment[0] != 0);
	if (posix_memalign((void **)&data.b, 128, 64))
		return 1;
	data.b[0] = 9;
	data.call("%d %d %g %g %lu\n", (int)sizeof(context), (int)sizeof(long), data.a[0], data.b[0], data.n);
	pthread_create(&id, 0, thread, &data);
	pthread_join(id, &result);
	printf("%d %lu\n", result == &data, data.n);
	printf("%ld %zu %lld %p %s %5.2f %d %d %ld %lx\n", -5L, sizeof data, -6LL, (void *)16, "s", 2.5, 1, 2, -7L,
	       255UL);
	say("%ld %s %d %d %d %d %s %ld\n", -1L, "x", 1, 2, 3, 4, "stack", -9L);
	if (sscanf("-12 34 56", "%ld %lu %zu", &number, &unsigned_long, &size) == 3)
		printf("%ld %lu %zu\n", number, unsigned_long, size);
	number = strtol("0x10zz", &end, 0);
	printf("%ld %s\n", number, end);
	errno = 0;
	if (!fopen("/nowhere/at/all", "r"))
		printf("%d %s\n", errno, strerror(errno));
	fprintf(stderr, "to the errors\n");
	gmtime_r(&zero, &day);
	strftime(text, sizeof text, "%Y-%m-%d", &day);
	setenv("TZ", "UTC", 1);
	printf("%s %d\n", text, (int)mktime(&day));
	memset(&action, 0, sizeof action);
	action.sa_handler = noted;
	sigaction(SIGUSR1, &action, 0);
	raise(SIGUSR1);
	gettimeofday(&now, 0);
	printf("%d %d %d\n", signalled == SIGUSR1, now.tv_sec > 1000000000, getenv("TZ") != 0);
	printf("%s %.3f %d %c\n", table[0].name, table[0].function(1.0) + table[1].function(0), isalpha('a') != 0,
	       toupper('b'));
	sem_init(&semaphore, 0, 1);
	sem_wait(&semaphore);
	sem_destroy(&semaphore);
	end = strtok_r(line, " ", &rest);
	printf("%s %s\n", end, strtok_r(0, " ", &rest));
	warn(3);
	return 5;
}
