/* Days, hours and their text; the only zone is UTC. */
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char DAYS[] = "SunMonTueWedThuFriSat", MONTHS[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
static const char *const LONG_DAYS[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday",
					"Saturday"};
static const char *const LONG_MONTHS[] = {"January", "February", "March", "April", "May", "June", "July",
					  "August", "September", "October", "November", "December"};

/* Days from 1 January 1970 to the first of a month; years begin in March for this. */
static long days_before(long year, int month)
{
	long of = month < 2 ? year - 1 : year, cycle = (of >= 0 ? of : of - 399) / 400;
	long in_cycle = of - cycle * 400, place = (month + 10) % 12;
	long day = (153 * place + 2) / 5 + in_cycle * 365 + in_cycle / 4 - in_cycle / 100;
	return cycle * 146097 + day - 719468;
}

struct tm *gmtime_r(const time_t *when, struct tm *into)
{
	long long seconds = *when;
	long day = seconds / 86400, rest = seconds % 86400, year;
	int month;
	if (rest < 0) {
		rest += 86400;
		day--;
	}
	memset(into, 0, sizeof *into);
	into->tm_hour = rest / 3600;
	into->tm_min = rest / 60 % 60;
	into->tm_sec = rest % 60;
	into->tm_wday = ((day + 4) % 7 + 7) % 7;
	year = 1970 + day / 366;
	while (days_before(year + 1, 0) <= day)
		year++;
	while (days_before(year, 0) > day)
		year--;
	for (month = 0; month < 11 && days_before(year, month + 1) <= day; month++)
		;
	into->tm_year = year - 1900;
	into->tm_mon = month;
	into->tm_mday = day - days_before(year, month) + 1;
	into->tm_yday = day - days_before(year, 0);
	return into;
}

static struct tm shared;
struct tm *localtime_r(const time_t *when, struct tm *into) { return gmtime_r(when, into); }
struct tm *gmtime(const time_t *when) { return gmtime_r(when, &shared); }
struct tm *localtime(const time_t *when) { return gmtime_r(when, &shared); }

time_t mktime(struct tm *of)
{
	long year = of->tm_year + 1900L + of->tm_mon / 12;
	int month = of->tm_mon % 12;
	time_t when;
	if (month < 0) {
		month += 12;
		year--;
	}
	when = (days_before(year, month) + of->tm_mday - 1) * 86400LL + of->tm_hour * 3600LL +
	       of->tm_min * 60LL + of->tm_sec;
	gmtime_r(&when, of);
	return when;
}

double difftime(time_t end, time_t begin) { return (double)(end - begin); }

char *asctime_r(const struct tm *of, char *text)
{
	sprintf(text, "%.3s %.3s%3d %.2d:%.2d:%.2d %d\n", DAYS + 3 * (of->tm_wday % 7),
		MONTHS + 3 * (of->tm_mon % 12), of->tm_mday, of->tm_hour, of->tm_min, of->tm_sec,
		1900 + of->tm_year);
	return text;
}
char *asctime(const struct tm *of)
{
	static char text[64];
	return asctime_r(of, text);
}
char *ctime(const time_t *when) { return asctime(gmtime(when)); }

size_t strftime(char *text, size_t room, const char *format, const struct tm *of)
{
	size_t used = 0;
	char part[64];
	for (; *format; format++) {
		const char *more = part;
		size_t length;
		if (*format != '%') {
			part[0] = *format;
			part[1] = 0;
		} else {
			int hour = of->tm_hour % 12 ? of->tm_hour % 12 : 12;
			switch (*++format) {
			case 'a': sprintf(part, "%.3s", DAYS + 3 * of->tm_wday); break;
			case 'A': more = LONG_DAYS[of->tm_wday]; break;
			case 'b':
			case 'h': sprintf(part, "%.3s", MONTHS + 3 * of->tm_mon); break;
			case 'B': more = LONG_MONTHS[of->tm_mon]; break;
			case 'c': strftime(part, sizeof part, "%a %b %e %H:%M:%S %Y", of); break;
			case 'd': sprintf(part, "%.2d", of->tm_mday); break;
			case 'D':
			case 'x': strftime(part, sizeof part, "%m/%d/%y", of); break;
			case 'e': sprintf(part, "%2d", of->tm_mday); break;
			case 'F': strftime(part, sizeof part, "%Y-%m-%d", of); break;
			case 'H': sprintf(part, "%.2d", of->tm_hour); break;
			case 'I': sprintf(part, "%.2d", hour); break;
			case 'j': sprintf(part, "%.3d", of->tm_yday + 1); break;
			case 'm': sprintf(part, "%.2d", of->tm_mon + 1); break;
			case 'M': sprintf(part, "%.2d", of->tm_min); break;
			case 'n': more = "\n"; break;
			case 'p': more = of->tm_hour < 12 ? "AM" : "PM"; break;
			case 'S': sprintf(part, "%.2d", of->tm_sec); break;
			case 't': more = "\t"; break;
			case 'T':
			case 'X': strftime(part, sizeof part, "%H:%M:%S", of); break;
			case 'w': sprintf(part, "%d", of->tm_wday); break;
			case 'y': sprintf(part, "%.2d", of->tm_year % 100); break;
			case 'Y': sprintf(part, "%d", 1900 + of->tm_year); break;
			case 'Z': more = "UTC"; break;
			default: sprintf(part, "%c", *format); break;
			}
		}
		length = strlen(more);
		if (used + length >= room)
			return 0;
		memcpy(text + used, more, length);
		used += length;
	}
	if (room)
		text[used] = 0;
	return used;
}
