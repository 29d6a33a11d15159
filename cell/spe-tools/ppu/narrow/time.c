/* Calendar time: the C library's structure has a long and a pointer at its end. */
#include "narrow.h"
#include <time.h>

enum { NUMBERS = 9 };
struct narrow_time {
	int numbers[NUMBERS];
	int32_t offset;
	word zone;
};

static void widen(struct tm *own, const struct narrow_time *given)
{
	memset(own, 0, sizeof *own);
	memcpy(own, given->numbers, sizeof given->numbers);
	own->tm_gmtoff = given->offset;
	own->tm_zone = wide(given->zone);
}

static struct narrow_time *narrow(struct narrow_time *to, const struct tm *own)
{
	if (!own)
		return 0;
	memcpy(to->numbers, own, sizeof to->numbers);
	to->offset = (int32_t)own->tm_gmtoff;
	to->zone = narrowed(own->tm_zone ? __narrow_text(own->tm_zone) : 0);
	return to;
}

static struct narrow_time last;

struct narrow_time *__narrow_localtime(const time_t *time) { return narrow(&last, localtime(time)); }
struct narrow_time *__narrow_gmtime(const time_t *time) { return narrow(&last, gmtime(time)); }

struct narrow_time *__narrow_localtime_r(const time_t *time, struct narrow_time *to)
{
	struct tm own;
	return narrow(to, localtime_r(time, &own));
}

struct narrow_time *__narrow_gmtime_r(const time_t *time, struct narrow_time *to)
{
	struct tm own;
	return narrow(to, gmtime_r(time, &own));
}

time_t __narrow_mktime(struct narrow_time *given)
{
	struct tm own;
	time_t result;
	widen(&own, given);
	result = mktime(&own);
	narrow(given, &own);
	return result;
}

uint32_t __narrow_strftime(char *to, uint32_t bytes, const char *format, const struct narrow_time *given)
{
	struct tm own;
	widen(&own, given);
	return (uint32_t)strftime(to, bytes, format, &own);
}

static char text[64];

char *__narrow_asctime(const struct narrow_time *given)
{
	struct tm own;
	widen(&own, given);
	return asctime_r(&own, text);
}

char *__narrow_ctime(const time_t *time) { return ctime_r(time, text); }
