/* Formatted output into a sink. */
#ifndef SIDECORE_FORMAT_H
#define SIDECORE_FORMAT_H
#include <stdarg.h>

struct sink {
	void (*write)(struct sink *sink, const char *text, int length);
	char *at;	/* where text goes, or the buffer of a stream */
	int room;	/* bytes free at `at` */
	int total;	/* bytes of the whole text */
	int stream;	/* the host's number of the stream */
	int failed;
};

extern void __sidecore_format(struct sink *sink, const char *format, va_list list)
	__attribute__((visibility("hidden")));

#endif
