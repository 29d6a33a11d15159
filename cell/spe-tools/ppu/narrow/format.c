/* Formatted input and output: a long and a size_t of the program have 4 bytes. */
#include "narrow.h"
#include <err.h>
#include <stdarg.h>
#include <stdio.h>

/* Lists of arguments: the program's pointers in them have 4 bytes. */
struct narrow_list {
	uint32_t general, floating;
	word overflow, saved;
};
struct wide_list {
	uint32_t general, floating;
	void *overflow, *saved;
};

static void widen(va_list *list, const struct narrow_list *given)
{
	struct wide_list full = {given->general, given->floating, wide(given->overflow), wide(given->saved)};
	memcpy(list, &full, sizeof full);
}

/* The format with the sizes of this machine: a copy, to be freed. */
static char *widened(const char *format, int reads)
{
	char *copy = malloc(strlen(format) + 1), *to = copy;
	while (copy && *format) {
		const char *size, *conversion;
		*to++ = *format;
		if (*format++ != '%')
			continue;
		if (*format == '%') {
			*to++ = *format++;
			continue;
		}
		while (*format && strchr("-+ #0'123456789.*$Im", *format))
			*to++ = *format++;
		size = format;
		while (*format && strchr("hlLqjzt", *format))
			format++;
		conversion = format;
		if (*conversion && strchr("dioxXun", *conversion) && conversion - size == 1 && strchr("lzt", *size))
			continue;
		if (reads && *conversion == 'p') {
			*to++ = 'x';
			format++;
			continue;
		}
		memcpy(to, size, conversion - size);
		to += conversion - size;
		if (*conversion == '[') {
			/* A set may have a percent sign. */
			do
				*to++ = *format++;
			while (*format && (*format != ']' || format[-1] == '[' || (format[-1] == '^' && format[-2] == '[')));
		}
	}
	if (copy)
		*to = 0;
	return copy;
}

#define FORMATTED(name, parameters, last, reads, call)                                             \
	int __narrow_##name parameters                                                             \
	{                                                                                          \
		char *own = widened(format, reads);                                                \
		va_list list;                                                                      \
		int result;                                                                        \
		va_start(list, last);                                                              \
		result = own ? call : -1;                                                          \
		va_end(list);                                                                      \
		free(own);                                                                         \
		return result;                                                                     \
	}
FORMATTED(printf, (const char *format, ...), format, 0, vprintf(own, list))
FORMATTED(fprintf, (FILE *file, const char *format, ...), format, 0, vfprintf(file, own, list))
FORMATTED(dprintf, (int file, const char *format, ...), format, 0, vdprintf(file, own, list))
FORMATTED(sprintf, (char *to, const char *format, ...), format, 0, vsprintf(to, own, list))
FORMATTED(snprintf, (char *to, uint32_t bytes, const char *format, ...), format, 0,
	  vsnprintf(to, bytes, own, list))
FORMATTED(scanf, (const char *format, ...), format, 1, vscanf(own, list))
FORMATTED(fscanf, (FILE *file, const char *format, ...), format, 1, vfscanf(file, own, list))
FORMATTED(sscanf, (const char *from, const char *format, ...), format, 1, vsscanf(from, own, list))

#define LISTED(name, parameters, reads, call)                                                      \
	int __narrow_##name parameters                                                             \
	{                                                                                          \
		char *own = widened(format, reads);                                                \
		va_list list;                                                                      \
		int result;                                                                        \
		widen(&list, given);                                                               \
		result = own ? call : -1;                                                          \
		free(own);                                                                         \
		return result;                                                                     \
	}
LISTED(vprintf, (const char *format, struct narrow_list *given), 0, vprintf(own, list))
LISTED(vfprintf, (FILE *file, const char *format, struct narrow_list *given), 0,
       vfprintf(file, own, list))
LISTED(vsprintf, (char *to, const char *format, struct narrow_list *given), 0,
       vsprintf(to, own, list))
LISTED(vsnprintf, (char *to, uint32_t bytes, const char *format, struct narrow_list *given), 0,
       vsnprintf(to, bytes, own, list))
LISTED(vscanf, (const char *format, struct narrow_list *given), 1, vscanf(own, list))
LISTED(vfscanf, (FILE *file, const char *format, struct narrow_list *given), 1,
       vfscanf(file, own, list))
LISTED(vsscanf, (const char *from, const char *format, struct narrow_list *given), 1,
       vsscanf(from, own, list))

int __narrow_vasprintf(word *to, const char *format, struct narrow_list *given)
{
	char *own = widened(format, 0), *text = 0;
	va_list list;
	int result;
	widen(&list, given);
	result = own ? vasprintf(&text, own, list) : -1;
	*to = narrowed(text);
	free(own);
	return result;
}

int __narrow_asprintf(word *to, const char *format, ...)
{
	char *own = widened(format, 0), *text = 0;
	va_list list;
	int result;
	va_start(list, format);
	result = own ? vasprintf(&text, own, list) : -1;
	va_end(list);
	*to = narrowed(text);
	free(own);
	return result;
}

#define COMPLAINT(name, parameters, call)                                                          \
	void __narrow_##name parameters                                                            \
	{                                                                                          \
		char *own = format ? widened(format, 0) : 0;                                       \
		va_list list;                                                                      \
		va_start(list, format);                                                            \
		call;                                                                              \
		va_end(list);                                                                      \
		free(own);                                                                         \
	}
COMPLAINT(err, (int status, const char *format, ...), verr(status, own, list))
COMPLAINT(errx, (int status, const char *format, ...), verrx(status, own, list))
COMPLAINT(warn, (const char *format, ...), vwarn(own, list))
COMPLAINT(warnx, (const char *format, ...), vwarnx(own, list))

/* Names that headers give these calls by the edition of C. */
#define ALIAS(name, of) extern __typeof__(__narrow_##of) __narrow_##name __attribute__((alias("__narrow_" #of)));
ALIAS(isoc99_scanf, scanf)
ALIAS(isoc99_fscanf, fscanf)
ALIAS(isoc99_sscanf, sscanf)
ALIAS(isoc99_vscanf, vscanf)
ALIAS(isoc99_vfscanf, vfscanf)
ALIAS(isoc99_vsscanf, vsscanf)
ALIAS(isoc23_scanf, scanf)
ALIAS(isoc23_fscanf, fscanf)
ALIAS(isoc23_sscanf, sscanf)
