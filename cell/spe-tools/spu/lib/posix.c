/* Files and clocks of the host by its numbers, by POSIX callbacks. */
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>
#include "call.h"

#define call __sidecore_posix

enum {
	CLOSE = 2, GETPAGESIZE = 6, GETTIMEOFDAY = 7, LSEEK = 9, OPEN = 15, READ = 16, UNLINK = 24,
	WRITE = 27, FTRUNCATE = 28, ACCESS = 29, DUP = 30, TIME = 31, NANOSLEEP = 32,
};

u32 __sidecore_posix(int operation, u32 a, u32 b, u32 c)
{
	struct slot slots[SLOTS_MAX];
	memset(slots, 0, sizeof slots);
	slots[0].word[0] = a;
	slots[1].word[0] = b;
	slots[2].word[0] = c;
	return __sidecore_callback(STOP_POSIX, operation, slots);
}

int open(const char *path, int flags, ...)
{
	va_list list;
	int mode = 0;
	if (flags & O_CREAT) {
		va_start(list, flags);
		mode = va_arg(list, int);
		va_end(list);
	}
	return call(OPEN, (u32)path, flags, mode);
}

int close(int file) { return call(CLOSE, file, 0, 0); }
ssize_t read(int file, void *data, size_t bytes) { return (int)call(READ, file, (u32)data, bytes); }
ssize_t write(int file, const void *data, size_t bytes)
{
	return (int)call(WRITE, file, (u32)data, bytes);
}
off_t lseek(int file, off_t offset, int from) { return (int)call(LSEEK, file, offset, from); }
int unlink(const char *path) { return call(UNLINK, (u32)path, 0, 0); }
int ftruncate(int file, off_t bytes) { return call(FTRUNCATE, file, bytes, 0); }
int access(const char *path, int mode) { return call(ACCESS, (u32)path, mode, 0); }
int dup(int file) { return call(DUP, file, 0, 0); }
int getpagesize(void) { return call(GETPAGESIZE, 0, 0, 0); }

/* The host's clock has words of 32 bits, as the SPU's. */
int gettimeofday(struct timeval *now, void *zone)
{
	u32 words[4] __attribute__((aligned(16))) = { 0 };
	int result = call(GETTIMEOFDAY, (u32)words, 0, 0);
	if (now) {
		now->tv_sec = words[0];
		now->tv_usec = words[1];
	}
	return result;
}

time_t time(time_t *now)
{
	struct timeval found = { 0 };
	gettimeofday(&found, 0);
	if (now)
		*now = found.tv_sec;
	return found.tv_sec;
}

clock_t clock(void)
{
	struct timeval found = { 0 };
	gettimeofday(&found, 0);
	return found.tv_sec * CLOCKS_PER_SEC + found.tv_usec;
}

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
	u32 words[4] __attribute__((aligned(16))) = { wanted->tv_sec, wanted->tv_nsec };
	int result = call(NANOSLEEP, (u32)words, (u32)&words[2], 0);
	if (result && left) {
		left->tv_sec = words[2];
		left->tv_nsec = words[3];
	}
	return result;
}

int usleep(useconds_t time)
{
	struct timespec wanted = { time / 1000000, time % 1000000 * 1000 };
	return nanosleep(&wanted, 0);
}

unsigned int sleep(unsigned int seconds)
{
	struct timespec wanted = { seconds, 0 };
	nanosleep(&wanted, 0);
	return 0;
}

/* Time of the process: there is none but the clock's. */
int getrusage(int who, struct rusage *use)
{
	memset(use, 0, sizeof *use);
	return gettimeofday(&use->ru_utime, 0);
}
clock_t times(struct tms *use)
{
	struct timeval now = { 0 };
	gettimeofday(&now, 0);
	memset(use, 0, sizeof *use);
	return use->tms_utime = now.tv_sec % 1000000 * 100 + now.tv_usec / 10000;
}

/* Under -D_FILE_OFFSET_BITS=64 headers name these; offsets have the width of a long long anyway. */
int open64(const char *, int, ...) __attribute__((alias("open")));
off_t lseek64(int, off_t, int) __attribute__((alias("lseek")));
int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));
