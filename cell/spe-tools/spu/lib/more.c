/* Functions of the C library and of its neighbours that few programs use. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

lldiv_t lldiv(long long a, long long b) { return (lldiv_t){a / b, a % b}; }
int ffs(int x) { return __builtin_ffs(x); }
void *valloc(size_t bytes) { return memalign(4096, bytes); }

/* Strings. */
void *memccpy(void *to, const void *from, int c, size_t count)
{
	char *into = to;
	const char *of = from;
	for (; count; count--)
		if ((*into++ = *of++) == (char)c)
			return into;
	return 0;
}
void *memrchr(const void *memory, int c, size_t count)
{
	const char *at = memory;
	while (count--)
		if (at[count] == (char)c)
			return (char *)at + count;
	return 0;
}
void *memmem(const void *memory, size_t bytes, const void *part, size_t part_bytes)
{
	const char *at = memory;
	for (; bytes >= part_bytes; at++, bytes--)
		if (!memcmp(at, part, part_bytes))
			return (char *)at;
	return 0;
}
char *strchrnul(const char *text, int c)
{
	while (*text && *text != (char)c)
		text++;
	return (char *)text;
}
char *strndup(const char *text, size_t most)
{
	size_t length = strnlen(text, most);
	char *copy = malloc(length + 1);
	if (copy) {
		memcpy(copy, text, length);
		copy[length] = 0;
	}
	return copy;
}
char *strsep(char **rest, const char *ends)
{
	char *part = *rest, *end;
	if (!part)
		return 0;
	end = part + strcspn(part, ends);
	*rest = *end ? end + 1 : 0;
	*end = 0;
	return part;
}
char *strcasestr(const char *text, const char *part)
{
	size_t length = strlen(part);
	for (; *text || !length; text++)
		if (!strncasecmp(text, part, length))
			return (char *)text;
	return 0;
}
size_t strxfrm(char *to, const char *from, size_t room)
{
	size_t length = strlen(from);
	if (room)
		strncpy(to, from, room);
	return length;
}
void swab(const void *from, void *to, ssize_t count)
{
	const char *of = from;
	char *into = to;
	for (; count > 1; count -= 2, of += 2, into += 2) {
		char first = of[0];
		into[0] = of[1];
		into[1] = first;
	}
}
int toascii(int c) { return c & 127; }

/* Characters of one byte. */
int mblen(const char *text, size_t count) { return text && count ? *text != 0 : 0; }
int mbtowc(wchar_t *c, const char *text, size_t count)
{
	if (!text || !count)
		return text ? -1 : 0;
	if (c)
		*c = (unsigned char)*text;
	return *text != 0;
}
int wctomb(char *text, wchar_t c)
{
	if (!text)
		return 0;
	*text = c;
	return 1;
}

/* Text of any length. */
int vasprintf(char **text, const char *format, va_list list)
{
	va_list again;
	int length;
	va_copy(again, list);
	length = vsnprintf(0, 0, format, again);
	va_end(again);
	*text = length < 0 ? 0 : malloc(length + 1);
	return *text ? vsnprintf(*text, length + 1, format, list) : -1;
}
int asprintf(char **text, const char *format, ...)
{
	va_list list;
	int length;
	va_start(list, format);
	length = vasprintf(text, format, list);
	va_end(list);
	return length;
}

/* One process, without signals from outside. */
int getpid(void) { return 1; }
int isatty(int file) { return file >= 0 && file <= 2; }
int sched_yield(void) { return 0; }
static sighandler_t handlers[65];
sighandler_t signal(int number, sighandler_t handler)
{
	sighandler_t before;
	if (number < 1 || number > 64) {
		errno = EINVAL;
		return SIG_ERR;
	}
	before = handlers[number];
	handlers[number] = handler;
	return before;
}
int raise(int number)
{
	sighandler_t handler = number < 1 || number > 64 ? SIG_ERR : handlers[number];
	if (handler == SIG_ERR)
		return -1;
	if (handler == SIG_DFL)
		abort();
	if (handler != SIG_IGN)
		handler(number);
	return 0;
}

/* Numbers. */
double nan(const char *text) { return __builtin_nan(""); }
float nanf(const char *text) { return __builtin_nanf(""); }
int finite(double x) { return x - x == 0; }
int finitef(float x) { return x - x == 0; }
double drem(double x, double y) { return remainder(x, y); }
double gamma(double x) { return lgamma(x); }
double significand(double x) { return scalbn(x, -ilogb(x)); }
static int within(long n) { return n > 10000 ? 10000 : n < -10000 ? -10000 : (int)n; }
double scalbln(double x, long n) { return scalbn(x, within(n)); }
float scalblnf(float x, long n) { return scalbnf(x, within(n)); }
